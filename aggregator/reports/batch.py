"""Sum of a batch of reports: the newest state of emitters, lanes and tallies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from aggregator.reports.packed_reports import PackedReport, PackedTally, read_reports
from aggregator.reports.undeclared import Name, UndeclaredNames, is_strange, strange_names
from lagloss.wire.checks import window_problem
from lagloss.wire.format import BadReason, BadRecord, EmitterReport, Progress
from lagloss_server.judging.clock_skew import NO_SKEW, Skew
from lagloss_server.model.graph import node_of


class ReportRecord(NamedTuple):
    """One record of the reports topic. `is_append_time`: the broker's clock says when it was appended, not that of who
    sent it; `epoch`: of the leader that appended it, -1 if it is unknown."""

    partition: int
    offset: int
    appended_ms: int
    value: bytes | None
    is_append_time: bool = True
    epoch: int = -1


@dataclass(slots=True)
class FollowedTally:
    """A tally with the seq of its report and when its content last changed (epoch ms)."""

    tally: PackedTally
    seq: int
    changed_at: int


@dataclass(slots=True)
class EmitterHistory:
    """Highest seq of an emitter's reports so far, skew of its clock, lanes of its node's input that it reported, and
    `sent_at` of its last report (epoch ms)."""

    seq: int = -1
    skew: Skew = NO_SKEW
    inputs: frozenset[str] = frozenset()
    sent_at: int = 0


Checkpoints = Mapping[str, frozenset[str]]
"""The checkpoints of each pipeline, of all versions of its definition together."""
Account = tuple[str, bytes]
"""Pipeline and emitter."""
Recall = Callable[[AbstractSet[Account]], Mapping[Account, EmitterHistory]]
"""Returns what is stored of emitters; those of which nothing is are left out."""
LaneKey = tuple[str, str, str, bytes]
TallyKey = tuple[str, int, bytes, str, str]


@dataclass
class ReportBatch:
    """Sum of a batch of reports: the newest of everything. Pure; `ReportConsumer` writes it.

    A report counts if its seq is higher than that of every earlier report of its emitter. One that arrives again or
    late changes nothing, except for a tally that no later report has: later ones repeat only tallies that changed.
    """

    accounts: dict[Account, EmitterHistory] = field(default_factory=dict)
    """What is known of emitters by the reports so far, those of the batch included."""
    emitters: dict[Account, tuple[EmitterReport, int]] = field(default_factory=dict)
    """The newest report of each emitter that has one that counts, and when it was appended (epoch ms)."""
    lanes: dict[LaneKey, tuple[Progress, ReportRecord, bytes]] = field(default_factory=dict)
    """The newest progress of each lane, the record it is of, and the emitter that reported it."""
    tallies: dict[TallyKey, FollowedTally] = field(default_factory=dict)
    bad: dict[tuple[int, int], tuple[ReportRecord, BadReason]] = field(default_factory=dict)
    """By partition and offset, with the first reason that was found."""
    positions: dict[int, int] = field(default_factory=dict)
    last: dict[int, ReportRecord] = field(default_factory=dict)
    """The record before each position."""
    strangers: UndeclaredNames = field(default_factory=UndeclaredNames)

    def take(
        self, records: Sequence[ReportRecord], declared: Checkpoints, recall: Recall = lambda accounts: {}
    ) -> None:
        """Add records in the order of their appending; count a bad one, or bad parts of it, by reason.

        What merely names something that no definition has is kept all the same, up to a limit: see `strangers`.
        `recall` is called once, for the emitters that are not in `accounts`.
        """
        self.strangers.declared = declared.keys()
        nodes = {pipeline: frozenset(map(node_of, checkpoints)) for pipeline, checkpoints in declared.items()}
        reports = read_reports([record.value for record in records])
        heads = [report.head for report in reports if not isinstance(report, BadRecord)]
        self.accounts |= recall({(head.pipeline, head.emitter) for head in heads} - self.accounts.keys())
        for record, report in zip(records, reports, strict=True):
            self.pass_over(record)
            if isinstance(report, BadRecord):
                self.quarantine(record, report.reason)
            else:
                self._take(record, report, declared.get(report.head.pipeline), nodes.get(report.head.pipeline))

    def _take(
        self, record: ReportRecord, report: PackedReport, followed: frozenset[str] | None, nodes: frozenset[str] | None
    ) -> None:
        """Add a report; `followed`, `nodes`: what its pipeline's definitions name, None if there are none."""
        head = report.head
        if followed is None and not self._admit(record, head, Name("pipeline", head.pipeline)):
            return
        history = self.accounts.get((head.pipeline, head.emitter))
        if history is None and not self.strangers.admit_emitter(head.pipeline):
            self.quarantine(record, "too_many_names")
            return
        counts = history is None or head.seq > history.seq
        progresses = [
            progress
            for progress in head.progress
            if counts and self._keeps(record, head, progress, followed or frozenset())
        ]
        tallies = [tally for tally in report.tallies if self._keeps(record, head, tally, followed or frozenset())]
        stranger = _stranger(report, followed, nodes)
        if stranger is not None:
            self.quarantine(record, stranger)
        if counts:
            self._take_head(record, head, progresses)
        for tally in tallies:
            self._take_tally(record, head, tally)

    def quarantine(self, record: ReportRecord, reason: BadReason) -> None:
        """Count a record, or a part of it, as bad by its first reason."""
        self.pass_over(record)
        self.bad.setdefault((record.partition, record.offset), (record, reason))

    def pass_over(self, record: ReportRecord) -> None:
        """Count a record as followed, whatever it holds."""
        if record.offset >= self.positions.get(record.partition, 0):
            self.positions[record.partition] = record.offset + 1
            self.last[record.partition] = record

    def _admit(self, record: ReportRecord, head: EmitterReport, name: Name) -> bool:
        if self.strangers.admit(name, head.emitter, record.appended_ms):
            return True
        self.quarantine(record, "too_many_names")
        return False

    def _keeps(
        self, record: ReportRecord, head: EmitterReport, part: PackedTally | Progress, followed: frozenset[str]
    ) -> bool:
        """Return whether there is room for the names in this part of a report."""
        names = strange_names(head.pipeline, part, followed)
        return not names or all(self._admit(record, head, name) for name in names)

    def _take_head(self, record: ReportRecord, head: EmitterReport, progresses: Sequence[Progress]) -> None:
        """Add a report that counts, but for its tallies."""
        account, into = (head.pipeline, head.emitter), f"{head.node}.in"
        self.emitters[account] = (head, record.appended_ms)
        history = self.accounts.setdefault(account, EmitterHistory())
        history.seq = head.seq
        history.skew = history.skew.merged(
            Skew.of(record.appended_ms, head.sent_at, history.sent_at, closed=head.closed, unfinished=head.unfinished)
        )
        history.sent_at = head.sent_at
        history.inputs |= {progress.lane for progress in progresses if progress.lane and progress.checkpoint == into}
        for progress in progresses:
            holder = b"" if progress.lane else head.emitter
            key = (head.pipeline, progress.checkpoint, progress.lane, holder)
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
