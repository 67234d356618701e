"""Sum of a batch of reports: the newest state of emitters, lanes and tallies. Pure; `following` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aggregator.reports.undeclared import Name, UndeclaredNames, is_strange, strange_names
from lagloss.wire.checks import read_report, window_problem
from lagloss.wire.format import BadReason, BadRecord, EmitterReport, Progress, Tally
from lagloss_server.model.graph import node_of
from lagloss_server.rules.clock_skew import Skew


@dataclass(frozen=True, slots=True)
class ReportRecord:
    """One record of the reports topic."""

    partition: int
    offset: int
    appended_ms: int
    value: bytes | None


@dataclass(frozen=True, slots=True)
class FollowedTally:
    """A tally with the seq of its report and when its content last changed."""

    tally: Tally
    report: EmitterReport
    seq: int
    changed_at: int


Checkpoints = Mapping[str, frozenset[str]]
"""The checkpoints of each pipeline, of all versions of its definition together."""
LaneKey = tuple[str, str, str, bytes]
TallyKey = tuple[str, int, bytes, str, str]


@dataclass
class ReportBatch:
    """Sum of a batch of reports: the newest of everything. Pure; `ReportFollower` writes it."""

    emitters: dict[tuple[str, bytes], tuple[EmitterReport, int]] = field(default_factory=dict)
    skews: dict[tuple[str, bytes], Skew] = field(default_factory=dict)
    inputs: dict[tuple[str, bytes], set[str]] = field(default_factory=dict)
    lanes: dict[LaneKey, tuple[Progress, ReportRecord, bytes]] = field(default_factory=dict)
    """The newest progress of each lane, the record it is of, and the emitter that reported it."""
    tallies: dict[TallyKey, FollowedTally] = field(default_factory=dict)
    bad: dict[tuple[int, int], tuple[ReportRecord, BadReason]] = field(default_factory=dict)
    """By partition and offset, with the first reason that was found."""
    positions: dict[int, int] = field(default_factory=dict)
    strangers: UndeclaredNames = field(default_factory=UndeclaredNames)

    def take(self, record: ReportRecord, known: Checkpoints) -> None:
        """Add one record; count a bad one, or bad parts of it, by reason.

        What merely names something that no definition has is kept all the same, up to a limit: see `strangers`.
        """
        self.pass_over(record)
        try:
            report = read_report(record.value)
        except BadRecord as bad:
            self.quarantine(record, bad.reason)
            return
        if report.pipeline not in known and not self._admit(record, report, Name("pipeline", report.pipeline)):
            return
        if not self.strangers.admit_emitter(report.pipeline, report.emitter):
            self.quarantine(record, "too_many_names")
            return
        here = known.get(report.pipeline, frozenset())
        progresses = [found for found in report.progress if self._keeps(record, report, found, here)]
        tallies = [found for found in report.tallies if self._keeps(record, report, found, here)]
        stranger = _stranger(report, known)
        if stranger is not None:
            self.quarantine(record, stranger)
        account = (report.pipeline, report.emitter)
        newest, appended_at = self.emitters.get(account, (report, 0))
        self.emitters[account] = (
            report if report.seq >= newest.seq else newest,
            max(appended_at, record.appended_ms),
        )
        skew = Skew.of(record.appended_ms, report.sent_at, closed=report.closed)
        self.skews[account] = self.skews.get(account, Skew()).merged(skew)
        into = f"{report.node}.in"
        lanes = {progress.lane for progress in progresses if progress.lane and progress.checkpoint == into}
        self.inputs.setdefault(account, set()).update(lanes)
        for progress in progresses:
            self._take_progress(record, report, progress)
        for tally in tallies:
            self._take_tally(record, report, tally)

    def quarantine(self, record: ReportRecord, reason: BadReason) -> None:
        """Count a record, or a part of it, as bad by its first reason."""
        self.pass_over(record)
        self.bad.setdefault((record.partition, record.offset), (record, reason))

    def pass_over(self, record: ReportRecord) -> None:
        """Count a record as followed, whatever it holds."""
        self.positions[record.partition] = max(self.positions.get(record.partition, 0), record.offset + 1)

    def _admit(self, record: ReportRecord, report: EmitterReport, name: Name) -> bool:
        if self.strangers.admit(name, report.emitter, record.appended_ms):
            return True
        self.quarantine(record, "too_many_names")
        return False

    def _keeps(self, record: ReportRecord, report: EmitterReport, part: Tally | Progress, here: frozenset[str]) -> bool:
        """Return whether there is room for the names in this part of a report."""
        return all(self._admit(record, report, name) for name in strange_names(report.pipeline, part, here))

    def _take_progress(self, record: ReportRecord, report: EmitterReport, progress: Progress) -> None:
        holder = b"" if progress.lane else report.emitter
        key = (report.pipeline, progress.checkpoint, progress.lane, holder)
        before = self.lanes.get(key)
        if before is None or position(record) >= position(before[1]):
            self.lanes[key] = (progress, record, report.emitter)

    def _take_tally(self, record: ReportRecord, report: EmitterReport, tally: Tally) -> None:
        reason = window_problem(tally.window_start, record.appended_ms)
        if reason is not None:
            self.quarantine(record, reason)
            return
        key = (report.pipeline, tally.window_start, report.emitter, tally.checkpoint, tally.replay or "")
        before = self.tallies.get(key)
        if before is None:
            self.tallies[key] = FollowedTally(tally, report, report.seq, record.appended_ms)
        elif report.seq > before.seq:
            same = _content(tally) == _content(before.tally)
            changed_at = before.changed_at if same else record.appended_ms
            self.tallies[key] = FollowedTally(tally, report, report.seq, changed_at)


def _stranger(report: EmitterReport, known: Checkpoints) -> BadReason | None:
    """Return the reason if no version of any definition has a name in the report; None if all names are declared."""
    checkpoints = known.get(report.pipeline)
    if checkpoints is None:
        return "unknown_pipeline"
    if report.node not in {node_of(name) for name in checkpoints}:
        return "unknown_node"
    named = {tally.checkpoint for tally in report.tallies} | {progress.checkpoint for progress in report.progress}
    return "unknown_checkpoint" if any(is_strange(name, checkpoints) for name in named) else None


def position(record: ReportRecord) -> tuple[int, int, int]:
    return record.appended_ms, record.partition, record.offset


def _content(tally: Tally) -> tuple[Any, ...]:
    """Return the content of a tally; another content makes it a changed one."""
    return (
        tally.sample,
        tally.beacons,
        tally.payload_bytes,
        tally.id_sum,
        tally.dropped,
        tally.lag_sketch.bins(),
        [(found.partition, found.first, found.last) for found in tally.ranges],
    )
