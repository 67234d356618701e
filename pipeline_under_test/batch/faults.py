"""Faults of the batch pipeline, how they are written, and which files and records they hit.

Faults of landing, for files whose newest event lies in the time that they hold. A file meets one of them at most, the
first that hits it:

==================================  ==================================================================================
``lose:notification:SHARE``         the file's name is not one that S3 notifies of: no queue hears of it
``duplicate:notification:SHARE``    S3's notification is published a second time
``truncate:SHARE``                  the file is stored without its end
``corrupt:SHARE``                   a byte of it is changed
``schema:SHARE``                    it holds records of another schema
``empty:SHARE``                     it is stored without any bytes
``enlarge:FACTOR:SHARE``            it has this many times as many records
``overwrite:SHARE``                 another file of new events is stored under its key at once
``late:DURATION:SHARE``             its events are so much older
``bad:SHARE``                       a record of this share has no usable value
==================================  ==================================================================================

Faults of an importer N (``db-import``, ``index-import``), for files that it receives while they hold:

==================================  ==================================================================================
``kill:N:before:SHARE``             the process is killed (-9) before it writes the file; each file is hit once at most
``kill:N:after:SHARE``              likewise when it has written it, before the message is deleted
``double-write:N:SHARE``            it stands still for longer than the visibility timeout before it writes the file, so
                                    that another one writes it, too; each file is hit once at most
``fail:N:SHARE``                    the sink refuses the file
``wait:N:DURATION:SHARE``           the sink takes so long
``away:N``                          N's queue cannot be reached
``drop:N:SHARE``                    the sink says that it has written a record of this share and has not, by event time;
                                    lagloss sees it if the tables are tapped
==================================  ==================================================================================

SHARE is more than 0 and at most 1, DURATION like ``250ms``, ``2s`` or ``5m``, FACTOR at most 1000.
"""

from __future__ import annotations

import time
from typing import Final

from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.topology import IMPORTERS, LANDING
from pipeline_under_test.harness.faults import (
    BadFault,
    Fault,
    Injections,
    factor_of,
    hits,
    naming_the_text,
    seconds_of,
    share_of,
)

_OF_FILES: Final[dict[str, str]] = {
    "truncate": "truncate",
    "corrupt": "corrupt-file",
    "schema": "unknown-schema",
    "empty": "empty",
    "overwrite": "overwrite",
    "bad": "bad-record",
}
_OF_NOTIFICATIONS: Final[dict[str, str]] = {"lose": "lose-notification", "duplicate": "duplicate-notification"}
_KILLS: Final[dict[str, str]] = {"before": "kill-before", "after": "kill-after"}
_EXPECTED: Final = (
    "expected lose|duplicate:notification:SHARE, truncate|corrupt|schema|empty|overwrite|bad:SHARE, "
    "enlarge:FACTOR:SHARE, late:DURATION:SHARE, kill:N:before|after:SHARE, double-write|fail:N:SHARE, "
    "wait:N:DURATION:SHARE, away:N or drop:N:SHARE"
)


@naming_the_text
def parse(text: str) -> Fault:
    """Return the fault that `text` names.

    Raises:
        BadFault: for anything that is not in the tables above.
    """
    match text.split(":"):
        case ["lose" | "duplicate" as what, "notification", share]:
            return Fault(_OF_NOTIFICATIONS[what], text, LANDING, share_of(share))
        case [what, share] if what in _OF_FILES:
            return Fault(_OF_FILES[what], text, LANDING, share_of(share))
        case ["enlarge", factor, share]:
            return Fault("enlarge", text, LANDING, share_of(share), number=factor_of(factor))
        case ["late", duration, share]:
            return Fault("late", text, LANDING, share_of(share), seconds=seconds_of(duration))
        case ["kill", node, when, share] if when in _KILLS:
            return Fault(_KILLS[when], text, _importer(node), share_of(share))
        case ["double-write", node, share]:
            return Fault("double-write", text, _importer(node), share_of(share))
        case ["fail", node, share]:
            return Fault("fail", text, _importer(node), share_of(share))
        case ["wait", node, duration, share]:
            return Fault("wait", text, _importer(node), share_of(share), seconds=seconds_of(duration))
        case ["drop", node, share]:
            return Fault("drop", text, _importer(node), share_of(share))
        case ["away", node]:
            return Fault("queue-away", text, _importer(node))
    raise BadFault(f"{_EXPECTED}, found none")


def _importer(name: str) -> str:
    if name not in IMPORTERS:
        raise BadFault(f"expected one of the importers {', '.join(IMPORTERS)}, found {name!r}")
    return name


def injections(settings: BatchSettings) -> Injections:
    """Return the faults of a running pipeline, as they are added."""
    return Injections(settings.faults_path, parse)


class NodeFaults:
    """The faults of one node. Whether one hits is decided by the file's key, or the record's id, and the seed alone."""

    def __init__(self, node: str, injections: Injections, seed: int = 0) -> None:
        self._node = node
        self._injections = injections
        self._seed = seed

    def hit(self, word: str, *kinds: str, at_ms: float | None = None) -> Fault | None:
        """Return the first fault of these kinds that holds at `at_ms` (by default now) and hits a key or an id."""
        at_ms = time.time() * 1000 if at_ms is None else at_ms
        for injection in self._injections.known():
            fault = injection.fault
            if fault.node != self._node or fault.kind not in kinds or not injection.holds(at_ms):
                continue
            if hits(f"{self._seed}|{fault.text}|".encode(), word, fault.share):
                return fault
        return None
