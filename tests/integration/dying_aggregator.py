"""An aggregator that kills itself with SIGKILL at a point: `python -m tests.integration.dying_aggregator POINT MARKER`.

The functions of the aggregator are wrapped here; nothing in it knows of this. MARKER is a file that is written just
before the end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from aggregator import __main__, closing, closings, reading
from aggregator.following import ReportFollower
from aggregator.plan import ReadPlan

WINDOWS_A_READ = 4
"""So that one death leaves windows for the next."""
BEACONS_A_WINDOW = 1_188


def main() -> int:
    """Run the aggregator, to the point in the first argument."""
    point, marker = sys.argv[1], Path(sys.argv[2])
    driver = os.getpid()

    def die() -> None:  # in the driver, or in Spark's Python workers, several of them at once
        draft = marker.with_suffix(f".{os.getpid()}")
        draft.write_text(point)
        draft.replace(marker)
        os.kill(driver, signal.SIGKILL)

    closing.BEACONS_A_READ = WINDOWS_A_READ * BEACONS_A_WINDOW
    POINTS[point](die)
    return __main__.main()


def around(owner: Any, name: str, *, before: Callable[[], None] | None = None, after: Callable[[], None] | None = None):  # type: ignore[no-untyped-def]
    """Call something before or after each call of `owner.name`."""
    whole = getattr(owner, name)

    def wrapped(*args: Any, **named: Any) -> Any:
        if before is not None:
            before()
        result = whole(*args, **named)
        if after is not None:
            after()
        return result

    setattr(owner, name, wrapped)


def while_following(die: Callable[[], None]) -> None:
    """All of a batch is written, the transaction is open."""
    around(ReportFollower, "_write", after=die)


def before_the_read(die: Callable[[], None]) -> None:
    around(reading.BlockReader, "read", before=die)


def during_the_kernel(die: Callable[[], None]) -> None:
    """A worker has the first facts of a partition."""
    count_partitions = reading.count_partitions

    def dying(batches: Iterable[pa.RecordBatch], plan: ReadPlan) -> Iterator[pa.RecordBatch]:
        for batch in count_partitions(batches, plan):
            die()
            yield batch

    reading.count_partitions = dying


def after_the_merge(die: Callable[[], None]) -> None:
    around(reading.BlockReader, "read", after=die)


def before_the_commit(die: Callable[[], None]) -> None:
    """The first window's rows are written, the transaction is open."""
    around(closings, "commit", after=die)


def after_the_commit(die: Callable[[], None]) -> None:
    around(closing.Closer, "_close_read", after=die)


POINTS: dict[str, Callable[[Callable[[], None]], None]] = {
    "while following": while_following,
    "before the read": before_the_read,
    "during the kernel": during_the_kernel,
    "after the merge": after_the_merge,
    "before the commit": before_the_commit,
    "after the commit": after_the_commit,
}

if __name__ == "__main__":
    sys.exit(main())
