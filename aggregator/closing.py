"""The closer: finds windows that are due or dirty, reads their blocks, judges and commits them. One at a time in a
cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
from sqlalchemy import Connection, Engine, select, update

from aggregator import closings, quarantine
from aggregator.agenda import SETTLE_MS, Agenda
from aggregator.closings import Closing, Windows
from aggregator.judging import Known, Versions, close, looks_whole, nothing_missing
from aggregator.metrics import Metrics
from aggregator.plan import ReadPlan, WindowPlan
from aggregator.reading import BlockReader, Reading
from lagloss import tables
from lagloss.arithmetic import Straddled, horizon
from lagloss.beacon_log import BeaconLog
from lagloss.evidence import SILENT_AFTER_MS, STILL_EXPECTED_MS, Evidence
from lagloss.ranges import Watermarks, clamp, merge_ranges
from lagloss.store import Store
from lagloss.wire import WINDOW_S, OffsetRange, block_key

log = structlog.get_logger()

WINDOWS_A_READ = 200
"""How many windows one Spark read closes at the most."""
AUDIT_EVERY_S = 30
"""How often blocks that no closing read are looked at, for bad keys."""
AUDIT_AT_MOST = 200_000
"""Records a partition that an audit goes back at the most."""
DYING_MS = 10_000
"""A dead emitter's blocks may lie in the log up to this long after its last report."""


@dataclass
class Catchup:
    """Until when the reports have been followed: the newest moment whose end offsets the follower has passed."""

    caught_up_ms: int = 0
    _asked_ms: int = 0
    _ends: Mapping[int, int] = field(default_factory=dict)

    def update(self, now_ms: int, positions: Mapping[int, int], ends: Callable[[], Mapping[int, int]]) -> int:
        if not self._asked_ms:
            self._asked_ms, self._ends = now_ms, ends()
        if all(positions.get(partition, 0) >= end for partition, end in self._ends.items()):
            self.caught_up_ms, self._asked_ms = self._asked_ms, 0
        return self.caught_up_ms


