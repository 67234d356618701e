"""The closer: finds windows that are due or dirty, proves them or reads their blocks, judges and commits them."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime
from functools import cache
from itertools import islice, zip_longest

import structlog
from sqlalchemy import Connection, Engine

from aggregator.closing import staleness, unfinished
from aggregator.closing import window_store as closings
from aggregator.closing.audit import Audit, advanced, unseen
from aggregator.closing.definitions import DefinitionRegistry
from aggregator.closing.judge import JudgementContext, close, fail, looks_whole, nothing_missing
from aggregator.closing.prover import Prover
from aggregator.closing.report_state import Windows, load_report_state, newest_with_beacons, read_sketches
from aggregator.closing.silence import SilenceWatch
from aggregator.closing.wide_reads import Share, WideReads, in_few_ranges
from aggregator.closing.window_store import Closing
from aggregator.kernel.kernel import BadBlock
from aggregator.kernel.plan import ReadPlan, WindowPlan
from aggregator.kernel.spark_reader import BlockReader, Reading
from aggregator.metrics import AggregatorMetrics
from aggregator.outage import TopicRecreated
from aggregator.set_aside import Item, SetAside, isolate
from lagloss.wire.format import BadReason, OffsetRange, block_key
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.emitters import crowded, last_words
from lagloss_server.queries.offset_ranges import clamp, merge_ranges, records_in
from lagloss_server.rules.arithmetic import CutInsidePattern, horizon
from lagloss_server.rules.facts import WindowFacts
from lagloss_server.rules.tally_proof import proven_facts
from lagloss_server.store.store import read_basis

log = structlog.get_logger()

WINDOWS_AT_ONCE = 4_000
"""Maximum number of windows that are judged and committed together."""
MANY_EMITTERS = 500
"""A pipeline with more is judged after the others: to load and judge 3,000 takes about a second."""
TURN_S = 10.0
"""How long one turn takes, with all that it does, before windows that became due meanwhile are looked at; of each kind
of work it does one piece at least."""
PLAN_S = 1.0
"""How long windows may be proven, and their reads planned, though the turn's time is up."""
BEACONS_PER_PARTITION = 6_250_000
"""Beacons per Spark read of each partition of their topic, of one window at least: a task's memory stays the same
however many partitions there are, and a crash repeats no more than one read."""
RECORDS_PER_PARTITION = 1_000_000
"""Records per Spark read of each partition, whosever they are, of one window at least."""


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
        self.reader = reader
        self._engine = engine
        self._watch = watch
        self._beacons = beacons
        self._topic_id = beacons.topic_id()
        self._metrics = metrics
        self._failures = failures
        self._audit = Audit(engine, beacons)
        self._prover = Prover(engine, beacons, metrics, verify_share)
        self._silence = SilenceWatch(engine)
        self._wide = WideReads(beacons)
        self._left: set[tuple[str, int]] = set()
        self._lows: Mapping[int, int] = {}

    def tick(self, caught_up_ms: int, now_ms: int) -> bool:
        """Close due and dirty windows, judge again those past their deadline. Return whether there were any.

        `caught_up_ms` is the moment as of which all reports are followed; it is the clock of every judgement.
        """
        ends_at = time.monotonic() + TURN_S
        self._watch.refresh()
        self._metrics.read(self._wide.go_on(), 0)
        schedules = self._watch.schedules
        due = self._turn({name: schedule.to_close(caught_up_ms, now_ms) for name, schedule in schedules.items()})
        for windows in self._lightest_first(due):
            self.close_windows(windows, caught_up_ms, ends_at=ends_at)
        self._close_early(caught_up_ms, now_ms, ends_at)
        self._judge_again(caught_up_ms, ends_at)
        return bool(due)

    @property
    def left(self) -> AbstractSet[tuple[str, int]]:
        """Windows that the last `close_windows` left for later: the time was up, or they are wide and still read."""
        return self._left

    def waits(self, window: tuple[str, int]) -> bool:
        """Return whether a window is wide and cannot be closed yet, since it is still read."""
        return self._wide.waits(window)

    def _turn(self, starts: Mapping[str, Iterable[int]]) -> Windows:
        """Return the windows of one turn: the first of each pipeline, then the second of each, and so on, so that none
        waits for another's backlog. Wide ones that are still read are left out."""

        rounds = zip_longest(
            *(
                [(pipeline, start) for start in of_it if not self.waits((pipeline, start))]
                for pipeline, of_it in starts.items()
            )
        )
        return list(islice((window for round_ in rounds for window in round_ if window is not None), WINDOWS_AT_ONCE))

    def _lightest_first(self, due: Windows) -> list[Windows]:
        """Return windows in two parts: those of pipelines with many emitters come second, so that they
        do not delay the others."""
        if not due:
            return []
        with self._engine.connect() as connection:
            heavy = crowded(connection, {pipeline for pipeline, _ in due}, MANY_EMITTERS)
        parts = [[window for window in due if (window[0] in heavy) == is_heavy] for is_heavy in (False, True)]
        return [part for part in parts if part]

    def close_windows(self, windows: Windows, now_ms: int, *, from_log: bool = False, ends_at: float = math.inf) -> int:
        """Prove or read, judge and commit these windows; set aside alone what cannot be closed. Return how many beacons
        were read.

        Args:
            windows: pipeline and start of each.
            now_ms: the moment as of which they are judged.
            from_log: read them all.
            ends_at: when (monotonic s) to leave the rest for later, after one read at least; see `left`.
        """

        def close(some: Windows) -> int:
            return self._close_together(some, now_ms, from_log=from_log, ends_at=ends_at)

        def of(pipelines: Collection[str]) -> Windows:
            return [window for window in windows if window[0] in pipelines]

        self._left = set(windows)
        if not windows:
            return 0
        # First the pipelines that fail are found, so that the others need not wait until each bad window is.
        failing: list[str] = []
        names = list(dict.fromkeys(pipeline for pipeline, _ in windows))
        read = isolate(names, lambda some: close(of(some)), lambda name, _: failing.append(name))
        for some in sorted((of([name]) for name in failing), key=len):
            read += isolate(some, close, lambda window, error: self._set_aside(window, error, now_ms), ends_at)
        return read

    def _set_aside(self, window: tuple[str, int], error: Exception, now_ms: int) -> None:
        """Make this window `unknown` for the reason `failed` (rule 16), to be tried again later."""
        self._failures.put(_item(window), error)
        pipeline, start = window
        with self._engine.begin() as connection:
            closing = fail(pipeline, start, self._watch.versions[pipeline], read_basis(connection), now_ms)
            made = closings.commit(connection, [closing])
        self._committed([closing], made)

    def _close_together(self, windows: Windows, now_ms: int, *, from_log: bool, ends_at: float) -> int:
        self.seal_gone()
        with self._engine.connect() as connection:
            states = unfinished.read_states(connection, windows)
        known_now = self._watch.schedules  # a pipeline may have been deleted since, or its reports deferred
        wanted = [window for window in windows if states.get(window) != "sealed" and window[0] in known_now]
        self._left -= set(windows) - set(wanted)
        known = self._known(wanted, now_ms)
        if from_log:
            return self._close(known, wanted, set(), ends_at)
        looked_at, proven = self._proven(known, wanted, _planned_by(ends_at))
        return self._close(known, looked_at, proven, ends_at)

    def _proven(
        self, known: JudgementContext, windows: Windows, ends_at: float
    ) -> tuple[Windows, set[tuple[str, int]]]:
        """Return the windows that there was time to look at, and which of them are proven."""
        proven: set[tuple[str, int]] = set()
        for at, window in enumerate(windows):
            if at and time.monotonic() >= ends_at:
                return windows[:at], proven
            if self._prover.is_proven(known, window):
                proven.add(window)
        return windows, proven

    def _close(
        self, known: JudgementContext, windows: Windows, proven: set[tuple[str, int]], ends_at: float = math.inf
    ) -> int:
        """Close windows, of which these are proven, as far as there is time; return how many beacons were read."""
        checked = self._prover.to_verify(proven)
        closed = self._close_proven(known, sorted(proven - checked))
        to_read = [window for window in windows if window not in closed]
        known = self._with_newest(known, to_read)
        read = 0
        for batch in self._batches(known, self._shares(known, to_read, _planned_by(ends_at))):
            read += self._close_read(known, batch, checked)
            if time.monotonic() >= ends_at:
                break
        return read

    def _shares(
        self, known: JudgementContext, windows: Windows, ends_at: float = math.inf
    ) -> dict[tuple[str, int], Share]:
        """Return what to read of each window, as far as there is time: no more of one pipeline than it may have in one
        turn, and nothing of wide windows that are still read. It is at least one if none is wide."""
        shares: dict[tuple[str, int], Share] = {}
        spanned: dict[str, list[OffsetRange]] = {}
        if not windows:
            return shares
        held, offsets_at = self._beacons.watermarks(), cache(self._beacons.offsets_at)
        most = self._wide.most_records(held, known.now_ms)
        for window in windows:
            pipeline, reports = window[0], known.reports
            silent = last_words(offsets_at, known.evidence(*window).silent(), held)
            share = self._wide.share(
                window, reports.ranges[window], silent, held, most, is_doubtful=window in reports.doubtful
            )
            if share is not None:
                together = in_few_ranges([*spanned.get(pipeline, ()), *share.ranges])
                if pipeline not in spanned or records_in(together) <= most:
                    shares[window], spanned[pipeline] = share, together
            if shares and time.monotonic() >= ends_at:
                break
        return shares

    def read_nothing_new(self) -> None:
        """Look at what no closing has read, only for records with a key that no good block has."""
        held = self._beacons.watermarks()
        position = self._audit.position(held)
        ranges = clamp(unseen(position, held), held)
        if ranges:
            reading = self.reader.read(ranges, ReadPlan({}, frozenset(self._watch.look()), position))
            with self._engine.begin() as connection:
                self._audit.record(connection, reading, advanced(position, ranges))

    def demand_same_topic(self) -> None:
        """Check that the beacons topic is still that whose offsets the tallies name.

        Raises:
            TopicRecreated: it is another one, and what was read of it is not what was asked for.
        """
        if self._beacons.topic_id() != self._topic_id:
            raise TopicRecreated(f"{self._beacons.topic} was created anew")

    def seal_gone(self) -> None:
        """Seal closed windows whose blocks the log no longer holds."""
        held = self._beacons.watermarks()
        self.demand_same_topic()
        lows = {partition: marks.low for partition, marks in held.items()}
        if lows == self._lows:
            return
        with self._engine.begin() as connection:
            gone = unfinished.seal_gone(connection, held)
        for pipeline, start in gone:
            if pipeline in self._watch.schedules:
                self._watch.schedules[pipeline].sealed(start)
        self._lows = lows

    def seal_before(self, before_s: int, at_most: int) -> None:
        """Seal closed windows that start before this, except dirty ones: no report about them can arrive any more."""
        with self._engine.begin() as connection:
            old = unfinished.seal_before(connection, before_s, at_most)
        for pipeline, start in old:
            if pipeline in self._watch.schedules:
                self._watch.schedules[pipeline].sealed(start)

    def _close_proven(self, known: JudgementContext, windows: Windows) -> set[tuple[str, int]]:
        """Close windows that their tallies prove: no block is read, and they cost the same whatever their size. Return
        those that need not be read: all but those whose late or dead messages are to be named."""
        if not windows:
            return set()
        started = time.monotonic()
        with self._engine.connect() as connection:
            sketches = read_sketches(connection, windows)
        facts = {
            window: proven_facts(known.graph(*window), sketches[window])
            for window in windows
            if {tally for tally, _ in sketches[window]}
            == set(known.reports.tallies[window])  # else one has just changed
        }
        to_name = {window for window, found in facts.items() if self._plan_of(known, window).has_names_to_keep(found)}
        facts = {window: found for window, found in facts.items() if window not in to_name}
        made = self._commit(known, facts)
        log.info("proven", windows=len(facts), seconds=round(time.monotonic() - started, 2), changed=made)
        return set(windows) - to_name

    def _close_read(
        self, known: JudgementContext, shares: Mapping[tuple[str, int], Share], checked: Iterable[tuple[str, int]] = ()
    ) -> int:
        """Read, judge and commit these windows in one go; how many beacons were read."""
        started = time.monotonic()
        reading, position = self._read(known, shares)
        facts = {window: reading.facts[block_key(*window)] for window in shares}
        for window in checked:
            if window in facts:
                self._prover.verify(known, window, facts[window])
        made = self._commit(known, facts, reading, position)
        beacons = sum(sum(found.read.values()) for found in facts.values())
        seconds = time.monotonic() - started
        self._metrics.closed(len(shares), beacons, seconds)
        log.info("closed", windows=len(shares), beacons=beacons, seconds=round(seconds, 2), changed=made)
        return beacons

    def _commit(
        self,
        known: JudgementContext,
        facts: Mapping[tuple[str, int], WindowFacts],
        reading: Reading | None = None,
        position: Mapping[int, int] | None = None,
    ) -> int:
        """Judge and commit windows in one transaction, with what else was read and up to where; how many results
        changed."""
        found = [close(known, pipeline, start, facts[pipeline, start]) for pipeline, start in facts]
        with self._engine.begin() as connection:
            if reading is not None:
                self._audit.record(connection, reading, position or {})
                self._audit.count_windows(connection, facts)
            made = self._store(connection, known, found)
            self._failures.done(connection, [_item(closing.window) for closing in found])
        self._committed(found, made)
        return len(made)

    def _store(
        self, connection: Connection, known: JudgementContext, found: Sequence[Closing]
    ) -> list[tuple[Closing, int]]:
        """Commit closings with their staleness, and let later windows be judged again that are less stale by them."""
        graphs = {closing.window: known.graph(*closing.window) for closing in found}
        made = closings.commit(connection, staleness.add_staleness(connection, found, graphs))
        for pipeline, start, basis in staleness.restate_later(connection, found):
            self._watch.schedules[pipeline].restate(start, basis, known.now_ms)
        return made

    def _committed(self, found: Iterable[Closing], made: Iterable[tuple[Closing, int]]) -> None:
        self._wide.done(closing.window for closing in found if closing.is_read)
        for closing in found:
            pipeline, start = closing.window
            self._left.discard(closing.window)
            schedule = self._watch.schedules[pipeline]
            self._metrics.waited(time.time() * 1000 - schedule.ready_ms(start))
            schedule.closed(start, closing.basis, closing.deadline)
        for closing, revision in made:
            self._metrics.window(closing.result, revision)

    def _known(self, windows: Windows, now_ms: int) -> JudgementContext:
        """Read the state of reports for these windows, as of one moment."""
        with self._engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
            return JudgementContext(load_report_state(connection, windows, now_ms), self._watch.versions, {}, now_ms)

    def _with_newest(self, known: JudgementContext, windows: Windows) -> JudgementContext:
        """Add the rule-4 fallback: for places without progress reports, the newest later window that has beacons."""
        asked: dict[str, tuple[int, int]] = {}
        for pipeline, start in windows:
            reported = {lane.checkpoint for lane in known.reports.lanes[pipeline]}
            if any(place.progress not in reported for place in known.graph(pipeline, start).places):
                due = self._watch.schedules[pipeline].newest_due_s(known.now_ms)
                asked[pipeline] = min(start, asked.get(pipeline, (start, due))[0]), due
        if not asked:
            return known
        with self._engine.connect() as connection:
            return replace(known, newest=newest_with_beacons(connection, asked))

    def _batches(
        self, known: JudgementContext, shares: Mapping[tuple[str, int], Share]
    ) -> Iterator[Mapping[tuple[str, int], Share]]:
        """Split the windows into reads of bounded size, by the beacons in their tallies and the records they span."""
        batch: dict[tuple[str, int], Share] = {}
        beacons, most = 0, BEACONS_PER_PARTITION * self.reader.partitions
        spanned, size, most_records = list[OffsetRange](), 0, RECORDS_PER_PARTITION * self.reader.partitions
        for window, share in shares.items():
            of_window = sum(tally.beacons for tally in known.reports.tallies[window])
            size += records_in(share.ranges)
            if size > most_records:  # where windows share ranges, that was too much
                spanned = merge_ranges([*spanned, *(place for part in batch.values() for place in part.ranges)])
                size = records_in(merge_ranges([*spanned, *share.ranges]))
            if batch and (beacons + of_window > most or size > most_records):
                yield batch
                batch, beacons, spanned, size = {}, 0, [], records_in(share.ranges)
            batch[window] = share
            beacons += of_window
        if batch:
            yield batch

    def _read(self, known: JudgementContext, shares: Mapping[tuple[str, int], Share]) -> tuple[Reading, dict[int, int]]:
        """Read the facts of the windows; return them and the position of the audit after the read."""
        held = self._beacons.watermarks()
        position = self._audit.position(held)
        plan = self._plan(known, list(shares), position)
        wanted: defaultdict[str, list[OffsetRange]] = defaultdict(list)
        for (pipeline, _), share in shares.items():
            wanted[pipeline] += share.ranges
        together = merge_ranges(place for of_it in wanted.values() for place in in_few_ranges(of_it))
        ranges = clamp(merge_ranges(together + unseen(position, held)), held)
        kept = [record for share in shares.values() for record in share.kept]
        reading = self.reader.read(ranges, plan, kept) if kept else self.reader.read(ranges, plan)
        self.demand_same_topic()
        self._metrics.read(records_in(ranges), reading.value_bytes)
        return _with_refused(reading, shares), advanced(position, ranges)

    def _plan_of(self, known: JudgementContext, window: tuple[str, int]) -> WindowPlan:
        graph, evidence = known.graph(*window), known.evidence(*window)
        others = self._watch.checkpoints.get(window[0], frozenset())
        return WindowPlan(graph, window[1], horizon(graph, evidence).cuts, evidence.sample, others)

    def _plan(self, known: JudgementContext, windows: Windows, position: Mapping[int, int]) -> ReadPlan:
        """Return the plan of a read up to ends of the log that were asked for before this."""
        pipelines = frozenset({*self._watch.look(), *known.versions})
        plans = [self._plan_of(known, window) for window in windows]
        return ReadPlan({plan.key: plan for plan in plans}, pipelines, position)

    def _close_early(self, caught_up_ms: int, now_ms: int, ends_at: float) -> None:
        """Close windows that are over before their grace ends, if all their emitters are final and nothing is
        missing."""
        schedules = self._watch.schedules
        over = self._turn({name: schedule.maybe_early(caught_up_ms, now_ms) for name, schedule in schedules.items()})
        if not over:
            return
        isolate(
            over,
            lambda some: self._close_together_early(some, caught_up_ms, now_ms, ends_at),
            lambda window, _: self._watch.schedules[window[0]].tried_early(window[1], now_ms, read=False),
            ends_at,
        )

    def _close_together_early(self, windows: Windows, caught_up_ms: int, now_ms: int, ends_at: float) -> int:
        known = self._known(windows, caught_up_ms)
        windows, proven = self._proven(known, windows, _planned_by(ends_at))
        read = self._close(known, sorted(proven), proven)
        for window in sorted(set(windows) - proven):
            self._try_reading_early(known, window, now_ms)
            if time.monotonic() >= ends_at:
                break
        return read

    def _try_reading_early(self, known: JudgementContext, window: tuple[str, int], now_ms: int) -> None:
        """Read a window that tallies do not prove, if it looks whole; keep the result only if nothing is missing."""
        pipeline, start = window
        schedule = self._watch.schedules[pipeline]
        entry = schedule.entry(start)
        worth_it = entry.read_early != entry.changed_at and looks_whole(known.graph(*window), known.evidence(*window))
        shares = self._shares(known, [window]) if worth_it else {}
        if shares:
            known = self._with_newest(known, [window])
            reading, position = self._read(known, shares)
            facts = reading.facts[block_key(*window)]
            if nothing_missing(close(known, pipeline, start, facts).result):
                self._commit(known, {window: facts}, reading, position)
                return
        schedule.tried_early(start, now_ms, read=bool(shares))

    def _judge_again(self, caught_up_ms: int, ends_at: float) -> None:
        """Judge again windows whose deadline has passed, or whose emitters fell silent or came back: no block is read,
        unless a cut falls inside a pattern."""
        schedules = self._watch.schedules
        self._try_again(caught_up_ms, ends_at)
        windows = {(name, start) for name, schedule in schedules.items() for start in schedule.to_judge(caught_up_ms)}
        windows |= {window for window in self._silence.touched(caught_up_ms) if window[0] in schedules}
        windows = {window for window in windows if _item(window) not in self._failures}
        if not windows:
            return
        with self._engine.connect() as connection:
            states = unfinished.read_states(connection, sorted(windows))
        batch = self._turn(_by_pipeline(window for window, state in states.items() if state == "closed"))
        if batch:
            isolate(
                batch,
                lambda some: self._judge_together(some, caught_up_ms, ends_at),
                lambda window, error: self._set_aside(window, error, caught_up_ms),
                ends_at,
            )

    def _try_again(self, caught_up_ms: int, ends_at: float) -> None:
        """Close windows that were set aside, as their time has come; forget those that no closing wants any more."""
        due = self._failures.due("window", caught_up_ms)
        windows = [_window(item) for item in due if item.pipeline not in self._watch.deferred]
        if not windows:
            return
        with self._engine.connect() as connection:
            states = unfinished.read_states(connection, windows)
        gone = [window for window in windows if states.get(window) != "closed" or window[0] not in self._watch.versions]
        self._failures.forget(map(_item, gone))
        left = set(windows) - set(gone)
        self.close_windows(self._turn(_by_pipeline(left)), caught_up_ms, ends_at=ends_at)

    def _judge_together(self, batch: Windows, caught_up_ms: int, ends_at: float) -> int:
        known = self._with_newest(self._known(batch, caught_up_ms), batch)
        found, straddled = [], []
        with self._engine.begin() as connection:
            for window, (facts, basis) in closings.read_facts(connection, batch).items():
                if known.reports.changed.get(window, 0) > basis:
                    continue  # its tallies changed since it was read: it is closed again once they stand still
                try:
                    found.append(close(known, *window, facts, is_read=False))
                except CutInsidePattern:
                    straddled.append(window)
            made = self._store(connection, known, found)
        self._committed(found, made)
        return self.close_windows(straddled, caught_up_ms, ends_at=ends_at)


