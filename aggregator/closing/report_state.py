"""State of reports that a judgement of some windows needs, as PostgreSQL holds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Table, func, select, text

from lagloss.wire.format import OffsetRange, unpack_each_ranges
from lagloss.wire.sketch import Sketch
from lagloss_server.judging.evidence import EmitterState, LaneState, TallyState
from lagloss_server.queries.emitters import is_heard, read_emitters, read_whole_from
from lagloss_server.queries.offset_ranges import is_doubtful
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.core import at_places, is_any
from lagloss_server.store.store import read_basis

WindowKey = tuple[str, int]
"""(pipeline, window start in epoch s)."""
Windows = Sequence[WindowKey]


def of_windows(table: Table, windows: Windows) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for rows of these windows."""
    return at_places(table.c.pipeline, table.c.window_start, windows)


@dataclass(frozen=True)
class ReportState:
    """State of reports for some windows, all as of one position (`basis`). `changed`: the basis of the last change
    of any tally of a window; `doubtful`: windows with a tally that names more of the log than its beacons explain;
    `whole_from`: since when no report is missing that was appended (epoch ms)."""

    basis: int
    emitters: Mapping[str, Sequence[EmitterState]]
    lanes: Mapping[str, Sequence[LaneState]]
    tallies: Mapping[WindowKey, Sequence[TallyState]]
    ranges: Mapping[WindowKey, Sequence[OffsetRange]]
    changed: Mapping[WindowKey, int] = field(default_factory=dict)
    doubtful: AbstractSet[WindowKey] = frozenset()
    whole_from: int = 0


def largest_skew_ms(connection: Connection, now_ms: int) -> int:
    """Return the largest clock difference (ms) between the broker and an emitter that is neither closed nor silent."""
    emitter = tables.EmitterRow
    largest = select(func.coalesce(func.max(func.abs(emitter.skew_ms)), 0)).where(~emitter.closed, is_heard(now_ms))
    return int(connection.execute(largest).scalar_one())


def load_report_state(connection: Connection, windows: Windows, now_ms: int) -> ReportState:
    """Load the state of reports for these windows; the connection must be in a REPEATABLE READ transaction."""
    pipelines = sorted({pipeline for pipeline, _ in windows})
    tallies: dict[WindowKey, list[TallyState]] = {window: [] for window in windows}
    ranges: dict[WindowKey, list[OffsetRange]] = {window: [] for window in windows}
    changed: dict[WindowKey, int] = {}
    doubtful: set[WindowKey] = set()
    tally = tables.table_of(tables.TallyRow)
    rows = list(_tally_rows(connection, windows, [column for column in tally.c if column.name != "sketch"]))
    for row, places in zip(rows, unpack_each_ranges([row.ranges for row in rows]), strict=True):
        window = (row.pipeline, row.window_start)
        tallies[window].append(_tally_state(row))
        ranges[window].extend(places)
        if is_doubtful(places, row.beacons):
            doubtful.add(window)
        changed[window] = max(row.changed_basis, changed.get(window, 0))
    return ReportState(
        basis=read_basis(connection),
        emitters=read_emitters(connection, pipelines, now_ms),
        lanes=_read_lanes(connection, pipelines),
        tallies=tallies,
        ranges=ranges,
        changed=changed,
        doubtful=doubtful,
        whole_from=read_whole_from(connection),
    )


def _tally_state(row: Any) -> TallyState:
    return TallyState(
        row.emitter,
        row.node,
        row.checkpoint,
        row.replay or None,
        row.beacons,
        row.dropped,
        row.sample,
        row.id_sum,
        row.payload_bytes,
    )


def _tally_rows(connection: Connection, windows: Windows, columns: Iterable[Column[Any]]) -> Iterator[Any]:
    table = tables.table_of(tables.TallyRow)
    yield from connection.execute(select(*columns).where(*of_windows(table, windows)))


def _read_lanes(connection: Connection, pipelines: Sequence[str]) -> dict[str, list[LaneState]]:
    lane = tables.LaneRow
    rows = connection.execute(
        select(lane.pipeline, lane.checkpoint, lane.until, lane.holder, lane.lane, lane.reporter).where(
            is_any(lane.pipeline, pipelines)
        )
    )
    lanes_by_pipeline: dict[str, list[LaneState]] = {pipeline: [] for pipeline in pipelines}
    for row in rows:
        lanes_by_pipeline[row.pipeline].append(
            LaneState(row.checkpoint, row.until, row.holder or None, row.lane, row.reporter)
        )
    return lanes_by_pipeline


def newest_with_beacons(connection: Connection, spans: Mapping[str, tuple[int, int]]) -> dict[str, dict[str, int]]:
    """Return, by pipeline and checkpoint, the newest window with beacons that is later than the first and at most the
    second of the two given windows."""
    newest: dict[str, dict[str, int]] = {pipeline: {} for pipeline in spans}
    if spans:
        rows = connection.execute(
            text(
                "SELECT t.pipeline, checkpoint, max(window_start) AS newest"
                " FROM unnest(CAST(:names AS text[]), CAST(:after AS bigint[]), CAST(:due AS bigint[]))"
                " asked(pipeline, after, due) JOIN tally t ON t.pipeline = asked.pipeline AND beacons > 0"
                " AND window_start > after AND window_start <= due GROUP BY t.pipeline, checkpoint"
            ),
            {
                "names": list(spans),
                "after": [after for after, _ in spans.values()],
                "due": [due for _, due in spans.values()],
            },
        )
        for row in rows:
            newest[row.pipeline][row.checkpoint] = row.newest
    return newest


def read_sketches(connection: Connection, windows: Windows) -> dict[WindowKey, list[tuple[TallyState, Sketch]]]:
    """Read the tallies of these windows with their lag sketches."""
    tallies: dict[WindowKey, list[tuple[TallyState, Sketch]]] = {window: [] for window in windows}
    for row in _tally_rows(connection, windows, tables.table_of(tables.TallyRow).c):
        tallies[row.pipeline, row.window_start].append((_tally_state(row), Sketch.from_bytes(row.sketch)))
    return tallies
