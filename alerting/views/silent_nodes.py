"""Nodes that reported yesterday at this time, and when each reported last, of many pipelines at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from sqlalchemy import Connection, and_, func, select

from lagloss.wire.format import WINDOW_S
from lagloss_server.judging.freshness import STALE_AFTER_S
from lagloss_server.store.partitions import DAY_S
from lagloss_server.store.schema.core import EmitterRow, TallyRow, is_any

_LAST = func.max(EmitterRow.appended_at)


def read_reported_s(connection: Connection, pipelines: Collection[str]) -> dict[str, dict[str, float]]:
    """Return when the last report of each node was appended (epoch s), by pipeline."""
    rows = connection.execute(
        select(EmitterRow.pipeline, EmitterRow.node, _LAST)
        .where(is_any(EmitterRow.pipeline, pipelines))
        .group_by(EmitterRow.pipeline, EmitterRow.node)
    )
    reported_s: dict[str, dict[str, float]] = defaultdict(dict)
    for pipeline, node, appended_at in rows:
        reported_s[pipeline][node] = appended_at / 1_000
    return reported_s


def read_expected(connection: Connection, pipelines: Collection[str], now_s: float) -> dict[str, frozenset[str]]:
    """Return the nodes that reported yesterday, both at this time and as long before as a node may be silent, by
    pipeline: a job that starts a moment later than it did yesterday is not missed."""
    then_s = now_s - DAY_S
    before_s = then_s - STALE_AFTER_S
    ran = and_(EmitterRow.started_at <= before_s * 1_000, EmitterRow.appended_at >= then_s * 1_000)
    running = select(EmitterRow.pipeline, EmitterRow.node).where(is_any(EmitterRow.pipeline, pipelines), ran).distinct()
    minutes = {int(moment) // WINDOW_S * WINDOW_S for moment in (before_s, then_s)}
    reported = (
        select(TallyRow.pipeline, TallyRow.node)
        .where(is_any(TallyRow.pipeline, pipelines), TallyRow.window_start.in_(minutes))
        .group_by(TallyRow.pipeline, TallyRow.node)
        .having(func.count(TallyRow.window_start.distinct()) == len(minutes))
    )
    return _by_pipeline(connection.execute(running.union(reported)))


def read_silent(connection: Connection, now_s: float) -> dict[str, frozenset[str]]:
    """Return the nodes of any pipeline that have been silent for longer than a node may be and reported yesterday at
    this time. A node without a report that retention kept did not."""
    since_ms = (now_s - STALE_AFTER_S) * 1_000
    nodes = select(EmitterRow.pipeline, EmitterRow.node).group_by(EmitterRow.pipeline, EmitterRow.node)
    silent = _by_pipeline(connection.execute(nodes.having(since_ms >= _LAST)))
    if not silent:
        return {}
    expected = read_expected(connection, silent, now_s)
    silent_nodes = {pipeline: nodes & expected.get(pipeline, frozenset()) for pipeline, nodes in silent.items()}
    return {pipeline: nodes for pipeline, nodes in silent_nodes.items() if nodes}


def _by_pipeline(rows: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    nodes_by_pipeline: dict[str, set[str]] = defaultdict(set)
    for pipeline, node in rows:
        nodes_by_pipeline[pipeline].add(node)
    return {pipeline: frozenset(nodes) for pipeline, nodes in nodes_by_pipeline.items()}
