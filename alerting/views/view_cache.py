"""Cache of pipelines' views: reads again only what changed in the database."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, func, select

from alerting.rules import Rule, reader_of, rules_of
from alerting.rules.jobs import MAX_RUNS, runs_s
from alerting.rules.lost_afterwards import LostAfterwards
from alerting.rules.time_to_loss import TimeToLoss
from alerting.rules.view import HORIZON_S, PipelineView, WaitingMessages
from alerting.rules.windows import Windows
from alerting.views import judged_windows
from alerting.views.habit_cache import HabitCache
from alerting.views.silent_nodes import read_expected, read_reported_s
from alerting.views.tally_minutes import Minutes
from alerting.views.window_cache import StoredWindows, read_named
from lagloss.wire.format import WINDOW_S
from lagloss_server.groups.progress import PartitionNow
from lagloss_server.groups.progress_store import read_partitions
from lagloss_server.incidents.lost_afterwards import LostMinute
from lagloss_server.incidents.lost_afterwards_store import read_outstanding
from lagloss_server.model.definition import Definition, StoredPipeline
from lagloss_server.runs.run_store import read_runs_by
from lagloss_server.store.schema.core import MissingMessageRow
from lagloss_server.store.store import Store


class _Kept:
    """Cached state of one version of a pipeline."""

    def __init__(self, pipeline: StoredPipeline, engine: Engine) -> None:
        graph = pipeline.definition.graph
        self.pipeline = pipeline
        self.nodes, self.sources = frozenset(graph.nodes), graph.sources
        self.rules = {rule.name: rule for rule in rules_of(pipeline.definition)}
        self.stored = StoredWindows(pipeline.name, reader_of(pipeline.definition, self.rules.values()), engine)
        self.watched = {name for rule in self.rules.values() for name in rule.watches}
        self.habits = HabitCache(pipeline.name, self.rules.values())

    def is_of(self, pipeline: StoredPipeline) -> bool:
        """Return whether it is of this definition: a restored database gives a version's number to another one."""
        return self.pipeline is pipeline or self.pipeline == pipeline


