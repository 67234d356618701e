"""Sum of a batch of reports: the newest state of emitters, lanes and tallies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from aggregator.reports.packed_reports import PackedReport, PackedTally, read_reports
from aggregator.reports.undeclared import Name, UndeclaredNames, is_strange, strange_names
from lagloss.wire.checks import window_problem
from lagloss.wire.format import BadReason, BadRecord, EmitterReport, Progress
from lagloss_server.model.graph import node_of
from lagloss_server.rules.clock_skew import Skew


class ReportRecord(NamedTuple):
    """One record of the reports topic."""

    partition: int
    offset: int
    appended_ms: int
    value: bytes | None


@dataclass(slots=True)
class FollowedTally:
    """A tally with the seq of its report and when its content last changed (epoch ms)."""

    tally: PackedTally
    seq: int
    changed_at: int


Checkpoints = Mapping[str, frozenset[str]]
"""The checkpoints of each pipeline, of all versions of its definition together."""
Account = tuple[str, bytes]
"""Pipeline and emitter."""
LaneKey = tuple[str, str, str, bytes]
TallyKey = tuple[str, int, bytes, str, str]


@dataclass
class ReportBatch:
    """Sum of a batch of reports: the newest of everything. Pure; `ReportConsumer` writes it."""

    emitters: dict[Account, tuple[EmitterReport, int]] = field(default_factory=dict)
    skews: dict[Account, Skew] = field(default_factory=dict)
    inputs: dict[Account, frozenset[str]] = field(default_factory=dict)
    lanes: dict[LaneKey, tuple[Progress, ReportRecord, bytes]] = field(default_factory=dict)
    """The newest progress of each lane, the record it is of, and the emitter that reported it."""
    tallies: dict[TallyKey, FollowedTally] = field(default_factory=dict)
    bad: dict[tuple[int, int], tuple[ReportRecord, BadReason]] = field(default_factory=dict)
    """By partition and offset, with the first reason that was found."""
    positions: dict[int, int] = field(default_factory=dict)
    strangers: UndeclaredNames = field(default_factory=UndeclaredNames)

    def take(self, records: Sequence[ReportRecord], known: Checkpoints) -> None:
        """Add records in the order of their appending; count a bad one, or bad parts of it, by reason.

        What merely names something that no definition has is kept all the same, up to a limit: see `strangers`.
        """
        nodes = {pipeline: frozenset(map(node_of, checkpoints)) for pipeline, checkpoints in known.items()}
        for record, report in zip(records, read_reports([record.value for record in records]), strict=True):
            self.pass_over(record)
            if isinstance(report, BadRecord):
                self.quarantine(record, report.reason)
            else:
                self._take(record, report, known.get(report.head.pipeline), nodes.get(report.head.pipeline))

    def _take(
        self, record: ReportRecord, report: PackedReport, here: frozenset[str] | None, nodes: frozenset[str] | None
    ) -> None:
        """Add a report; `here`, `nodes`: what its pipeline's definitions name, None if there are none."""
        head = report.head
        if here is None and not self._admit(record, head, Name("pipeline", head.pipeline)):
            return
        if not self.strangers.admit_emitter(head.pipeline, head.emitter):
            self.quarantine(record, "too_many_names")
            return
        progresses = [found for found in head.progress if self._keeps(record, head, found, here or frozenset())]
        tallies = [found for found in report.tallies if self._keeps(record, head, found, here or frozenset())]
        stranger = _stranger(report, here, nodes)
        if stranger is not None:
            self.quarantine(record, stranger)
        account = (head.pipeline, head.emitter)
        newest, appended_at = self.emitters.get(account, (head, 0))
        self.emitters[account] = (
            head if head.seq >= newest.seq else newest,
            max(appended_at, record.appended_ms),
        )
        skew = Skew.of(record.appended_ms, head.sent_at, closed=head.closed)
        before = self.skews.get(account)
        self.skews[account] = skew if before is None else before.merged(skew)
        into = f"{head.node}.in"
        lanes = frozenset([progress.lane for progress in progresses if progress.lane and progress.checkpoint == into])
        self.inputs[account] = self.inputs.get(account, frozenset()) | lanes
        for progress in progresses:
            self._take_progress(record, head, progress)
        for tally in tallies:
            self._take_tally(record, head, tally)

    def quarantine(self, record: ReportRecord, reason: BadReason) -> None:
        """Count a record, or a part of it, as bad by its first reason."""
        self.pass_over(record)
        self.bad.setdefault((record.partition, record.offset), (record, reason))

    def pass_over(self, record: ReportRecord) -> None:
        """Count a record as followed, whatever it holds."""
        self.positions[record.partition] = max(self.positions.get(record.partition, 0), record.offset + 1)

    def _admit(self, record: ReportRecord, head: EmitterReport, name: Name) -> bool:
        if self.strangers.admit(name, head.emitter, record.appended_ms):
            return True
        self.quarantine(record, "too_many_names")
        return False

    def _keeps(
        self, record: ReportRecord, head: EmitterReport, part: PackedTally | Progress, here: frozenset[str]
    ) -> bool:
        """Return whether there is room for the names in this part of a report."""
        names = strange_names(head.pipeline, part, here)
        return not names or all(self._admit(record, head, name) for name in names)

    def _take_progress(self, record: ReportRecord, head: EmitterReport, progress: Progress) -> None:
        holder = b"" if progress.lane else head.emitter
        key = (head.pipeline, progress.checkpoint, progress.lane, holder)
        before = self.lanes.get(key)
        if before is None or position(record) >= position(before[1]):
            self.lanes[key] = (progress, record, head.emitter)

    def _take_tally(self, record: ReportRecord, head: EmitterReport, tally: PackedTally) -> None:
        reason = window_problem(tally.window_start, record.appended_ms)
        if reason is not None:
            self.quarantine(record, reason)
            return
        key = (head.pipeline, tally.window_start, head.emitter, tally.checkpoint, tally.replay or "")
        before = self.tallies.get(key)
        if before is None:
            self.tallies[key] = FollowedTally(tally, head.seq, record.appended_ms)
        elif head.seq > before.seq:
            changed_at = before.changed_at if tally == before.tally else record.appended_ms
            self.tallies[key] = FollowedTally(tally, head.seq, changed_at)


def _stranger(
    report: PackedReport, checkpoints: frozenset[str] | None, nodes: frozenset[str] | None
) -> BadReason | None:
    """Return the reason if no version of any definition has a name in the report; None if all names are declared."""
    if checkpoints is None or nodes is None:
        return "unknown_pipeline"
    if report.head.node not in nodes:
        return "unknown_node"
    parts: tuple[PackedTally | Progress, ...] = (*report.tallies, *report.head.progress)
    undeclared = {part.checkpoint for part in parts} - checkpoints
    return "unknown_checkpoint" if any(is_strange(name, checkpoints) for name in undeclared) else None


def position(record: ReportRecord) -> tuple[int, int, int]:
    return record.appended_ms, record.partition, record.offset
