"""A database as the closer and its roll-ups would leave it, filled by COPY.

Windows have one of some shapes, each judged and packed by the aggregator's own functions once; only pipeline and time
are put in. A shape's facts hold the times of one day, which no reader of many windows looks at. Of many pipelines only
the first `TEMPLATES` are made here, each in another phase; PostgreSQL copies them under the names of the others. The
documents of copies name the pipeline that they were copied from, which no reader of many windows looks at either.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from msgspec import structs
from sqlalchemy import Connection, Table, text, update

from benchmarks.traffic import chain, emitter_of
from lagloss.wire.format import WINDOW_S
from lagloss.wire.sketch import Sketch
from lagloss_server.judging.arithmetic import judge
from lagloss_server.judging.evidence import EmitterState, Evidence, LaneState, TallyState
from lagloss_server.judging.facts import CheckpointFacts, Pattern, WindowFacts
from lagloss_server.model.definition import Definition, as_document
from lagloss_server.model.graph import Graph, node_of
from lagloss_server.model.window import Window, on_time_counts, rfc3339
from lagloss_server.store.bulk import as_json, copy
from lagloss_server.store.engine import WINDOWS_CHANNEL
from lagloss_server.store.partitions import DAY_S, ensure_days
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from lagloss_server.sums.rollup import PERIOD_S, Period, Rollup, period_of

SHAPES: Final = 288
"""Kinds of minutes; an hour's begin at another one than the hour's before it."""
LOSSY: Final = 48
"""One kind in this many loses messages."""
TEMPLATES: Final = 48
"""Pipelines that differ from each other; the next ones repeat them."""
_PHASE: Final = 13
"""Shapes by which a pipeline is ahead of the one before: of 48 pipelines one loses messages at any time."""
MESSAGES: Final = 500
"""Messages of a window, times 2 to 8."""
DURATIONS_OF: Final = 16
"""Durations are those of one message in so many, as the aggregator takes them."""
HOUR_S: Final = 3_600
Row = Mapping[str, object]


@dataclass(frozen=True)
class Shape:
    """A kind of window."""

    result: Window
    facts: bytes
    rollup: Rollup


def node_names(count: int) -> list[str]:
    """Return the nodes of a filled pipeline."""
    return [f"node-{number}" for number in range(count)]


def fill(
    store: Store,
    names: Sequence[str],
    nodes: int,
    minutes_days: float,
    rollup_days: int,
    hours_days: int | None = None,
    *,
    lossy: int = LOSSY,
) -> int:
    """Write pipelines with windows and roll-ups of these numbers of days up to now, of the hours only the last
    `hours_days` if given, no roll-up at all of 0 days; return the last window's start. `lossy`: one window in so many
    loses messages; 0: none does."""
    last_s = int(time.time()) // WINDOW_S * WINDOW_S - 3 * WINDOW_S
    shapes = make_shapes(chain(names[0], node_names(nodes)), last_s, lossy)
    starts_s = range(last_s - round(minutes_days * DAY_S) // WINDOW_S * WINDOW_S + WINDOW_S, last_s + 1, WINDOW_S)
    rollups_from_s = last_s - rollup_days * DAY_S
    hours_from_s = rollups_from_s if hours_days is None else last_s - hours_days * DAY_S
    sums = _Sums(shapes)
    windows, rollups = tables.table_of(tables.WindowRow), tables.table_of(tables.RollupRow)
    with store.engine.begin() as connection:
        _copy(connection, tables.table_of(tables.PipelineRow), _definitions(names, nodes))
        ensure_days(connection, starts_s)
        for number, name in enumerate(names[:TEMPLATES]):
            phase = number * _PHASE
            _copy(connection, windows, _window_rows(name, shapes, starts_s, phase))
            if rollup_days:
                rows = _rollups(sums, rollups_from_s, hours_from_s, last_s, phase)
                _copy(connection, rollups, ({"pipeline": name, **row} for row in rows))
        _repeat(connection, names, windows)
        _repeat(connection, names, rollups)
        _add_emitters(connection, names, nodes)
        _mark(connection, names, last_s)
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
    return last_s


def _definitions(names: Sequence[str], nodes: int) -> Iterator[Row]:
    document = as_document(chain(names[0], node_names(nodes)))
    for name in names:
        named = {**document, "metadata": {**document["metadata"], "name": name}}
        yield {
            "name": name, "version": 1, "applied_at": 0, "definition": as_json(named), "deleted_at": None,
        }  # fmt: skip


def _repeat(connection: Connection, names: Sequence[str], table: Table) -> None:
    """Copy the rows of the first pipelines under the names of the others."""
    values = {column.name: f"row.{column.name}" for column in table.columns} | {"pipeline": "asked.name"}
    templates = "unnest(CAST(:names AS text[]), CAST(:templates AS text[])) AS asked(name, template)"
    connection.execute(
        text(
            f'INSERT INTO "{table.name}" ({", ".join(values)}) SELECT {", ".join(values.values())} '
            f'FROM {templates} JOIN "{table.name}" row ON row.pipeline = asked.template'
        ),
        {
            "names": list(names[TEMPLATES:]),
            "templates": [names[index % TEMPLATES] for index in range(TEMPLATES, len(names))],
        },
    )


def add_minute(store: Store, names: Sequence[str], nodes: int, start_s: int, lossy: Collection[str] = ()) -> None:
    """Write a window of each pipeline that starts then, and notify of it, as if all nodes had just reported. Only the
    `lossy` ones lose messages."""
    shapes = _shapes_of_minute(nodes, start_s)
    to_loss = -start_s // WINDOW_S  # phase of the first shape, which is lossy, as the next one is not
    starts_s = range(start_s, start_s + 1, WINDOW_S)
    with store.engine.begin() as connection:
        ensure_days(connection, starts_s)
        rows = (row for name in names for row in _window_rows(name, shapes, starts_s, to_loss + (name not in lossy)))
        _copy(connection, tables.table_of(tables.WindowRow), rows)
        now_ms = int(time.time() * 1_000)
        connection.execute(
            update(tables.EmitterRow).where(tables.is_any(tables.EmitterRow.pipeline, names)).values(appended_at=now_ms)
        )
        heard = text("SELECT pg_notify(:channel, name || :start) FROM unnest(CAST(:names AS text[])) AS asked(name)")
        connection.execute(heard, {"channel": WINDOWS_CHANNEL, "start": f"/{start_s}", "names": list(names)})


@lru_cache(maxsize=1)
def _shapes_of_minute(nodes: int, start_s: int) -> list[Shape]:
    return make_shapes(chain("minute", node_names(nodes)), start_s)


def make_shapes(definition: Definition, start_s: int, lossy: int = LOSSY) -> list[Shape]:
    """All kinds of windows of a pipeline; every result is the closer's judgement of its facts."""
    graph, rng = definition.graph, np.random.default_rng(1)
    return [
        _shape(graph, number, start_s, rng, is_lossy=bool(lossy) and number % lossy == 0) for number in range(SHAPES)
    ]


