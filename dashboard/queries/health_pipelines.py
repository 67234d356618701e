"""Health of each pipeline's newest minutes and emitters: windows due, and who has fallen silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from sqlalchemy import Select, func, select, text, true

from dashboard.queries.condition import Freshness, is_lately, names_of
from dashboard.queries.consumer_lag import LagNow, read_lag_now
from lagloss.wire.format import WINDOW_S
from lagloss_server.judging.freshness import STALE_AFTER_S, due_ms, newest_due_s
from lagloss_server.model.time_range import TimeRange
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.emitters import is_awaited, is_heard, is_silent
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store

LOOKED_BACK_S: Final = 3 * 3_600
"""How far before its newest closed window a pipeline is searched for windows that were passed over."""
SILENT_LISTED: Final = 1_000
"""Silent emitters that are named; all are counted with their nodes."""


class ClosingDocument(TypedDict):
    """How far a pipeline is closed: see `PipelineClosing`."""

    pipeline: str
    newest_closed: str | None
    due: int
    oldest_due: str | None


class NodeDocument(TypedDict):
    """The emitters of a node: see `NodeHealth`."""

    pipeline: str
    node: str
    reporting: int
    silent: int
    awaited: int
    long_dead: int
    closed: int
    last_report: str
    consumer_lag: LagNow | None


class SilentDocument(TypedDict):
    """An emitter that fell silent: see `SilentEmitter`."""

    pipeline: str
    node: str
    host: str
    emitter: str
    last_report: str
    awaited: bool


@dataclass(frozen=True, slots=True)
class PipelineClosing:
    """How far a pipeline is closed. `newest_s`: start of its newest closed window; `due`: windows that could be closed
    and are not; `oldest_due_s`: start of the oldest of them. Epoch s; None where there is none."""

    pipeline: str
    newest_s: int | None
    due: int
    oldest_due_s: int | None
    grace_ms: int

    def waits_s(self, now_s: float) -> float:
        """Return how long the oldest due window has waited since it could be closed; 0 where none is due."""
        return 0.0 if self.oldest_due_s is None else max(0.0, now_s - due_ms(self.oldest_due_s, self.grace_ms) / 1_000)

    def is_late(self, now_s: float) -> bool:
        return self.waits_s(now_s) > STALE_AFTER_S

    def document(self) -> ClosingDocument:
        return {
            "pipeline": self.pipeline,
            "newest_closed": None if self.newest_s is None else rfc3339(self.newest_s),
            "due": self.due,
            "oldest_due": None if self.oldest_due_s is None else rfc3339(self.oldest_due_s),
        }


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """The emitters of a node, by how they are. `silent`: neither closed nor heard for a minute, within the last day;
    `awaited` of them so lately that windows still wait for them; `long_dead`: silent for more than a day. `reported_s`:
    when any of them was last heard (epoch s). `consumer_lag`: of its consumer group, None where none is known."""

    pipeline: str
    node: str
    reporting: int
    silent: int
    awaited: int
    long_dead: int
    closed: int
    reported_s: float
    consumer_lag: LagNow | None = None

    @property
    def is_bad(self) -> bool:
        """Whether something is missing: windows wait for an emitter, or all that were there have fallen silent."""
        return self.awaited > 0 or (self.silent > 0 and not self.reporting)

    def document(self) -> NodeDocument:
        return {
            "pipeline": self.pipeline,
            "node": self.node,
            "reporting": self.reporting,
            "silent": self.silent,
            "awaited": self.awaited,
            "long_dead": self.long_dead,
            "closed": self.closed,
            "last_report": rfc3339(self.reported_s),
            "consumer_lag": self.consumer_lag,
        }


@dataclass(frozen=True, slots=True)
class SilentEmitter:
    """An emitter that has neither closed nor been heard for a minute. `reported_s`: when it was last heard (epoch s);
    `is_awaited`: so lately that windows still wait for it. The minutes around its last report stay incomplete."""

    pipeline: str
    node: str
    host: str
    emitter: str
    reported_s: float
    is_awaited: bool

    def document(self) -> SilentDocument:
        return {
            "pipeline": self.pipeline,
            "node": self.node,
            "host": self.host,
            "emitter": self.emitter,
            "last_report": rfc3339(self.reported_s),
            "awaited": self.is_awaited,
        }


@dataclass(frozen=True, slots=True)
class Host:
    """How far a host's clock is behind the broker's, in ms; negative: ahead. Of the emitters heard in the last hour."""

    host: str
    skew_ms: int
    emitters: int


def read_closings(
    store: Store, graces_ms: Mapping[str, int], fresh: Mapping[str, Freshness], now_s: float
) -> list[PipelineClosing]:
    """Return how far each pipeline is closed: the longest waiting first."""
    names = list(graces_ms)
    first = _read_first_tally(store, [name for name in names if fresh[name].newest_s is None])
    ranges: dict[str, TimeRange] = {}
    for name in names:
        last_s = newest_due_s(now_s * 1_000, graces_ms[name])
        newest_s = fresh[name].newest_s
        from_s = first.get(name) if newest_s is None else newest_s - LOOKED_BACK_S
        if from_s is not None and from_s <= last_s:
            ranges[name] = TimeRange(from_s, last_s + WINDOW_S)
    missing = _read_missing(store, ranges)
    closings = [
        PipelineClosing(name, fresh[name].newest_s, *missing.get(name, (0, None)), grace_ms)
        for name, grace_ms in graces_ms.items()
    ]
    return sorted(closings, key=lambda closing: (-closing.waits_s(now_s), closing.newest_s or 0, closing.pipeline))


def _read_first_tally(store: Store, pipelines: Sequence[str]) -> dict[str, int]:
    """Return for pipelines without a closed window where the first is due."""
    names, tally = names_of(pipelines), tables.TallyRow
    first = (
        select(tally.window_start)
        .where(tally.pipeline == names.c.name)
        .order_by(tally.window_start)
        .limit(1)
        .lateral("first")
    )
    statement = select(names.c.name, first.c.window_start).select_from(names.join(first, true()))
    with store.engine.connect() as connection:
        return {row.name: row.window_start for row in connection.execute(statement)}


_MISSING: Final = text("""
    SELECT asked.name, count(*) AS due, min(minute.start) AS oldest_s
    FROM unnest(CAST(:names AS text[]), CAST(:firsts AS bigint[]), CAST(:ends AS bigint[]))
        AS asked(name, from_s, to_s)
    CROSS JOIN LATERAL (
        SELECT coalesce(min(window_start), asked.from_s) AS start FROM "window"
        WHERE pipeline = asked.name AND window_start >= asked.from_s
    ) known
    CROSS JOIN LATERAL generate_series(known.start, asked.to_s - :window_s, :window_s) AS minute(start)
    WHERE NOT EXISTS (SELECT FROM "window" WHERE pipeline = asked.name AND window_start = minute.start)
    GROUP BY asked.name