class ViewCache:
    """Views of the pipelines in a store. What was read is kept for each of them; used by one thread."""

    def __init__(self, store: Store) -> None:
        self._engine = store.engine.execution_options(isolation_level="REPEATABLE READ")
        self._kept: dict[str, _Kept] = {}
        self._minutes = Minutes()
        self._since_s: float | None = None

    def view(self, pipeline: StoredPipeline, now_s: float, *, follows: bool = False) -> PipelineView:
        """Return the view of a pipeline as of one moment, out of one snapshot of the database. It need not hold what
        was judged before; `follows`: by another alerter, while this one looks."""
        name, cached, jobs = pipeline.name, self._of(pipeline), pipeline.definition.spec.jobs
        with self._engine.begin() as connection:
            if follows or not cached.stored.has_read:
                judged = judged_windows.read(connection, pipeline)
                if judged is not None:
                    cached.stored.restore(judged)
            cached.stored.refresh(connection, int(now_s) - HORIZON_S)
            self._minutes.refresh(connection, now_s)
            return self._view(
                connection,
                pipeline,
                now_s,
                reported_s=read_reported_s(connection, [name]).get(name, {}),
                expected=read_expected(connection, [name], now_s).get(name, frozenset()) & cached.nodes,
                runs=read_runs_by(connection, name, jobs, now_s - runs_s(jobs), limit=MAX_RUNS),
                partitions=_partitions(connection, name, cached.rules.values(), now_s),
                lost_afterwards=_lost_afterwards(connection, name, cached.rules.values(), now_s),
            )

    def news(
        self,
        pipelines: Sequence[StoredPipeline],
        closed: Mapping[str, Collection[int]],
        now_s: float,
        changeable: Collection[str] = (),
    ) -> list[tuple[StoredPipeline, PipelineView]]:
        """Return views of pipelines that have been read, out of one snapshot of the database, each with what is new of
        these `closed` windows; none of a pipeline of which a window changed that had been judged. Views know of
        messages what `refresh_minutes` read, and not of nodes' reports, runs, partitions or tables: see `pre_check`.
        Of `changeable` ones, with incidents that can change, all windows are assessed where one is new: good ones count
        together, and an incident that is reopened loses the breaches that were revised meanwhile."""
        views = []
        with self._engine.begin() as connection:
            named = {pipeline.name: closed[pipeline.name] for pipeline in pipelines if pipeline.name in closed}
            rows = read_named(connection, named)
            for pipeline in pipelines:
                cached = self._of(pipeline)
                news_from_s = cached.stored.take(rows.get(pipeline.name, ()), int(now_s) - HORIZON_S)
                if news_from_s > -math.inf:
                    has_news = pipeline.name in changeable and news_from_s < math.inf
                    if has_news or cached.habits.due_s <= now_s:
                        news_from_s = -math.inf
                    views.append((pipeline, self._view(connection, pipeline, now_s, news_from_s=news_from_s)))
        return views

    def settle(self, pipelines: Iterable[StoredPipeline], now_s: float) -> None:
        """Note that in what is known of these pipelines nothing is to be found, so that it need not be kept or read."""
        stored = [(pipeline, self._of(pipeline).stored) for pipeline in pipelines]
        judged = [(pipeline, windows.judged) for pipeline, windows in stored if windows.settle(now_s)]
        if judged:
            with self._engine.begin() as connection:
                judged_windows.write(connection, judged)

    def _view(self, connection: Connection, pipeline: StoredPipeline, now_s: float, **more: Any) -> PipelineView:
        self._since_s = now_s if self._since_s is None else self._since_s
        cached = self._of(pipeline)
        seen_from_s = max(int(now_s) - HORIZON_S, cached.stored.judged.to_s)
        windows, newest_s = cached.stored.windows, cached.stored.newest_s
        return PipelineView(
            definition=pipeline.definition,
            now_s=now_s,
            windows=windows,
            seen_from_s=seen_from_s,
            newest_end_s=None if newest_s is None else newest_s + WINDOW_S,
            newest_s=self._minutes.newest_s(pipeline.name, cached.watched),
            came_from_s={source: self._minutes.came_s(pipeline.name, source) for source in cached.sources},
            waiting=_waiting(connection, pipeline.definition, windows, seen_from_s),
            watched_since_s=self._since_s,
            habits=cached.habits.refreshed(connection, now_s),
            **more,
        )

    def refresh_minutes(self, now_s: float) -> Mapping[str, float]:
        """Read what came in since; return the pipelines of which it is, each with the moment at which the first was
        known."""
        with self._engine.begin() as connection:
            self._minutes.refresh(connection, now_s)
        return self._minutes.take_came()

    def rules(self, pipeline: StoredPipeline) -> Mapping[str, Rule]:
        """Return the rules of this version of a pipeline by name."""
        return self._of(pipeline).rules

    def habits_due_s(self, pipeline: StoredPipeline) -> float:
        """Return when the pipeline's habits are to be read on (epoch s)."""
        return self._of(pipeline).habits.due_s

    def _of(self, pipeline: StoredPipeline) -> _Kept:
        cached = self._kept.get(pipeline.name)
        if cached is None or not cached.is_of(pipeline):
            cached = self._kept[pipeline.name] = _Kept(pipeline, self._engine)
        return cached

    def has_read(self, pipeline: StoredPipeline) -> bool:
        """Return whether a view of this version needs to read only what changed."""
        cached = self._kept.get(pipeline.name)
        return cached is not None and cached.is_of(pipeline) and cached.stored.has_read

    def forget(self, names_to_keep: Iterable[str]) -> None:
        """Forget all other pipelines."""
        names = set(names_to_keep)
        self._kept = {name: cached for name, cached in self._kept.items() if name in names}


def _partitions(connection: Connection, pipeline: str, rules: Iterable[Rule], now_s: float) -> Sequence[PartitionNow]:
    """Return the partitions that consumer groups read, if a rule needs them."""
    return read_partitions(connection, pipeline, now_s) if any(isinstance(rule, TimeToLoss) for rule in rules) else ()


def _lost_afterwards(
    connection: Connection, pipeline: str, rules: Iterable[Rule], now_s: float
) -> Sequence[LostMinute] | None:
    """Return the minutes with messages that are lost afterwards, if a rule needs them."""
    has_rule = any(isinstance(rule, LostAfterwards) for rule in rules)
    return read_outstanding(connection, pipeline, now_s) if has_rule else None


def _waiting(
    connection: Connection, definition: Definition, windows: Windows, seen_from_s: int
) -> tuple[WaitingMessages, ...]:
    """Return the pending messages, if a rule needs them."""
    if not definition.spec.alerts.pending_age:
        return ()
    pending = windows.since(windows.first_at(seen_from_s))
    starts = pending.starts[pending.column("pending") > 0].tolist()
    if not starts:
        return ()
    row = MissingMessageRow
    rows = connection.execute(
        select(row.places, func.count(), func.min(row.seen_by_ms))
        .where(row.pipeline == definition.name, row.window_start.in_(starts), row.kind == "pending")
        .group_by(row.places)
    )
    return tuple(WaitingMessages(tuple(places), messages, since_ms / 1_000) for places, messages, since_ms in rows)
