"""Registry of pipelines: their definitions and the schedules of their windows, as PostgreSQL has them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Engine

from aggregator.closing import unfinished
from aggregator.closing.context import Versions
from aggregator.closing.schedule import WindowEntry, WindowSchedule
from aggregator.metrics import AggregatorMetrics
from aggregator.node_groups import QUEUES, NodeGroup
from aggregator.reports.deferral import read_deferred
from lagloss.wire.format import WINDOW_S
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.model.taps import Extraction
from lagloss_server.store.definition_feed import DefinitionFeed
from lagloss_server.store.store import Store, read_basis
from lagloss_server.store.unreadable import UnreadableRow


class DefinitionRegistry:
    """Definitions and schedules of all pipelines; `refresh` brings both up to date, `look` the names that are known."""

    def __init__(self, engine: Engine, store: Store, metrics: AggregatorMetrics) -> None:
        self.versions: Mapping[str, Versions] = {}
        """Of all pipelines, as of the last refresh; replaced whole."""
        self.schedules: dict[str, WindowSchedule] = {}
        """None of a pipeline that is deferred: nothing of it is judged until it can be."""
        self.deferred: Collection[str] = ()
        """Names of those pipelines, whose reports are followed later or that wait for their definition; replaced
        whole."""
        self.checkpoints: Mapping[str, frozenset[str]] = {}
        """The checkpoints of each pipeline, of all readable versions together, as of the last look; replaced whole."""
        self.newest: Mapping[str, StoredPipeline] = {}
        """The newest version of each pipeline; replaced whole, too."""
        self.groups: Collection[NodeGroup] = ()
        """The consumer groups that the newest versions name; replaced whole, too."""
        self.expressions: Mapping[tuple[str, str], Extraction] = {}
        """By cluster and topic, where the records of tapped topics say their event times; replaced whole, too."""
        self._engine = engine
        self._metrics = metrics
        self._feed = DefinitionFeed(store, _extended)
        """Of all pipelines, as of the last look."""
        self._looking = threading.Lock()
        self._seen_basis: int | None = None

    @property
    def waiting(self) -> Collection[str]:
        """Names of the pipelines whose newest definition is unreadable, as of the last look: their reports are
        deferred."""
        return self._feed.waiting.keys()

    @property
    def unreadable(self) -> Sequence[UnreadableRow]:
        """Versions of definitions that are set aside."""
        return self._feed.unreadable

    def refresh(self) -> None:
        """Learn of new definitions, and of tallies that changed."""
        if self._seen_basis is None:
            with self._engine.connect() as connection:
                self._seen_basis = read_basis(connection)
        self._refresh_definitions()
        self._resume_followed()
        self._seen_basis = self._refresh_schedules(self._seen_basis)

    def look(self) -> Mapping[str, frozenset[str]]:
        """Return `checkpoints` after a look at the definitions, from any thread; windows are judged by what they had at
        the last refresh all the same.

        Before a record's names are called unknown, look after the record was read: its sender can have heard of a
        definition that was committed since the last refresh, which waits as long as windows are being closed.
        """
        with self._looking:  # so that no other thread goes on with the checkpoints of before
            if self._feed.look():
                latest = {**self._feed.pipelines, **self._feed.kept_of_waiting}
                self.checkpoints = {name: versions.checkpoints for name, versions in latest.items()}
            return self.checkpoints

    def _refresh_definitions(self) -> None:
        self.look()
        latest = self._feed.pipelines
        if latest is self.versions:
            return
        self.versions = latest
        for name in self.schedules.keys() - latest.keys():
            del self.schedules[name]
        for name, schedule in self.schedules.items():
            schedule.grace_ms = latest[name].newest.definition.spec.grace
        self.newest = {name: versions.stored[-1] for name, versions in latest.items()}
        self.groups = [
            NodeGroup(name, node.name, node.input, QUEUES if node.queue else node.input_cluster, node.input_offsets)
            for name, versions in latest.items()
            for node in versions.newest.definition.spec.nodes
            if node.input is not None
        ]
        self.expressions = {
            (tap.cluster, tap.topic): tap.extraction
            for _, versions in sorted(latest.items(), reverse=True)  # of several taps, that of the first pipeline stays
            for tap in versions.newest.definition.taps
        }

    def _resume_followed(self) -> None:
        """Schedule the windows of newly known pipelines, and of those that are not deferred any more."""
        with self._engine.connect() as connection:
            self.deferred = read_deferred(connection).keys() | self.waiting
        self._metrics.deferred.set(len(self.deferred))
        for name in self.schedules.keys() & self.deferred:
            del self.schedules[name]
        self._resume(self.versions.keys() - self.schedules.keys() - self.deferred)

    def _resume(self, pipelines: Collection[str]) -> None:
        """Put the unfinished windows of these pipelines on schedules of theirs."""
        if not pipelines:
            return
        for name in pipelines:
            self.schedules[name] = WindowSchedule(self.versions[name].newest.definition.spec.grace)
        with self._engine.connect() as connection:
            for span in unfinished.read_spans(connection, pipelines):
                schedule = self.schedules[span.pipeline]
                schedule.resume(span.first, span.last + WINDOW_S)
                if span.windows < (span.last - span.first) // WINDOW_S + 1:
                    for start in unfinished.read_gaps(connection, span.pipeline, span.first, span.last):
                        schedule.put(start, WindowEntry())
            for row in unfinished.read_deadlines(connection, pipelines):
                self.schedules[row.pipeline].put(row.window_start, WindowEntry(row.basis, deadline=row.deadline))
            for row in unfinished.read_changes(connection, 0, pipelines):
                self._take_change(row)

    def _refresh_schedules(self, seen_basis: int) -> int:
        """Take in what changed after this basis; the basis up to which that is known now."""
        with self._engine.connect() as connection:
            changes = unfinished.read_changes(connection, seen_basis)
        for change in changes:
            self._take_change(change)
        self._metrics.late_for_sealed.inc(sum(change.state == "sealed" for change in changes))
        return max((change.basis for change in changes), default=seen_basis)

    def _take_change(self, change: unfinished.TallyChange) -> None:
        schedule = self.schedules.get(change.pipeline)
        if schedule is not None and change.state != "sealed":
            known_entry = None if change.closed_basis is None else WindowEntry(change.closed_basis)
            schedule.tally_changed(change.window_start, change.basis, change.changed_at, known_entry)


def _extended(
    before: Versions | None, stored: Sequence[StoredPipeline], unreadable: Sequence[UnreadableRow]
) -> Versions:
    return (before or Versions()).plus(stored, [(int(row.name), row.since_ms) for row in unreadable])
