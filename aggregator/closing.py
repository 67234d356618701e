"""The closer: finds windows that are due or dirty, reads their blocks, judges and commits them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import groupby

import structlog
from sqlalchemy import Connection, Engine

from aggregator import closings, quarantine
from aggregator.agenda import Agenda, Entry
from aggregator.closings import Closing, Windows
from aggregator.judging import Known, Versions, close, looks_whole, nothing_missing
from aggregator.metrics import Metrics
from aggregator.plan import ReadPlan, WindowPlan
from aggregator.reading import BlockReader, Reading
from aggregator.silence import SilenceWatch
from lagloss.arithmetic import Straddled, horizon
from lagloss.beacon_log import BeaconLog
from lagloss.emitters import last_words
from lagloss.ranges import Watermarks, clamp, merge_ranges
from lagloss.store import Store
from lagloss.wire import WINDOW_S, OffsetRange, block_key

log = structlog.get_logger()

WINDOWS_A_READ = 200
"""How many windows one Spark read closes at the most."""
UNSEEN_AT_MOST = 200_000
"""How many records of a partition that nobody has looked at yet are read along with a closing."""


class Closer:
    """Keeps the windows of all pipelines closed. `tick` does what is due; call it again and again."""

    def __init__(self, engine: Engine, store: Store, reader: BlockReader, beacons: BeaconLog, metrics: Metrics) -> None:
        self.engine = engine
        self.store = store
        self.reader = reader
        self.beacons = beacons
        self.metrics = metrics
        self.checkpoints: Mapping[str, frozenset[str]] = {}
        """The checkpoints of each pipeline, of all versions together; replaced whole, so any thread may read it."""
        self._versions: dict[str, Versions] = {}
        self._version_count = 0
        self._topic_id = beacons.topic_id()
        self._agendas: dict[str, Agenda] = {}
        self._seen_basis = 0
        self._tried_early: dict[tuple[str, int], int] = {}
        self._silence = SilenceWatch(engine)

    def tick(self, caught_up_ms: int, now_ms: int) -> bool:
        """Close what is due or dirty, judge what time may have changed. Whether there was anything to do.

        `caught_up_ms` is the moment as of which all reports are followed; it is the clock of every judgement.
        """
        self.refresh()
        due = [
            (pipeline, start)
            for pipeline, agenda in self._agendas.items()
            for start in agenda.to_close(caught_up_ms, now_ms)
        ][:WINDOWS_A_READ]
        if due:
            self.close_windows(due, caught_up_ms)
            return True
        self._close_early(caught_up_ms, now_ms)
        self._judge_again(caught_up_ms)
        return False

    def refresh(self) -> None:
        """Learn of new definitions, and of tallies that changed."""
        self._refresh_definitions()
        self._refresh_agendas()

    def close_windows(self, windows: Windows, now_ms: int, *, only_if_whole: bool = False) -> int:
        """Read, judge and commit these windows; how many beacons were read. `only_if_whole` keeps only windows that are
        final with nothing missing."""
        started = time.monotonic()
        gone = self.seal_gone([window for window in windows if self._entry(window).basis])
        windows = [window for window in windows if window not in gone]
        if not windows:
            return 0
        known = self._known(windows, now_ms)
        reading, read_to = self._read(known, windows)
        committed = 0
        with self.engine.begin() as connection:
            self._record_reading(connection, reading, read_to)
            for pipeline, start in windows:
                facts = reading.facts[block_key(pipeline, start)]
                settle_ms = self._entry((pipeline, start)).next_settle_ms()
                closing = close(known, pipeline, start, facts, settle_ms)
                if only_if_whole and not nothing_missing(closing.result):
                    continue
                self._commit(connection, pipeline, closing)
                committed += 1
        beacons = sum(sum(facts.read.values()) for facts in reading.facts.values())
        self.metrics.closed(committed, beacons, time.monotonic() - started)
        log.info(
            "closed", windows=committed, of=len(windows), beacons=beacons, seconds=round(time.monotonic() - started, 2)
        )
        return beacons

    def read_nothing_new(self) -> None:
        """Look at what no closing has read, only for records with a key that no good block has."""
        held = self.beacons.watermarks()
        ranges = clamp(self._unseen(held), held)
        if ranges:
            reading = self.reader.read(ranges, ReadPlan({}, frozenset(self._versions)))
            with self.engine.begin() as connection:
                self._record_reading(connection, reading, {partition: marks.high for partition, marks in held.items()})

    def closed_windows(self, pipeline: str, from_s: int, to_s: int) -> list[tuple[str, int]]:
        """The windows with from <= start < to that have been closed; `from_s` must be a window's start."""
        starts = range(from_s, to_s, WINDOW_S) if pipeline in self._agendas else ()
        return [(pipeline, start) for start in starts if self._entry((pipeline, start)).basis > 0]

    def seal_gone(self, windows: Windows) -> set[tuple[str, int]]:
        """Seal those of these closed windows whose blocks the log no longer holds; they, and those sealed before."""
        sealed = {window for window in windows if self._entry(window).sealed}
        if len(sealed) == len(windows):
            return sealed
        held = self.beacons.watermarks()
        with self.engine.begin() as connection:
            rows = closings.read_closed(connection, windows)
            gone = [(row.pipeline, row.window_start) for row in rows if _is_gone(row.log_start, held)]
            closings.seal(connection, gone)
        for pipeline, start in gone:
            if pipeline in self._agendas:
                self._agendas[pipeline].sealed(start)
        return sealed | set(gone)

    def _entry(self, window: tuple[str, int]) -> Entry:
        pipeline, start = window
        agenda = self._agendas.get(pipeline)
        return Entry() if agenda is None else agenda.entry(start)

    def _record_reading(self, connection: Connection, reading: Reading, read_to: Mapping[int, int]) -> None:
        closings.write_audited(connection, read_to, self._topic_id)
        bad = [(found.partition, found.offset, found.reason, found.first_bytes) for found in reading.bad]
        quarantine.record(connection, self.beacons.topic, bad)

    def _commit(self, connection: Connection, pipeline: str, closing: Closing) -> None:
        revision, changed = closings.commit(connection, closing)
        self._agendas[pipeline].closed(
            closing.result.window_start_s, closing.basis, closing.settle_ms, closing.deadline
        )
        if changed:
            self.metrics.window(closing.result, revision)

    def _refresh_definitions(self) -> None:
        if self.store.count_versions() == self._version_count:
            return
        found = self.store.versions()
        self._version_count = len(found)
        for name, stored in groupby(found, key=lambda version: version.name):
            versions = list(stored)
            self._versions[name] = Versions(versions)
            if name not in self._agendas:
                self._agendas[name] = Agenda(versions[-1].definition.spec.grace)
                self._seen_basis = 0  # its tallies may be older than it
            self._agendas[name].grace_ms = versions[-1].definition.spec.grace
        self.checkpoints = {name: known.checkpoints for name, known in self._versions.items()}

    def _refresh_agendas(self) -> None:
        with self.engine.connect() as connection:
            if self._seen_basis == 0:
                for row in closings.read_closed(connection):
                    agenda = self._agendas.get(row.pipeline)
                    if agenda is None:
                        continue
                    agenda.closed(row.window_start, row.basis, row.settle_ms, row.deadline)
                    if row.state == "sealed":
                        agenda.sealed(row.window_start)
            for row in closings.read_changes(connection, self._seen_basis):
                self._seen_basis = max(self._seen_basis, row.basis)
                if row.pipeline in self._agendas:
                    self._agendas[row.pipeline].tally_changed(row.window_start, row.basis, row.changed_at)

    def _known(self, windows: Windows, now_ms: int) -> Known:
        """What the reports tell of these windows, as of one moment."""
        with self.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
            told = closings.read_told(connection, windows)
            newest = {}
            for pipeline in {name for name, _ in windows}:
                starts = [start for name, start in windows if name == pipeline]
                reported = {lane.checkpoint for lane in told.lanes[pipeline]}
                graphs = {self._versions[pipeline].at(start) for start in starts}
                if any(place.progress not in reported for graph in graphs for place in graph.places):
                    due = self._agendas[pipeline].newest_due_s(now_ms)
                    newest[pipeline] = closings.newest_with_beacons(connection, pipeline, min(starts), due)
        return Known(told, self._versions, newest, now_ms)

    def _read(self, known: Known, windows: Windows) -> tuple[Reading, dict[int, int]]:
        """The facts of the windows, and up to where each partition has now been looked at."""
        held = self.beacons.watermarks()
        plans = {}
        for pipeline, start in windows:
            graph, evidence = known.graph(pipeline, start), known.evidence(pipeline, start)
            plan = WindowPlan(graph, start, horizon(graph, evidence).cuts, evidence.sample)
            plans[plan.key] = plan
        wanted = [place for window in windows for place in known.told.ranges[window]]
        silent = [state for window in windows for state in known.evidence(*window).silent()]
        wanted += last_words(self.beacons, silent, held)
        unseen = self._unseen(held)
        ranges = clamp(merge_ranges(merge_ranges(wanted) + unseen), held)
        self.metrics.read(sum(place.last - place.first + 1 for place in ranges))
        reading = self.reader.read(ranges, ReadPlan(plans, frozenset(self._versions)))
        return reading, {partition: marks.high for partition, marks in held.items()}

    def _unseen(self, held: Mapping[int, Watermarks]) -> list[OffsetRange]:
        """What nobody has looked at yet: read along with the rest, so that every bad key is counted once."""
        with self.engine.connect() as connection:
            audited = closings.read_audited(connection)
        return [
            OffsetRange(partition, max(audited.get(partition, 0), marks.high - UNSEEN_AT_MOST), marks.high - 1)
            for partition, marks in held.items()
            if audited.get(partition, 0) < marks.high
        ]

    def _close_early(self, caught_up_ms: int, now_ms: int) -> None:
        """Windows that are over, where everybody is final and nothing is missing, need not wait for their grace."""
        for pipeline, agenda in self._agendas.items():
            over = list(agenda.maybe_early(caught_up_ms, now_ms))
            if not over:
                continue
            windows = [(pipeline, start) for start in over]
            known = self._known(windows, caught_up_ms)
            whole = [
                (pipeline, start)
                for start in over
                if self._tried_early.get((pipeline, start)) != agenda.entry(start).changed_at
                and looks_whole(known.graph(pipeline, start), known.evidence(pipeline, start))
            ]
            if whole:
                self._tried_early.update({(pipeline, start): agenda.entry(start).changed_at or 0 for _, start in whole})
                self.close_windows(whole, caught_up_ms, only_if_whole=True)

    def _judge_again(self, caught_up_ms: int) -> None:
        """Windows whose deadline has passed, or whose emitters fell silent or came back: no block is read, unless a cut
        falls inside a pattern."""
        windows = {(name, start) for name, agenda in self._agendas.items() for start in agenda.to_judge(caught_up_ms)}
        for window in self._silence.touched(caught_up_ms):
            if self._entry(window).basis and not self._entry(window).sealed:
                windows.add(window)
        if not windows:
            return
        batch = sorted(windows)[: 5 * WINDOWS_A_READ]
        known = self._known(batch, caught_up_ms)
        straddled = []
        with self.engine.begin() as connection:
            for pipeline, start in batch:
                found = closings.read_facts(connection, pipeline, start)
                if found is None:
                    continue
                facts, row = found
                if known.told.basis > row.basis and self._agendas[pipeline].entry(start).dirty_since is not None:
                    continue  # its tallies changed: it will be read once they stand still
                try:
                    closing = close(known, pipeline, start, facts, row.settle_ms)
                except Straddled:
                    straddled.append((pipeline, start))
                    continue
                self._commit(connection, pipeline, closing)
        for at in range(0, len(straddled), WINDOWS_A_READ):
            self.close_windows(straddled[at : at + WINDOWS_A_READ], caught_up_ms)


def _is_gone(log_start: Iterable[tuple[int, int]], held: Mapping[int, Watermarks]) -> bool:
    """Whether a window's blocks are no longer all in the log."""
    return any(partition not in held or first < held[partition].low for partition, first in log_start)
