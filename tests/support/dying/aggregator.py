"""An aggregator that kills itself at a point, once a file exists:
`python -m tests.support.dying.aggregator POINT MARKER PERMIT`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from aggregator import __main__
from aggregator.closing import reading
from aggregator.closing import window_store as closings
from aggregator.closing.closer import Closer
from aggregator.kernel import spark_reader
from aggregator.kernel.plan import ReadPlan
from aggregator.reports.consumer import ReportConsumer
from lagloss.broker.topics import BEACONS_PARTITIONS
from tests.support.dying.processes import Die, around, death

WINDOWS_PER_READ = 4
"""So that one death leaves windows for the next."""
BEACONS_PER_WINDOW = 1_188


def main() -> int:
    """Run the aggregator, to the point in the first argument."""
    point, marker, permit = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    reading.BEACONS_PER_PARTITION = WINDOWS_PER_READ * BEACONS_PER_WINDOW // BEACONS_PARTITIONS
    POINTS[point](death(point, marker, permit))
    return __main__.main()


def while_following(die: Die) -> None:
    """All of a batch is written, the transaction is open."""
    around(ReportConsumer, "_write", after=lambda _: die())


def during_the_kernel(die: Die) -> None:
    """A worker has the first facts of a partition. Nothing is written from before the read until after the merge, so
    this point stands for all between them."""
    count_partitions = spark_reader.count_partitions

    def dying(batches: Iterable[pa.RecordBatch], plan: ReadPlan) -> Iterator[pa.RecordBatch]:
        for batch in count_partitions(batches, plan):
            die()
            yield batch

    spark_reader.count_partitions = dying


def before_the_commit(die: Die) -> None:
    """The first window's rows are written, the transaction is open."""
    around(closings, "commit", after=lambda _: die())


def after_the_commit(die: Die) -> None:
    around(Closer, "_close_batch", after=lambda _: die())


POINTS: dict[str, Callable[[Die], None]] = {
    "while following": while_following,
    "during the kernel": during_the_kernel,
    "before the commit": before_the_commit,
    "after the commit": after_the_commit,
}

if __name__ == "__main__":
    sys.exit(main())
