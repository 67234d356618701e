"""What an operator does to the queues: redrive dead letters, and list them for the ledger."""

from __future__ import annotations

from typing import Final

from lagloss.files import BadNotification, objects_in
from pipeline_under_test.batch.aws import Aws, Infrastructure
from pipeline_under_test.batch.ledger import FactLedger

HIDDEN_S: Final = 2
"""Visibility timeout of dead letters that are looked at: a look finds each once."""


def dead_files(aws: Aws, queue_url: str) -> list[str]:
    """Return the ids of the files in a dead-letter queue; they stay there, invisible for a moment."""
    found: dict[str, None] = {}
    while True:
        answer = aws.sqs.receive_message(QueueUrl=queue_url, MaxNumberOfMessages=10, VisibilityTimeout=HIDDEN_S)
        fresh = [name for message in answer.get("Messages", ()) for name in _names(message["Body"])]
        if not set(fresh) - found.keys():
            return list(found)
        found |= dict.fromkeys(fresh)


def _names(body: str) -> list[str]:
    try:
        return [stored.message_id for stored in objects_in(body)]
    except BadNotification:
        return []


def bury(aws: Aws, infrastructure: Infrastructure, ledger: FactLedger) -> int:
    """Write the files in the dead-letter queues to the ledger; return their number."""
    number = 0
    for importer, url in infrastructure.dead.items():
        for name in dead_files(aws, url):
            ledger.write("buried", node=importer, file=name)
            number += 1
    return number


def redrive(aws: Aws, infrastructure: Infrastructure, importer: str, ledger: FactLedger) -> None:
    """Move an importer's dead letters back into its queue, by the queue's own move task, which goes on by itself."""
    ledger.write("redriven", node=importer)
    aws.sqs.start_message_move_task(SourceArn=aws.arn(infrastructure.dead[importer]))
