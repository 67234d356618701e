"""Emitters as the reports left them in PostgreSQL, and where blocks of those that died may lie without a tally."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from sqlalchemy import ColumnElement, Connection, case, func, select

from lagloss.wire.format import OffsetRange
from lagloss_server.judging.clock_skew import Skew
from lagloss_server.judging.evidence import EmitterState
from lagloss_server.judging.freshness import EXPECTED_FOR_MS, SILENT_AFTER_MS
from lagloss_server.model.time_range import TimeRange
from lagloss_server.queries.offset_ranges import Watermarks, widest_gaps
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.core import is_any

DISTURBED_MS = 60_000
"""Windows whose tally an emitter changed this long before its last report are in doubt once it falls silent."""
DYING_MS = 10_000
"""A dead emitter's blocks may lie in the log up to this long after its last report."""
BUCKET_MS: Final = 10_000
"""The broker is asked where full tens of seconds lie, so that emitters that died together share an answer."""
MOST_SPANS: Final = 50
"""Times around last reports that the broker is asked for, at most: of more, the nearest are joined."""


def is_heard(now_ms: int) -> ColumnElement[bool]:
    """Return the condition for an emitter, closed or not, that reported lately enough not to be silent."""
    return tables.EmitterRow.appended_at >= now_ms - SILENT_AFTER_MS


def is_silent(now_ms: int) -> ColumnElement[bool]:
    """Return `EmitterState.is_silent` as a condition on the table."""
    return ~tables.EmitterRow.closed & ~is_heard(now_ms)


def is_awaited(now_ms: int) -> ColumnElement[bool]:
    """Return the condition for an emitter that windows which end now still expect, if it is silent."""
    return tables.EmitterRow.appended_at >= now_ms - EXPECTED_FOR_MS


def read_emitters(connection: Connection, pipelines: Sequence[str], now_ms: int) -> dict[str, list[EmitterState]]:
    """Return the newest report of every emitter, by pipeline.

    Where its silence begins to matter is looked up only for emitters that are silent: it takes all their tallies.
    """
    emitter, tally = tables.table_of(tables.EmitterRow), tables.table_of(tables.TallyRow)
    disturbed = (
        select(func.min(tally.c.window_start))
        .where(
            tally.c.emitter == emitter.c.emitter,
            tally.c.pipeline == emitter.c.pipeline,
            tally.c.changed_at >= emitter.c.appended_at - DISTURBED_MS,
        )
        .scalar_subquery()
    )
    last_window = emitter.c.appended_at // 60_000 * 60
    rows = connection.execute(
        select(
            emitter,
            case((is_silent(now_ms), func.coalesce(disturbed, last_window)), else_=last_window).label("disturbed_from"),
        ).where(is_any(emitter.c.pipeline, pipelines))
    )
    states: dict[str, list[EmitterState]] = {pipeline: [] for pipeline in pipelines}
    for row in rows:
        states[row.pipeline].append(
            EmitterState(
                row.emitter,
                row.node,
                row.started_at,
                row.sent_at,
                row.closed,
                row.final_through,
                row.appended_at,
                int(row.disturbed_from),
                Skew.stored(row.skew),
                row.resumes,
                frozenset(row.inputs),
                row.unfinished,
            )
        )
    return states


def read_whole_from(connection: Connection) -> int:
    """Return since when no report is missing that was appended (epoch ms); 0 if none ever was."""
    whole_from = func.coalesce(func.max(tables.ReportsPositionRow.whole_from), 0)
    return int(connection.execute(select(whole_from)).scalar_one())


def crowded(connection: Connection, pipelines: Collection[str], most: int) -> set[str]:
    """Return which of these pipelines have more than `most` emitters."""
    emitter = tables.EmitterRow
    counted = select(emitter.pipeline).where(is_any(emitter.pipeline, sorted(pipelines))).group_by(emitter.pipeline)
    return set(connection.execute(counted.having(func.count() > most)).scalars())


def last_words(
    offsets_at: Callable[[int], Mapping[int, int]], silent: Iterable[EmitterState], watermarks: Mapping[int, Watermarks]
) -> list[OffsetRange]:
    """Return the ranges around the last report of each silent emitter, in every partition.

    `offsets_at`: as `BeaconLog.offsets_at`. It is asked at full tens of seconds, `MOST_SPANS` times two at most.
    """
    ranges = []
    for span in _merged_ranges({state.appended_at for state in silent}):
        first, last = offsets_at(1_000 * span.from_s), offsets_at(1_000 * span.to_s)
        ranges += [OffsetRange(partition, first[partition], last[partition]) for partition in watermarks]
    return ranges


def _merged_ranges(ends_ms: Collection[int]) -> list[TimeRange]:
    """Return the times that begin `DYING_MS` before one of these (epoch ms) and end as long after it, rounded to full
    buckets and merged; the nearest of them, too, so that there are `MOST_SPANS` at most."""
    around = [_range_around(end_ms) for end_ms in sorted(ends_ms)]
    splits = widest_gaps([after.from_s - before.to_s for before, after in pairwise(around)], MOST_SPANS)
    begins = [span.from_s for index, span in enumerate(around) if index == 0 or index - 1 in splits]
    ends = [span.to_s for index, span in enumerate(around) if index == len(around) - 1 or index in splits]
    return list(map(TimeRange, begins, ends))


def _range_around(end_ms: int) -> TimeRange:
    bucket_s = BUCKET_MS // 1_000
    return TimeRange((end_ms - DYING_MS) // BUCKET_MS * bucket_s, -(-(end_ms + DYING_MS) // BUCKET_MS) * bucket_s)
