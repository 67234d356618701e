"""Upkeep beside closing: answering recompute requests, sealing what the log no longer holds, auditing stray blocks,
rolling up, pruning, announcing samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

import structlog
from sqlalchemy import Engine, select, update

from aggregator.closing import unfinished
from aggregator.closing.closer import Closer
from aggregator.closing.definitions import DefinitionRegistry
from aggregator.maintenance import rollups
from aggregator.maintenance.retention import Retention
from aggregator.maintenance.sampling_publisher import SampleAnnouncer
from aggregator.metrics import AggregatorMetrics
from aggregator.outage import is_outage
from aggregator.set_aside import SetAside
from lagloss.wire.format import WINDOW_S
from lagloss_server.store.partitions import make_days_ahead
from lagloss_server.store.schema import core as tables

log = structlog.get_logger()

AUDIT_EVERY_S = 30
"""Interval of the audit of blocks that no closing read, for keys that no good block has."""
SEAL_EVERY_S = 60
ROLL_UP_EVERY_S = 5
RETAIN_EVERY_S = 600
DAYS_AHEAD_EVERY_S = 3_600
ANNOUNCE_EVERY_S = 5
WINDOWS_PER_ROUND = 50
"""Windows that a recompute closes again before windows that are due have their turn, and before it says how far it
is."""


@dataclass
class PeriodicTask:
    """Something to be done every so often."""

    name: str
    every_s: float
    do: Callable[[int], None]
    done_at: float = -math.inf

    def do_if_due(self, caught_up_ms: int) -> None:
        """Do it if its time has come. A failure that is no outage costs this round of it, and nothing else."""
        if time.monotonic() - self.done_at >= self.every_s:
            try:
                self.do(caught_up_ms)
            except Exception as error:
                if is_outage(error):
                    raise
                log.exception("maintenance failed", task=self.name)
            self.done_at = time.monotonic()


class MaintenanceLoop:
    """Maintenance: answers requests and runs due tasks, a little per call."""

    def __init__(
        self,
        engine: Engine,
        closer: Closer,
        watch: DefinitionRegistry,
        retention: Retention,
        metrics: AggregatorMetrics,
        failures: SetAside,
        announcer: SampleAnnouncer | None = None,
    ) -> None:
        self._engine = engine
        self._closer = closer
        self._watch = watch
        self._metrics = metrics
        self._failures = failures
        self._chores = [
            PeriodicTask("audit", AUDIT_EVERY_S, lambda _: closer.reads.audit(), time.monotonic()),
            PeriodicTask("seal", SEAL_EVERY_S, lambda _: closer.sealing.seal_gone()),
            PeriodicTask("roll up", ROLL_UP_EVERY_S, self.roll_up),
            PeriodicTask("retain", RETAIN_EVERY_S, retention.round),
            PeriodicTask("days ahead", DAYS_AHEAD_EVERY_S, lambda _: make_days_ahead(engine, time.time())),
        ]
        if announcer is not None:
            self._chores.append(PeriodicTask("announce", ANNOUNCE_EVERY_S, lambda _: self.announce_samples(announcer)))

    def tick(self, caught_up_ms: int) -> bool:
        """Run one round; return whether there is more to do of a request."""
        answer = self.answer_recompute(caught_up_ms)
        for chore in self._chores:
            chore.do_if_due(caught_up_ms)
        return answer

    def roll_up(self, now_ms: int) -> None:
        """Run one round of roll-ups."""
        done, waiting = rollups.roll_up(self._engine, now_ms, self._failures)
        self._metrics.rollups.inc(done)
        self._metrics.rollups_dirty.set(waiting)

    def announce_samples(self, announcer: SampleAnnouncer) -> None:
        """Announce to emitters the samples of the newest definitions, one round."""
        versions = self._watch.versions
        samples = {name: version.newest.definition.sample for name, version in versions.items()}
        announcer.reconcile(samples, self._watch.waiting)

    def answer_recompute(self, now_ms: int) -> bool:
        """Work on the oldest `lagloss recompute` for one round: close some of its windows again from the log, and
        answer after the last. Return whether it came any further.

        The request's row has its progress, so that the next closer continues there.
        """
        request = tables.table_of(tables.RecomputeRequestRow)
        with self._engine.connect() as connection:
            row = connection.execute(
                select(request)
                .where(request.c.answer.is_(None), request.c.pipeline.not_in(list(self._watch.deferred)))
                .order_by(request.c.id)
                .limit(1)
            ).one_or_none()
        if row is None:
            return False
        begun = Recomputed(next_s=-(-row.from_s // WINDOW_S) * WINDOW_S)
        done = Recomputed.read(row.progress) or begun
        before = done.next_s
        done = self._recompute(done, row.pipeline, row.to_s, now_ms)
        values: dict[str, Any] = {"progress": asdict(done)}
        if done.is_complete:  # left out otherwise: None would be JSON's null, which is an answer
            values["answer"] = done.answer()
        with self._engine.begin() as connection:
            connection.execute(update(request).where(request.c.id == row.id).values(**values))
        return done.is_complete or done.next_s > before

    def _recompute(self, done: Recomputed, pipeline: str, to_s: int, now_ms: int) -> Recomputed:
        started = time.monotonic()
        self._closer.sealing.seal_gone()
        with self._engine.connect() as connection:
            closed = unfinished.read_closed(connection, pipeline, done.next_s, to_s)
            round_ = list(takewhile(lambda window: not self._closer.reads.waits(window), closed[:WINDOWS_PER_ROUND]))
            states = unfinished.read_states(connection, round_)
        held = [window for window in round_ if states[window] == "closed"]
        turn = self._closer.close_windows(held, now_ms, "requested")
        if turn.remaining:  # the next round begins with the first of them
            round_ = round_[: min(map(round_.index, turn.remaining))]
            held = [window for window in held if window in round_]
        self._failures.retry_now("rollup", pipeline)
        next_s = to_s if not closed else round_[-1][1] + WINDOW_S if round_ else done.next_s
        return Recomputed(
            next_s=next_s,
            done=done.done + len(round_),
            of=done.done + len(closed),
            sealed=done.sealed + len(round_) - len(held),
            beacons=done.beacons + turn.beacons,
            seconds=round(done.seconds + time.monotonic() - started, 3),
        )


@dataclass(frozen=True)
class Recomputed:
    """How far a recompute has come: `next_s` is the start of the first window not looked at yet, `done` windows of
    altogether `of` are behind it, `sealed` of them as they were; the others took `beacons` and `seconds`."""

    next_s: int
    done: int = 0
    of: int = 0
    sealed: int = 0
    beacons: int = 0
    seconds: float = 0.0

    @classmethod
    def read(cls, progress: object) -> Recomputed | None:
        """Return what the request's row has; None if there is nothing, or nothing that this version can read: to begin
        again gives the same windows."""
        if not isinstance(progress, dict) or any(isinstance(value, bool | str) for value in progress.values()):
            return None
        try:
            whole = {name: int(value) for name, value in progress.items() if name != "seconds"}
            return cls(**whole, seconds=float(progress.get("seconds", 0)))
        except (TypeError, ValueError, OverflowError):
            return None

    @property
    def is_complete(self) -> bool:
        return self.done >= self.of

    def answer(self) -> dict[str, float]:
        windows = self.done - self.sealed
        return {"windows": windows, "beacons": self.beacons, "sealed": self.sealed, "seconds": self.seconds}