""")


def _read_missing(store: Store, ranges: Mapping[str, TimeRange]) -> dict[str, tuple[int, int | None]]:
    """Return how many minutes of each range have no window, counted from the first that there is one of,
    and the oldest of them."""
    edges = {"firsts": [some.from_s for some in ranges.values()], "ends": [some.to_s for some in ranges.values()]}
    parameters = {"names": list(ranges), **edges, "window_s": WINDOW_S}
    with store.engine.connect() as connection:
        return {row.name: (row.due, row.oldest_s) for row in connection.execute(_MISSING, parameters)}


def read_nodes(store: Store, pipelines: Sequence[str], now_s: float) -> list[NodeHealth]:
    """Return every node that ever reported: what is bad first, then by when it was last heard."""
    row, now_ms = tables.EmitterRow, int(now_s * 1_000)
    silent, lately = is_silent(now_ms), is_lately(now_ms)
    query: Select[*tuple[Any, ...]] = (
        select(
            row.pipeline,
            row.node,
            func.count().filter(~row.closed & is_heard(now_ms)).label("reporting"),
            func.count().filter(silent & lately).label("silent"),
            func.count().filter(silent & is_awaited(now_ms)).label("awaited"),
            func.count().filter(silent & ~lately).label("long_dead"),
            func.count().filter(row.closed).label("closed"),
            (func.max(row.appended_at) / 1_000.0).label("reported_s"),
        )
        .where(tables.is_any(row.pipeline, pipelines))
        .group_by(row.pipeline, row.node)
    )
    lags = read_lag_now(store, pipelines, now_s)
    with store.engine.connect() as connection:
        nodes = [
            NodeHealth(
                **{**row._mapping, "reported_s": float(row.reported_s)},
                consumer_lag=lags.get((row.pipeline, row.node)),
            )
            for row in connection.execute(query)
        ]
    return sorted(
        nodes, key=lambda node: (not node.is_bad, not node.silent, -node.reported_s, node.pipeline, node.node)
    )


def read_silent(store: Store, pipelines: Sequence[str], now_s: float) -> list[SilentEmitter]:
    """Emitters that fell silent within a day, the last first; of very many the last `SILENT_LISTED`."""
    row, now_ms = tables.EmitterRow, int(now_s * 1_000)
    statement = (
        select(row.pipeline, row.node, row.host, row.emitter, row.appended_at, is_awaited(now_ms))
        .where(tables.is_any(row.pipeline, pipelines), is_silent(now_ms), is_lately(now_ms))
        .order_by(row.appended_at.desc(), row.pipeline, row.node, row.emitter)
        .limit(SILENT_LISTED)
    )
    with store.engine.connect() as connection:
        return [
            SilentEmitter(name, node, host, emitter.hex(), appended_ms / 1_000, is_awaited)
            for name, node, host, emitter, appended_ms, is_awaited in connection.execute(statement)
        ]


def read_hosts(store: Store, pipelines: Sequence[str], now_s: float) -> list[Host]:
    """Return the hosts of emitters that were heard in the last hour: the clock that is furthest off first."""
    row = tables.EmitterRow
    query: Select[*tuple[Any, ...]] = (
        select(
            row.host,
            func.min(row.skew_ms).label("least"),
            func.max(row.skew_ms).label("most"),
            func.count().label("emitters"),
        )
        .where(tables.is_any(row.pipeline, pipelines), row.appended_at >= int(now_s * 1_000) - 3_600_000)
        .group_by(row.host)
    )
    with store.engine.connect() as connection:
        hosts = [Host(row.host, max(row.least, row.most, key=abs), row.emitters) for row in connection.execute(query)]
    return sorted(hosts, key=lambda host: (-abs(host.skew_ms), host.host))
