"""The closer: one loop in which each window that is due gets facts, is judged, and is committed.

due.py has which windows and why, context.py what is known of them. Facts come in one of three ways, the cheapest that
will do: proven from tallies (prover.py), stored by the last closing (window_store.py), or read (reading.py). judge.py
makes a closing of them, commit.py writes it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
from sqlalchemy import Engine

from aggregator.closing import unfinished, window_store
from aggregator.closing.commit import Committer
from aggregator.closing.context import JudgementContext, load_context, with_newest
from aggregator.closing.definitions import DefinitionRegistry
from aggregator.closing.due import FROM_STORE, ONLY_CLOSED, Due, DueWindows, Why
from aggregator.closing.judge import close, looks_complete, nothing_missing
from aggregator.closing.prover import Prover, to_name
from aggregator.closing.reading import WindowReading, WindowReads
from aggregator.closing.report_state import WindowKey, Windows
from aggregator.closing.sealing import Sealing
from aggregator.closing.wide_reads import Share
from aggregator.closing.window_store import Closing
from aggregator.kernel.spark_reader import BlockReader
from aggregator.metrics import AggregatorMetrics
from aggregator.set_aside import SetAside, isolate
from lagloss_server.judging.arithmetic import CutInsidePattern
from lagloss_server.queries.beacon_log import BeaconLog

log = structlog.get_logger()

TURN_S = 10.0
"""How long one turn takes, with all that it does, before windows that became due meanwhile are looked at; of each kind
of work it does one piece at least."""
PLAN_S = 1.0
"""How long windows may be proven, and their reads planned, though the turn's time is up."""


@dataclass
class Turn:
    """One turn of the closer: the moment as of which it judges, how much time it has, and what it did.

    `caught_up_ms`: as of when all reports are followed, which is the clock of every judgement. `now_ms`: the broker's
    clock, for pauses between tries. `ends_at` (monotonic s): when to leave the rest for later, after one read at least.
    """

    caught_up_ms: int
    now_ms: int
    ends_at: float = math.inf
    beacons: int = 0
    """How many were read."""
    remaining: set[WindowKey] = field(default_factory=set)
    """Windows left for a later turn: the time was up, or they are wide and still read."""

    def is_over(self) -> bool:
        return time.monotonic() >= self.ends_at

    def plans_until(self) -> float:
        """Return until when (monotonic s) windows may be proven, and their reads planned."""
        return max(self.ends_at, time.monotonic() + PLAN_S)