def _shape(graph: Graph, number: int, start_s: int, rng: np.random.Generator, *, is_lossy: bool) -> Shape:
    messages = (2 + number % 7) * MESSAGES
    lost = messages // 50 if is_lossy else 0
    pipeline, path = graph.definition.name, [name for name in graph.checkpoints if name.endswith((".in", ".out"))]
    break_at = len(path) // 2
    lag_ms = np.zeros(messages)
    checkpoints, durations = {}, {}
    for index, name in enumerate(path):
        count = messages - (lost if index >= break_at else 0)
        stays_ms = rng.exponential(20 + 15 * (number % 11), count)
        lag_ms = lag_ms[:count] + stays_ms
        lags = Sketch.of(lag_ms)
        checkpoints[name] = CheckpointFacts(count, 0, count, 0, lags)
        if index:
            durations[graph.spans[index - 1][0]] = Sketch.of(stays_ms[::DURATIONS_OF])
    on_time = int((lag_ms <= graph.definition.spec.sla.lag.target).mean() * (messages - lost))
    seen_ms = start_s * 1_000.0
    patterns = [Pattern(graph.mask(path), messages - lost, (on_time,))]
    if lost:
        patterns.append(Pattern(graph.mask(path[:break_at]), lost, (), seen_ms, seen_ms))
    facts = WindowFacts(
        patterns=tuple(patterns), checkpoints=checkpoints, arrivals=(lags,), durations=durations,
        read={(emitter_of(pipeline, node_of(name)), name, None): checkpoints[name].beacons for name in path},
        partitions=frozenset([8]),
    )  # fmt: skip
    result = judge(graph, facts, _evidence(graph, facts, start_s))
    rollup = Rollup.of_window(result, facts)
    return Shape(result, facts.pack(), rollup)


def _evidence(graph: Graph, facts: WindowFacts, start_s: int) -> Evidence:
    """Return complete evidence: final reports of every node, and progress of every place."""
    now_ms = (start_s + 3 * WINDOW_S) * 1_000
    name = graph.definition.name
    return Evidence(
        start_s,
        now_ms,
        emitters=[
            EmitterState(emitter_of(name, node), node, 0, now_ms, False, start_s + WINDOW_S, now_ms, start_s)
            for node in graph.nodes
        ],
        tallies=[
            TallyState(emitter, node_of(checkpoint), checkpoint, None, beacons, 0)
            for (emitter, checkpoint, _), beacons in facts.read.items()
        ],
        lanes=[LaneState(checkpoint, now_ms) for checkpoint in facts.checkpoints],
    )


