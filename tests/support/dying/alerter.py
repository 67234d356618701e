"""An alerter that kills itself at a point: `python -m tests.support.dying.alerter POINT MARKER`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from alerting import __main__
from alerting.delivery.transports.webhook import WebhookTransport
from alerting.incidents.evaluator import Evaluator
from alerting.incidents.notifier import Notifier
from alerting.incidents.outbox import Outbox
from tests.support.dying.processes import Die, around, death


def main() -> int:
    """Run the alerter, to the point in the first argument."""
    point, marker = sys.argv[1], Path(sys.argv[2])
    POINTS[point](death(point, marker))
    return __main__.main()


def before_the_commit(die: Die) -> None:
    """Incident and message are written, the transaction is open."""
    around(Notifier, "notify", after=lambda _: die())


def after_the_commit(die: Die) -> None:
    around(Evaluator, "apply", after=lambda changes: die() if changes else None)


def after_the_claim(die: Die) -> None:
    around(Outbox, "claim", after=lambda claimed: die() if claimed else None)


def after_the_sending(die: Die) -> None:
    """The receiver has it, and nothing is recorded."""
    around(WebhookTransport, "send", after=lambda _: die())


def after_the_record(die: Die) -> None:
    around(Outbox, "record", after=lambda _: die())


POINTS: dict[str, Callable[[Die], None]] = {
    "before the commit": before_the_commit,
    "after the commit": after_the_commit,
    "after the claim": after_the_claim,
    "after the sending": after_the_sending,
    "after the record": after_the_record,
}

if __name__ == "__main__":
    sys.exit(main())