class Closer:
    """Closer of the windows of all pipelines. `tick` closes due ones; call it repeatedly.

    `verify_share`: which share of the windows that tallies prove is read all the same, to see that the beacons agree.
    """

    def __init__(
        self,
        engine: Engine,
        watch: DefinitionRegistry,
        reader: BlockReader,
        beacons: BeaconLog,
        metrics: AggregatorMetrics,
        failures: SetAside,
        verify_share: float = 0.0,
    ) -> None:
        self.reads = WindowReads(engine, watch, reader, beacons, metrics)
        self.sealing = Sealing(engine, watch, beacons, self.reads)
        self._engine = engine
        self._watch = watch
        self._metrics = metrics
        self._failures = failures
        self._due = DueWindows(engine, watch, failures, self.reads.waits)
        self._prover = Prover(engine, beacons, metrics, verify_share)
        self._committer = Committer(engine, watch, self.reads, metrics, failures)

    def tick(self, caught_up_ms: int, now_ms: int) -> bool:
        """Close all windows that are due for one reason or another. Return whether some were for the first time, or
        since they had changed: there may be more of these.

        `caught_up_ms` is the moment as of which all reports are followed; it is the clock of every judgement.
        """
        turn = Turn(caught_up_ms, now_ms, time.monotonic() + TURN_S)
        self._watch.refresh()
        self.reads.read_on()
        is_busy = False
        for due in self._due.by_urgency(caught_up_ms, now_ms):
            self._close(due, turn)
            self._due.put_back(item for item in due if item.window in turn.remaining)
            is_busy = is_busy or any(item.why in ("due", "changed") for item in due)
        return is_busy

    def close_windows(self, windows: Windows, now_ms: int, why: Why = "due") -> Turn:
        """Close these windows as of a moment, for this reason, however long it takes; return what was done."""
        turn = Turn(now_ms, now_ms)
        self._close([Due(*window, why) for window in windows], turn)
        return turn

    def _close(self, due: Sequence[Due], turn: Turn) -> None:
        """Close windows; set aside alone what cannot be closed."""
        if not due:
            return
        turn.remaining.update(item.window for item in due)

        def close_pipelines(names: Sequence[str]) -> int:
            chosen = set(names)
            return self._close_together([item for item in due if item.pipeline in chosen], turn)

        def give_up(item: Due, error: Exception) -> None:
            if item.why == "early":  # no harm done: if it fails again when it is due, it is set aside then
                self._try_later([item.window], turn, read=False)
            else:
                self._committer.set_aside(item.window, error, turn.caught_up_ms)
                turn.remaining.discard(item.window)

        # The windows of pipelines that fail come last: the others need not wait until each bad one is singled out.
        failing: list[str] = []
        names = list(dict.fromkeys(item.pipeline for item in due))
        turn.beacons += isolate(names, close_pipelines, lambda name, _: failing.append(name))
        # the smallest first: to single out what is bad of a large one can take the rest of the turn
        for items in sorted(([item for item in due if item.pipeline == name] for name in failing), key=len):
            turn.beacons += isolate(items, lambda some: self._close_together(some, turn), give_up, turn.ends_at)

    def _close_together(self, due: Sequence[Due], turn: Turn) -> int:
        """Get facts of these windows in the cheapest way that will do, judge and commit them; return how many beacons
        were read."""
        due = self._still_due(due, turn)
        if not due:
            return 0
        windows = [item.window for item in due]
        context = load_context(self._engine, self._watch.versions, windows, turn.caught_up_ms)
        due = self._close_from_store(context, due, turn)
        due = self._close_proven(context, due, turn)
        return self._close_read(context, due, turn)

    def _still_due(self, due: Sequence[Due], turn: Turn) -> list[Due]:
        """Leave out windows that are sealed by now, or whose pipeline was deleted: no closing wants them any more."""
        self.sealing.seal_gone()
        with self._engine.connect() as connection:
            states = unfinished.read_states(connection, [item.window for item in due])

        def is_wanted(item: Due) -> bool:
            state = states.get(item.window)  # None: it was never closed
            return item.pipeline in self._watch.schedules and (
                state == "closed" or (state is None and item.why not in ONLY_CLOSED)
            )

        still_due = [item for item in due if is_wanted(item)]
        gone = set(due).difference(still_due)
        turn.remaining.difference_update(item.window for item in gone)
        self._failures.forget(item.item for item in gone)
        return still_due

    def _close_from_store(self, context: JudgementContext, due: Sequence[Due], turn: Turn) -> list[Due]:
        """Judge again, by the facts of their last closing, windows that time or silence alone may have changed. Return
        the others, and those of which a cut now falls inside a pattern, so that only their blocks can tell."""
        again = {item.window: item for item in due if item.why in FROM_STORE}
        rest = [item for item in due if item.why not in FROM_STORE]
        if not again:
            return rest
        context = with_newest(self._engine, context, list(again))
        with self._engine.connect() as connection:
            stored = window_store.read_facts(connection, list(again))
        closings = []
        for window in again:
            facts, basis = stored.get(window, (None, 0))
            if facts is None or context.reports.changed.get(window, 0) > basis:
                turn.remaining.discard(window)  # out of date: it is closed again once its tallies stand still
                continue
            try:
                closings.append(close(context, *window, facts, is_read=False))
            except CutInsidePattern:
                rest.append(again[window])
        self._commit(context, closings, turn)
        return rest

    def _close_proven(self, context: JudgementContext, due: Sequence[Due], turn: Turn) -> list[Due]:
        """Close the windows that their tallies prove, without reading a block. Return those to be read, as far as there
        was time to look at them; with them proven ones, for reasons of their own."""
        started = time.monotonic()
        provable = [item.window for item in due if item.why != "requested"]  # a recompute reads, to be sure
        is_proven = self._prover.prove(context, provable, turn.plans_until())
        proven = [window for window in provable if is_proven.get(window)]
        verified = self._prover.to_verify(proven)
        facts = self._prover.facts(context, sorted(set(proven) - verified))
        named = to_name(context, facts)
        closings = [close(context, *window, facts[window]) for window in facts if window not in named]
        changed = self._commit(context, closings, turn)
        if closings:
            seconds = round(time.monotonic() - started, 2)
            log.info("proven", windows=len(closings), seconds=seconds, changed=changed)
        reasons: dict[WindowKey, Why] = {**dict.fromkeys(verified, "verify"), **dict.fromkeys(named, "names")}
        return [
            item._replace(why=reasons.get(item.window, item.why))
            for item in due
            # False, not None: what there was no time to look at waits for the next turn
            if item.why == "requested" or is_proven.get(item.window) is False or item.window in reasons
        ]

    def _close_read(self, context: JudgementContext, due: Sequence[Due], turn: Turn) -> int:
        """Close windows by their blocks, as far as there is time, in reads of bounded size; return how many beacons
        were read."""
        useless = {item.window for item in due if item.why == "early" and not self._may_be_final(context, item.window)}
        self._try_later(useless, turn, read=False)
        why = {item.window: item.why for item in due if item.window not in useless}
        if not why:
            return 0
        context = with_newest(self._engine, context, list(why))  # `_close_from_store` added that of its own windows
        shares = self.reads.shares(context, list(why), turn.plans_until())
        beacons = 0
        for batch in self.reads.batches(context, shares):
            beacons += self._close_batch(context, batch, why, turn)
            if turn.is_over():
                break
        return beacons

    def _close_batch(
        self, context: JudgementContext, shares: Mapping[WindowKey, Share], why: Mapping[WindowKey, Why], turn: Turn
    ) -> int:
        """Read, judge and commit these windows in one go; return how many beacons were read.

        Before a window is due, its result counts only if nothing is missing: what is missing may yet come.
        """
        started = time.monotonic()
        reading = self.reads.read(context, shares)
        for window, facts in reading.facts.items():
            if why[window] == "verify":
                self._prover.verify(context, window, facts)
        closings = [close(context, *window, facts) for window, facts in reading.facts.items()]
        final = [closing for closing in closings if why[closing.window] != "early" or nothing_missing(closing.result)]
        changed = self._commit(context, final, turn, reading)
        self._try_later(shares.keys() - {closing.window for closing in final}, turn, read=True)
        beacons = sum(sum(facts.read.values()) for facts in reading.facts.values())
        seconds = time.monotonic() - started
        self._metrics.closed(len(final), beacons, seconds)
        log.info("closed", windows=len(final), beacons=beacons, seconds=round(seconds, 2), changed=changed)
        return beacons

    def _may_be_final(self, context: JudgementContext, window: WindowKey) -> bool:
        """Return whether a window that is not due yet is worth a read: its tallies look complete, and have changed
        since it was read last."""
        entry = self._watch.schedules[window[0]].entry(window[1])
        has_changed = entry.read_early != entry.changed_at
        return has_changed and looks_complete(context.graph(*window), context.evidence(*window))

    def _try_later(self, windows: Iterable[WindowKey], turn: Turn, *, read: bool) -> None:
        """Let these windows, which are not due yet, be tried early once more after a pause."""
        for pipeline, start in windows:
            self._watch.schedules[pipeline].tried_early(start, turn.now_ms, read=read)

    def _commit(
        self,
        context: JudgementContext,
        closings: Sequence[Closing],
        turn: Turn,
        reading: WindowReading | None = None,
    ) -> int:
        """Commit closings, and what was read for them; return how many results changed."""
        if not closings and reading is None:
            return 0
        changed = self._committer.commit(context, closings, reading)
        turn.remaining.difference_update(closing.window for closing in closings)
        return changed
