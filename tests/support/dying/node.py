"""A process of event-norm that kills itself around a commit, once a file exists:
`python -m tests.support.dying.node POINT MARKER PERMIT ARGUMENT...`, with the arguments of `pipeline`."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline_under_test.__main__ import main as run_command
from pipeline_under_test.stream.kafka import transactional_producer
from pipeline_under_test.stream.kafka.transactional_producer import TransactionalProducer
from tests.support.dying.processes import Die, around, death

TRANSACTION_TIMEOUT_S = 10
"""So that nobody waits half a minute until the broker ends the transaction that is left open."""


def main() -> None:
    """Run the command, to the point in the first argument."""
    point, marker, permit = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    del sys.argv[1:4]
    transactional_producer.TRANSACTION_TIMEOUT_S = TRANSACTION_TIMEOUT_S  # type: ignore[misc]
    POINTS[point](death(point, marker, permit))
    run_command()


def before_the_commit(die: Die) -> None:
    """All records are sent, the transaction is open."""
    around(TransactionalProducer, "commit", before=die)


def after_the_commit(die: Die) -> None:
    """All records can be read, and nothing tells of it yet."""
    around(TransactionalProducer, "commit", after=lambda _: die())


POINTS = {point.__name__: point for point in (before_the_commit, after_the_commit)}

if __name__ == "__main__":
    main()
