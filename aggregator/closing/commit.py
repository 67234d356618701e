"""The commit: the one way in which closings get into PostgreSQL, and what follows from them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, Engine

from aggregator.closing import staleness, window_store
from aggregator.closing.context import JudgementContext
from aggregator.closing.definitions import DefinitionRegistry
from aggregator.closing.due import item_of
from aggregator.closing.judge import fail
from aggregator.closing.reading import WindowReading, WindowReads
from aggregator.closing.report_state import WindowKey
from aggregator.closing.window_store import Closing
from aggregator.metrics import AggregatorMetrics
from aggregator.set_aside import SetAside
from lagloss_server.store.store import read_basis

Revision = tuple[Closing, int]
"""A closing that changed its window's result, and the number of that result."""


class Committer:
    """Writes closings, and notes on the schedules that they are done."""

    def __init__(
        self,
        engine: Engine,
        watch: DefinitionRegistry,
        reads: WindowReads,
        metrics: AggregatorMetrics,
        failures: SetAside,
    ) -> None:
        self._engine = engine
        self._watch = watch
        self._reads = reads
        self._metrics = metrics
        self._failures = failures

    def commit(
        self, context: JudgementContext, closings: Sequence[Closing], reading: WindowReading | None = None
    ) -> int:
        """Commit closings in one transaction, with all that was read for them; return how many results changed."""
        # the session that commits holds the lease: `service.fencing` asks for it on this engine
        with self._engine.begin() as connection:
            if reading is not None:
                self._reads.record(connection, reading)
            revisions = self._store(connection, context, closings)
            self._failures.done(connection, [item_of(closing.window) for closing in closings])
        self._note(closings, revisions)
        return len(revisions)

    def set_aside(self, window: WindowKey, error: Exception, now_ms: int) -> None:
        """Make this window `unknown` for the reason `failed` (rule 16), to be tried again later."""
        self._failures.put(item_of(window), error)  # first: it is tried again even if what follows fails
        pipeline, start = window
        with self._engine.begin() as connection:
            closing = fail(pipeline, start, self._watch.versions[pipeline], read_basis(connection), now_ms)
            revisions = window_store.commit(connection, [closing])  # without facts there is no staleness
        self._note([closing], revisions)

    def _store(
        self, connection: Connection, context: JudgementContext, closings: Sequence[Closing]
    ) -> Sequence[Revision]:
        """Write closings with their staleness, and let later windows be judged again that are less stale by them."""
        graphs = {closing.window: context.graph(*closing.window) for closing in closings}
        revisions = window_store.commit(connection, staleness.add_staleness(connection, closings, graphs))
        for pipeline, start, basis in staleness.restate_later(connection, closings):
            self._watch.schedules[pipeline].restate(start, basis, context.now_ms)
        return revisions

    def _note(self, closings: Iterable[Closing], revisions: Iterable[Revision]) -> None:
        """Note closings on the schedules and in metrics, once they are committed.

        Those that the commit left out count, too: what it has instead knows more, and nothing is left to do.
        """
        self._reads.done(closing.window for closing in closings if closing.is_read)
        for closing in closings:
            pipeline, start = closing.window
            schedule = self._watch.schedules[pipeline]
            self._metrics.waited(time.time() * 1000 - schedule.ready_ms(start))
            schedule.closed(start, closing.basis, closing.deadline)
        for closing, revision in revisions:
            self._metrics.window(closing.result, revision)