def _planned_by(ends_at: float) -> float:
    return max(ends_at, time.monotonic() + PLAN_S)


def _with_refused(reading: Reading, shares: Mapping[tuple[str, int], Share]) -> Reading:
    """Count the ranges that were refused of these windows among their bad records, and show them."""
    facts, bad = dict(reading.facts), list(reading.bad)
    for window, share in shares.items():
        if share.refused:
            key = block_key(*window)
            refused: dict[BadReason, int] = {"range_invalid": len(share.refused)}
            facts[key] = replace(facts[key], bad={**facts[key].bad, **refused})
            bad += [
                BadBlock(at.partition, at.last, "range_invalid", b"%s %d..%d" % (key, at.first, at.last))
                for at in share.refused
            ]
    return replace(reading, facts=facts, bad=tuple(bad))


def _by_pipeline(windows: Iterable[tuple[str, int]]) -> Mapping[str, list[int]]:
    """Return the starts of these windows by pipeline, oldest first."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for pipeline, start in sorted(windows):
        found[pipeline].append(start)
    return found


def _item(window: tuple[str, int]) -> Item:
    return Item("window", window[0], rfc3339(window[1]))


def _window(item: Item) -> tuple[str, int]:
    return item.pipeline, int(datetime.fromisoformat(item.name).timestamp())