class Closer:
    """Keeps the windows of all pipelines closed. `tick` does what is due; call it again and again."""

    def __init__(self, engine: Engine, store: Store, reader: BlockReader, beacons: BeaconLog, metrics: Metrics) -> None:
        self.engine = engine
        self.store = store
        self.reader = reader
        self.beacons = beacons
        self.metrics = metrics
        self._versions: dict[str, Versions] = {}
        self._agendas: dict[str, Agenda] = {}
        self._seen_basis = 0
        self._tried_early: dict[tuple[str, int], int] = {}
        self._silent: dict[tuple[str, bytes], int] = {}
        self._audited_at = 0.0
        self._checked_seals_at = 0.0

    def tick(self, caught_up_ms: int, now_ms: int) -> bool:
        """Close what is due or dirty, judge what time may have changed. Whether there was anything to do.

        `caught_up_ms` is the moment as of which all reports are followed; it is the clock of every judgement.
        """
        self.refresh()
        asked = self._recompute_asked(caught_up_ms)
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
        self._audit()
        self._seal()
        return asked

    def refresh(self) -> None:
        """Learn of new definitions, and of tallies that changed."""
        self._refresh_definitions()
        self._refresh_agendas()

    def close_windows(self, windows: Windows, now_ms: int, *, only_if_whole: bool = False) -> int:
        """Read, judge and commit these windows; how many beacons were read. `only_if_whole` keeps only windows that are
        final with nothing missing."""
        started = time.monotonic()
        known = self._known(windows, now_ms)
        reading, read_to = self._read(known, windows)
        committed = 0
        with self.engine.begin() as connection:
            closings.write_audited(connection, read_to)
            quarantine.record(
                connection,
                self.beacons.topic,
                [(bad.partition, bad.offset, bad.reason, bad.first_bytes) for bad in reading.bad],
            )
            for pipeline, start in windows:
                facts = reading.facts[block_key(pipeline, start)]
                settle_ms = self._agendas[pipeline].entry(start).next_settle_ms()
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

    def _commit(self, connection: Connection, pipeline: str, closing: Closing) -> None:
        revision = closings.commit(connection, closing)
        self._agendas[pipeline].closed(
            closing.result.window_start_s, closing.basis, closing.settle_ms, closing.deadline
        )
        if revision is not None:
            self.metrics.window(closing.result, revision)

    def _refresh_definitions(self) -> None:
        stored: dict[str, list[object]] = {}
        versions = self.store.versions()
        for version in versions:
            stored.setdefault(version.name, []).append(version)
        for name, found in stored.items():
            known = self._versions.get(name)
            if known is None or known.count != len(found):
                self._versions[name] = Versions([version for version in versions if version.name == name])
                grace_ms = self._versions[name].newest.definition.spec.grace
                if name in self._agendas:
                    self._agendas[name].grace_ms = grace_ms
                else:
                    self._agendas[name] = Agenda(grace_ms)
                    self._seen_basis = 0

    def _refresh_agendas(self) -> None:
        with self.engine.connect() as connection:
            if self._seen_basis == 0:
                for row in closings.read_closed(connection):
                    if row.pipeline in self._agendas:
                        self._agendas[row.pipeline].closed(
                            row.window_start, row.basis, row.settle_ms, row.deadline, sealed=row.state == "sealed"
                        )
            for row in closings.read_changes(connection, self._seen_basis):
                self._seen_basis = max(self._seen_basis, row.basis)
                if row.pipeline in self._agendas:
                    self._agendas[row.pipeline].tally_changed(row.window_start, row.basis, row.changed_at)

    def _known(self, windows: Windows, now_ms: int) -> Known:
        """What the reports tell of these windows, as of one moment."""
        with self.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
            told = closings.read_told(connection, windows)
            newest = {
                pipeline: closings.newest_with_beacons(
                    connection,
                    pipeline,
                    min(start for name, start in windows if name == pipeline),
                    self._agendas[pipeline].newest_due_s(now_ms),
                )
                for pipeline in {name for name, _ in windows}
                if self._has_mute_places(pipeline, {lane.checkpoint for lane in told.lanes[pipeline]})
            }
        return Known(told, self._versions, newest, now_ms)

    def _has_mute_places(self, pipeline: str, reported: set[str]) -> bool:
        return any(place.progress not in reported for place in self._versions[pipeline].newest.places)

    def _read(self, known: Known, windows: Windows) -> tuple[Reading, dict[int, int]]:
        """The facts of the windows, and up to where each partition has now been looked at."""
        held = self.beacons.watermarks()
        plans = {}
        for pipeline, start in windows:
            graph, evidence = known.graph(pipeline, start), known.evidence(pipeline, start)
            plan = WindowPlan(graph, start, horizon(graph, evidence).cuts, evidence.sample)
            plans[plan.key] = plan
        wanted = [place for window in windows for place in known.told.ranges[window]]
        for pipeline, start in windows:
            wanted += self._last_words(known.evidence(pipeline, start), held)
        unseen = self._unseen(held)
        ranges = clamp(merge_ranges(merge_ranges(wanted) + unseen), held)
        self.metrics.read(sum(place.last - place.first + 1 for place in ranges))
        reading = self.reader.read(ranges, ReadPlan(plans, frozenset(self._versions)))
        return reading, {partition: marks.high for partition, marks in held.items()}

    def _last_words(self, evidence: Evidence, held: Mapping[int, Watermarks]) -> list[OffsetRange]:
        """Where blocks of an emitter that died in or near this window may lie without a tally: around its last
        report."""
        ranges = []
        for state in evidence.emitters:
            if state.is_silent_in(evidence.window_start_s, evidence.now_ms):
                first = self.beacons.offsets_at(state.appended_at - DYING_MS)
                last = self.beacons.offsets_at(state.appended_at + DYING_MS)
                ranges += [OffsetRange(partition, first[partition], last[partition]) for partition in held]
        return ranges

    def _unseen(self, held: Mapping[int, Watermarks]) -> list[OffsetRange]:
        """What nobody has looked at yet: read along with the rest, so that every bad key is counted once."""
        with self.engine.connect() as connection:
            audited = closings.read_audited(connection)
        return [
            OffsetRange(partition, max(audited.get(partition, 0), marks.high - AUDIT_AT_MOST), marks.high - 1)
            for partition, marks in held.items()
            if audited.get(partition, 0) < marks.high
        ]

    def _audit(self) -> None:
        if time.monotonic() - self._audited_at < AUDIT_EVERY_S:
            return
        self._audited_at = time.monotonic()
        held = self.beacons.watermarks()
        ranges = clamp(self._unseen(held), held)
        if not ranges:
            return
        reading = self.reader.read(ranges, ReadPlan({}, frozenset(self._versions)))
        with self.engine.begin() as connection:
            closings.write_audited(connection, {partition: marks.high for partition, marks in held.items()})
            quarantine.record(
                connection,
                self.beacons.topic,
                [(bad.partition, bad.offset, bad.reason, bad.first_bytes) for bad in reading.bad],
            )

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
        windows = {
            (pipeline, start) for pipeline, agenda in self._agendas.items() for start in agenda.to_judge(caught_up_ms)
        } | self._touched_by_silence(caught_up_ms)
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

    def _touched_by_silence(self, caught_up_ms: int) -> set[tuple[str, int]]:
        """Closed windows in which an emitter has fallen silent, or speaks again, since the last look."""
        emitter = tables.Emitter
        with self.engine.connect() as connection:
            rows = connection.execute(
                select(emitter.pipeline, emitter.emitter, emitter.appended_at).where(
                    emitter.closed.is_(False), emitter.appended_at < caught_up_ms - SILENT_AFTER_MS
                )
            )
            silent = {(row.pipeline, row.emitter): row.appended_at for row in rows if row.pipeline in self._agendas}
            moved = dict(silent.items() ^ self._silent.items())
            touched = [self._around(connection, *account, appended_at) for account, appended_at in moved.items()]
        self._silent = silent
        return set().union(*touched)

    def _around(self, connection: Connection, pipeline: str, emitter: bytes, appended_at: int) -> set[tuple[str, int]]:
        tally = tables.Tally
        first = connection.execute(
            select(tally.window_start)
            .where(
                tally.emitter == emitter,
                tally.pipeline == pipeline,
                tally.changed_at >= appended_at - closings.DISTURBED_MS,
            )
            .order_by(tally.window_start)
            .limit(1)
        ).scalar_one_or_none()
        start = min(first, appended_at // 60_000 * 60) if first is not None else appended_at // 60_000 * 60
        stop = (appended_at + SILENT_AFTER_MS + STILL_EXPECTED_MS) // 1000 + WINDOW_S
        agenda = self._agendas[pipeline]
        return {
            (pipeline, at)
            for at in range(start, stop, WINDOW_S)
            if agenda.entry(at).basis > 0 and not agenda.entry(at).sealed
        }

    def _recompute_asked(self, now_ms: int) -> bool:
        """Answer one `lagloss recompute`: close its windows again from the log."""
        request = tables.table_of(tables.RecomputeRequest)
        with self.engine.connect() as connection:
            row = connection.execute(
                select(request).where(request.c.answer.is_(None)).order_by(request.c.id).limit(1)
            ).one_or_none()
        if row is None:
            return False
        started = time.monotonic()
        with self.engine.begin() as connection:
            answer = self._recompute(row.pipeline, row.from_s, row.to_s, now_ms)
            answer["seconds"] = round(time.monotonic() - started, 3)
            connection.execute(update(request).where(request.c.id == row.id).values(answer=answer))
        return True

    def _recompute(self, pipeline: str, from_s: int, to_s: int, now_ms: int) -> dict[str, object]:
        agenda = self._agendas.get(pipeline)
        if agenda is None:
            return {"windows": 0, "beacons": 0, "sealed": 0}
        starts = [
            start for start in range(-(-from_s // WINDOW_S) * WINDOW_S, to_s, WINDOW_S) if agenda.entry(start).basis > 0
        ]
        held = [(pipeline, start) for start in starts if not agenda.entry(start).sealed]
        self._seal_now(held)
        held = [(pipeline, start) for pipeline, start in held if not agenda.entry(start).sealed]
        beacons = 0
        for at in range(0, len(held), WINDOWS_A_READ):
            beacons += self.close_windows(held[at : at + WINDOWS_A_READ], now_ms)
        return {"windows": len(held), "beacons": beacons, "sealed": len(starts) - len(held)}

    def _seal(self) -> None:
        """Now and then: mark windows whose blocks the log no longer holds."""
        if time.monotonic() - self._checked_seals_at < 60:
            return
        self._checked_seals_at = time.monotonic()
        with self.engine.connect() as connection:
            rows = closings.read_closed(connection)
        self._seal_now([(row.pipeline, row.window_start) for row in rows if row.state == "closed"])

    def _seal_now(self, windows: Sequence[tuple[str, int]]) -> None:
        if not windows:
            return
        held = self.beacons.watermarks()
        with self.engine.begin() as connection:
            rows = closings.read_closed(connection, windows)
            gone = [(row.pipeline, row.window_start) for row in rows if _is_gone(row.log_start, held)]
            closings.seal(connection, gone)
        for pipeline, start in gone:
            if pipeline in self._agendas:
                entry = self._agendas[pipeline].entry(start)
                self._agendas[pipeline].closed(start, entry.basis, SETTLE_MS, None, sealed=True)


def _is_gone(log_start: Iterable[tuple[int, int]], held: Mapping[int, Watermarks]) -> bool:
    """Whether a window's blocks are no longer all in the log."""
    return any(partition not in held or first < held[partition].low for partition, first in log_start)