def _number(start_s: int, phase: int) -> int:
    """Return the shape of a pipeline's window."""
    return (start_s // WINDOW_S + phase) % SHAPES


def _window_rows(name: str, shapes: Sequence[Shape], starts_s: range, phase: int) -> Iterator[Row]:
    for start_s in starts_s:
        number = _number(start_s, phase)
        result, closed_ms = shapes[number].result, (start_s + 2 * WINDOW_S) * 1_000
        on_time, on_time_of = on_time_counts(result)
        yield {
            "pipeline": name,
            "window_start": start_s,
            "state": "closed",
            "revision": 1,
            **{column: getattr(result, column) for column in ("verdict", "messages", "delivered", "pending")},
            "lost_min": result.lost_min,
            "lost_max": result.lost_max,
            "on_time": on_time,
            "on_time_of": on_time_of,
            "e2e_p95_ms": result.e2e_lag_ms.p95,
            "history": False,
            "closed_at": closed_ms,
            "judged_at": closed_ms,
            "basis": 1,
            "deadline": None,
            "log_start": as_json([]),
            "document": structs.replace(result, pipeline=name, window_start=rfc3339(start_s)).pack(),
            "facts": shapes[number].facts,
        }


class _Sums:
    """Roll-ups of stretches of windows; those of the same shapes are summed and packed once."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self._shapes = shapes
        self._known: dict[tuple[int, int], tuple[Rollup, Row]] = {}

    def of(self, starts_s: range, phase: int) -> tuple[Rollup, Row]:
        """Return the roll-up, and its columns."""
        key = _number(starts_s[0], phase), len(starts_s)
        if key not in self._known:
            if len(starts_s) <= HOUR_S // WINDOW_S:
                total = Rollup.merged(self._shapes[_number(start_s, phase)].rollup for start_s in starts_s)
            else:
                hours = range(starts_s[0], starts_s[-1] + 1, HOUR_S)
                ends = (min(hour_s + HOUR_S, starts_s[-1] + WINDOW_S) for hour_s in hours)
                parts = (range(*ends_of, WINDOW_S) for ends_of in zip(hours, ends, strict=True))
                total = Rollup.merged(self.of(part, phase)[0] for part in parts)
            self._known[key] = total, {**total.headline(), "packed": total.pack()}
        return self._known[key]


def _rollups(sums: _Sums, from_s: int, hours_from_s: int, last_s: int, phase: int) -> Iterator[Row]:
    """Yield rows of hours and days, without the pipeline."""
    lengths: dict[Period, int] = {"hour": hours_from_s, "day": from_s}
    for period, first_s in lengths.items():
        for start_s in range(period_of(period, first_s), last_s + 1, PERIOD_S[period]):
            ends_s = min(start_s + PERIOD_S[period], last_s + WINDOW_S)
            _, columns = sums.of(range(start_s, ends_s, WINDOW_S), phase)
            yield {"period": period, "start": start_s, "computed_at": ends_s * 1_000, **columns}


def _add_emitters(connection: Connection, names: Sequence[str], nodes: int) -> None:
    now_ms = int(time.time() * 1_000)
    rows = (
        {
            "pipeline": name, "emitter": emitter_of(name, node), "node": node, "host": "bench",
            "seq": 1, "started_at": 0, "sent_at": now_ms, "closed": False, "final_through": now_ms // 1_000,
            "appended_at": now_ms,
        }
        for name in names
        for node in node_names(nodes)
    )  # fmt: skip
    _copy(connection, tables.table_of(tables.EmitterRow), rows)


def _mark(connection: Connection, names: Sequence[str], last_s: int) -> None:
    """Mark the hour and day of the newest window to be computed anew, as they are while windows are closed."""
    starts = {period: period_of(period, last_s) for period in PERIOD_S}
    rows = (
        {"pipeline": name, "period": period, "start": start, "dirty_since": last_s * 1_000}
        for name in names
        for period, start in starts.items()
    )
    _copy(connection, tables.table_of(tables.RollupDirtyRow), rows)


def _copy(connection: Connection, table: Table, rows: Iterable[Row]) -> None:
    """Every row has the same columns; the others are left to their defaults."""
    rows = iter(rows)
    first = next(rows)
    copy(connection, table, list(first), (list(row.values()) for row in itertools.chain([first], rows)))
