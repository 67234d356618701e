"""Cache of pipelines' views: reads again only what changed in the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection, and_, func, select

from alerting.rules import Rule, reader_of, rules_of
from alerting.rules.jobs import MAX_RUNS, RUNS_S
from alerting.rules.time_to_loss import TimeToLoss
from alerting.rules.view import HORIZON_S, PipelineView, WaitingMessages
from alerting.rules.windows import Windows
from alerting.views.habit_cache import HabitCache
from alerting.views.tally_minutes import Minutes
from alerting.views.window_cache import StoredWindows
from lagloss.wire.format import WINDOW_S
from lagloss_server.model.definition import Definition, StoredPipeline
from lagloss_server.model.graph import Graph
from lagloss_server.rules.freshness import STALE_AFTER_S
from lagloss_server.rules.group_progress import PartitionNow
from lagloss_server.store.group_progress import read_partitions
from lagloss_server.store.partitions import DAY_S
from lagloss_server.store.schema.core import EmitterRow, MissingMessageRow, TallyRow
from lagloss_server.store.store import Store
from lagloss_server.store.task_runs import read_runs_by


class _Kept:
    """Cached state of one version of a pipeline."""

    def __init__(self, pipeline: StoredPipeline) -> None:
        self.version = pipeline.version
        self.graph = Graph(pipeline.definition)
        self.rules = {rule.name: rule for rule in rules_of(pipeline.definition)}
        self.stored = StoredWindows(pipeline.name, reader_of(pipeline.definition, self.rules.values()))
        self.watched = {name for rule in self.rules.values() for name in rule.watches}
        self.habits = HabitCache(pipeline.name, self.rules.values())


class ViewCache:
    """Views of the pipelines in a store. What was read is kept for each of them; used by one thread."""

    def __init__(self, store: Store) -> None:
        self._engine = store.engine.execution_options(isolation_level="REPEATABLE READ")
        self._kept: dict[str, _Kept] = {}
        self._minutes = Minutes()
        self._since_s: float | None = None

    def view(self, pipeline: StoredPipeline, now_s: float) -> PipelineView:
        """Return the view of a pipeline as of one moment, out of one snapshot of the database."""
        self._since_s = now_s if self._since_s is None else self._since_s
        name, kept, jobs = pipeline.name, self._of(pipeline), pipeline.definition.spec.jobs
        seen_from_s = int(now_s) - HORIZON_S
        with self._engine.begin() as connection:
            kept.stored.refresh(connection, seen_from_s)
            self._minutes.refresh(connection, now_s)
            newest_s = kept.stored.newest_s
            return PipelineView(
                definition=pipeline.definition,
                now_s=now_s,
                windows=kept.stored.windows,
                seen_from_s=seen_from_s,
                newest_end_s=None if newest_s is None else newest_s + WINDOW_S,
                newest_s=self._minutes.newest_s(name, kept.watched),
                came_from_s={source: self._minutes.came_s(name, f"{source}.in") for source in kept.graph.sources},
                reported_s=_reported_s(connection, name),
                expected=_expected(connection, name, now_s) & frozenset(kept.graph.nodes),
                waiting=_waiting(connection, pipeline.definition, kept.stored.windows, seen_from_s),
                runs=read_runs_by(connection, name, jobs, now_s - RUNS_S, limit=MAX_RUNS * len(jobs)),
                partitions=_partitions(connection, name, kept.rules.values(), now_s),
                watched_since_s=self._since_s,
                habits=kept.habits.refreshed(connection, now_s),
            )

    def rules(self, pipeline: StoredPipeline) -> Mapping[str, Rule]:
        """Return the rules of this version of a pipeline by name."""
        return self._of(pipeline).rules

    def _of(self, pipeline: StoredPipeline) -> _Kept:
        kept = self._kept.get(pipeline.name)
        if kept is None or kept.version != pipeline.version:
            kept = self._kept[pipeline.name] = _Kept(pipeline)
        return kept

    def has_read(self, pipeline: StoredPipeline) -> bool:
        """Return whether a view of this version needs to read only what changed."""
        kept = self._kept.get(pipeline.name)
        return kept is not None and kept.version == pipeline.version and kept.stored.has_read

    def forget(self, known: Iterable[str]) -> None:
        """Forget all other pipelines."""
        names = set(known)
        self._kept = {name: kept for name, kept in self._kept.items() if name in names}


def _partitions(connection: Connection, pipeline: str, rules: Iterable[Rule], now_s: float) -> Sequence[PartitionNow]:
    """Return the partitions that consumer groups read, if a rule needs them."""
    return read_partitions(connection, pipeline, now_s) if any(isinstance(rule, TimeToLoss) for rule in rules) else ()


def _reported_s(connection: Connection, pipeline: str) -> dict[str, float]:
    """Return when the last report of each node was appended."""
    last = func.max(EmitterRow.appended_at)
    rows = connection.execute(
        select(EmitterRow.node, last).where(EmitterRow.pipeline == pipeline).group_by(EmitterRow.node)
    )
    return {node: appended_at / 1_000 for node, appended_at in rows}


def _expected(connection: Connection, pipeline: str, now_s: float) -> frozenset[str]:
    """Return the nodes that reported yesterday, both at this time and as long before as a node may be silent: a job
    that starts a moment later than it did yesterday is not missed."""
    then_s = now_s - DAY_S
    before_s = then_s - STALE_AFTER_S
    ran = and_(EmitterRow.started_at <= before_s * 1_000, EmitterRow.appended_at >= then_s * 1_000)
    running = select(EmitterRow.node).where(EmitterRow.pipeline == pipeline, ran).distinct()
    minutes = {int(moment) // WINDOW_S * WINDOW_S for moment in (before_s, then_s)}
    reported = (
        select(TallyRow.node)
        .where(TallyRow.pipeline == pipeline, TallyRow.window_start.in_(minutes))
        .group_by(TallyRow.node)
        .having(func.count(TallyRow.window_start.distinct()) == len(minutes))
    )
    return frozenset(connection.execute(running.union(reported)).scalars())


def _waiting(
    connection: Connection, definition: Definition, windows: Windows, seen_from_s: int
) -> tuple[WaitingMessages, ...]:
    """Return the pending messages, if a rule needs them."""
    if not definition.spec.alerts.pending_age:
        return ()
    pending = windows.since(windows.first_at(seen_from_s))
    starts = pending.starts[pending.column("pending") > 0].tolist()
    row = MissingMessageRow
    found = connection.execute(
        select(row.places, func.count(), func.min(row.last_seen_ms))
        .where(row.pipeline == definition.name, row.window_start.in_(starts), row.kind == "pending")
        .group_by(row.places)
    )
    return tuple(WaitingMessages(tuple(places), messages, since_ms / 1_000) for places, messages, since_ms in found)
