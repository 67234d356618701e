"""What an operator does to the queues: redrive dead letters, and list them for the ledger."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from botocore.exceptions import ClientError

from lagloss.files import BadNotification, objects_in
from pipeline_under_test.batch.aws import Aws, Infrastructure
from pipeline_under_test.batch.ledger import FactLedger

HIDDEN_S: Final = 2
"""Visibility timeout of dead letters that are looked at: a look finds each once."""
PATIENCE_S: Final = 15.0
"""How long dead letters that others look at are waited for: they are invisible meanwhile."""
LOOK_EVERY_S: Final = 0.5


def dead_files(aws: Aws, queue_url: str) -> list[str]:
    """Return the ids of the files in a dead-letter queue; they stay there, invisible for a moment."""
    found: dict[str, list[str]] = {}
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = aws.sqs.receive_message(QueueUrl=queue_url, MaxNumberOfMessages=10, VisibilityTimeout=HIDDEN_S)
        messages = answer.get("Messages", ())
        found |= {message["MessageId"]: _names(message["Body"]) for message in messages}
        if len(found) >= sum(aws.counts(queue_url)) or time.monotonic() > deadline:
            return list(dict.fromkeys(name for names in found.values() for name in names))
        if not messages:
            time.sleep(LOOK_EVERY_S)


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
    """Move an importer's dead letters back into its queue, by the queue's own move task.

    A task moves what is visible when it runs: another task moves those that were looked at meanwhile.
    """
    ledger.write("redriven", node=importer)
    url, deadline = infrastructure.dead[importer], time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        visible, in_flight = aws.counts(url)
        if visible == in_flight == 0:
            return
        if visible > 0:
            with suppress(ClientError):  # the task before is still at work
                aws.sqs.start_message_move_task(SourceArn=aws.arn(url))
        time.sleep(LOOK_EVERY_S)
