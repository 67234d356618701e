"""Planners: the next plan of a tap, from its last one, a look at the topic, and (of a group) its commits.

An example of a group tap, one partition. A *look* asks the brokers for the partition's ends, a *mark* is a commit with
its time, an *end mark* the end that a look showed; `gone` is what retention deleted before it was planned.

    plan 1   positions {0: 100}, through 1.0 s
    look at 2.0 s: the log holds [0, 130); commits up to 1.9 s: 110 at 1.8 s
    plan 2   read [100, 110), received at 1.8 s; positions {0: 110}, through 1.9 s
    look at 3.0 s: retention has deleted up to 115, the log holds [115, 150); commits up to 2.9 s: 120 at 2.8 s
    plan 3   read [115, 120), gone {0: 5}; positions {0: 120}, through 2.9 s
    look at 4.0 s: the log holds [115, 150); commits up to 3.9 s: 150 at 3.8 s
    plan 4   read [120, 150): 10 of them appended before the look at 2.0 s, 20 before that at 3.0 s; the group is at the
             end of the log, so that all that was appended before 4.0 s has been received: until {0: 4.0 s}

A process that takes the tap over repeats the last plan, which sends the same blocks again, and goes on from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from taps.plan import EndMarks, Look, Looks, Mark, OffsetSpan, Suspect, TapPlan, merged_commits, shared_out
from taps.records import UnreadableRecords

HasNone = Callable[[int, int, int], bool]
"""Return whether a partition holds no record in [start, end), but markers of transactions at most."""
WholeUntil = Callable[[Mapping[int, Suspect]], Mapping[int, int]]
"""`TopicReader.whole_until`."""


@dataclass(frozen=True, slots=True)
class NewCommits:
    """Commits of a group since those read before, by partition, in the order of time. `at_ms`: none before that is
    missing; None if that is not known yet. `next`: next offset of the log of commits, by its partition. `topic_after`:
    monotonic s; a look at the topic that was asked later has the commits' partitions. `is_polled`: the times are those
    of the request, and a commit that stands is there each time. `unreadable`: records of the log by reason."""

    at_ms: int | None
    next: Mapping[int, int]
    marks: Mapping[int, Sequence[Mark]]
    topic_after: float = 0.0
    is_polled: bool = False
    unreadable: Mapping[str, UnreadableRecords] = field(default_factory=dict)


ANEW: Final[Mapping[int, int]] = MappingProxyType({0: -1})
"""Positions in a topic that was created anew: an offset counts as gone for what was not read of the one before it."""


REACH: Final = 500_000
"""Offsets of a topic that a tap reads before the start that producers' timestamps suggest: some seconds of work."""


class Beginning(NamedTuple):
    """Where a tap begins, by partition, and where there may be records of its windows before that."""

    positions: Mapping[int, int]
    gone: Mapping[int, int]


def beginning(look: Look, starts: Mapping[int, int], proven: Collection[int]) -> Beginning:
    """Return where a tap begins.

    Args:
        starts: by partition the first offset whose record is stamped at or after some moment.
        proven: partitions in which the broker's own clock says that what lies before was appended before that moment.
            In others the stamps are the producers', which may be anything: the tap begins up to `REACH` offsets before.
    """
    reach = REACH // max(1, len(starts))
    positions = {
        partition: start if partition in proven else max(look.logs[partition].start, start - reach)
        for partition, start in starts.items()
    }
    # Where it is the first that the log holds, retention may have deleted some since that moment.
    doubtful = (
        partition
        for partition, start in positions.items()
        if start > 0 and (partition not in proven or start == look.logs[partition].start)
    )
    return Beginning(positions, dict.fromkeys(doubtful, 1))


def lost_tails(last: TapPlan, look: Look, shown: Mapping[int, int], whole_until: WholeUntil) -> dict[int, int]:
    """Return by partition up to where a log is still what was planned of it, or what a look has shown, if that is not
    all: an unclean election of a leader has lost its tail, or the topic was created anew by a broker that gives topics
    no ids.

    Args:
        shown: the ends of the last look, as far as there was one.
        whole_until: asked where a partition has another leader: it may have grown since.
    """
    known = {at: max(last.positions.get(at, 0), shown.get(at, 0)) for at in look.logs}
    suspects = {
        partition: Suspect(log.start, min(known[partition], log.end), last.epochs[partition], log.epoch)
        for partition in newly_led(last, look)
        if (log := look.logs[partition]).start < min(known[partition], log.end)
    }
    whole = {partition: log.end for partition, log in look.logs.items()}
    whole |= whole_until(suspects) if suspects else {}
    return {partition: end for partition, end in whole.items() if end < known[partition]}


def newly_led(last: TapPlan, look: Look) -> set[int]:
    """Return the partitions that have another leader than by the last plan."""
    return {partition for partition, epoch in look.epochs.items() if 0 <= last.epochs.get(partition, -1) < epoch}


def newest_epochs(last: TapPlan, look: Look) -> dict[int, int]:
    """Return the epochs of leaders that are known. One that is lower is of a leader that does not know of its end."""
    return {partition: max(epoch, last.epochs.get(partition, -1)) for partition, epoch in look.epochs.items()}


class Planner(Protocol):
    """Keeps between turns only what makes times more precise: a new one plans the same records."""

    def plan(self, last: TapPlan, look: Look, commits: NewCommits | None, limit: int) -> TapPlan:
        """Return the next plan, of at most `limit` offsets, made for as many partitions and the sample of the last."""


QUIET: Final = NewCommits(None, {}, {})
"""What a look shows of commits that did not ask for them."""


class TopicPlanner:
    """Plans the records of a topic as far as a committed reader can read."""

    def __init__(self) -> None:
        self._looks = Looks()
        self._marks = EndMarks()

    def plan(self, last: TapPlan, look: Look, commits: NewCommits | None, limit: int) -> TapPlan:
        self._looks.add(look.at_ms, look.ends)
        self._marks.add(look)
        starts, gone = _starts(last, look)
        backlog = {
            partition: log.stable_end - starts[partition]
            for partition, log in look.logs.items()
            if log.stable_end > starts[partition]
        }
        shares = shared_out(backlog, limit)
        ends = {
            partition: self._marks.take(partition, starts[partition], starts[partition] + share, last.through_ms)
            for partition, share in shares.items()
        }
        spans = tuple(
            OffsetSpan(partition, starts[partition], starts[partition] + share, ends[partition])
            for partition, share in sorted(shares.items())
            if share
        )
        positions = starts | {span.partition: span.end for span in spans}
        through_ms = self._looks.passed(positions) or last.through_ms
        return replace(
            last,
            number=last.number + 1,
            planned_at_ms=look.at_ms,
            spans=spans,
            gone=gone,
            positions=positions,
            until_ms={},
            through_ms=max(through_ms, last.through_ms),
            begins_ms=last.through_ms,
        )


class GroupPlanner:
    """Plans the records that a group's commits have passed."""

    def __init__(self, has_none: HasNone) -> None:
        self._has_none = has_none
        self._looks: dict[int, Looks] = {}
        self._marks = EndMarks()

    def plan(self, last: TapPlan, look: Look, commits: NewCommits | None, limit: int) -> TapPlan:
        assert commits is not None
        self._marks.add(look)
        starts = {partition: last.positions.get(partition, 0) for partition in look.logs}
        void = dict(last.void)
        commits_known = {
            partition: merged_commits(
                last.commits.get(partition, ()), _within(partition, log.end, commits, void), starts[partition]
            )
            for partition, log in look.logs.items()
        }
        wanted = {
            partition: min(marks[-1].offset, look.logs[partition].stable_end) - starts[partition]
            for partition, marks in commits_known.items()
            if marks
        }
        shares = shared_out({partition: size for partition, size in wanted.items() if size > 0}, limit)
        positions = starts | {partition: starts[partition] + share for partition, share in shares.items()}
        spans = []
        gone = {}
        for partition in sorted(shares):
            start, end = (
                max(starts[partition], min(look.logs[partition].start, positions[partition])),
                positions[partition],
            )
            if start > starts[partition]:
                gone[partition] = start - starts[partition]
            if end > start:
                ends = self._marks.take(partition, start, end, last.until_ms.get(partition, 0))
                spans.append(OffsetSpan(partition, start, end, ends, _passing(commits_known[partition], start, end)))
        commits_left = {
            partition: tuple(mark for mark in marks if mark.offset > positions[partition])
            for partition, marks in commits_known.items()
        }
        is_level = not any(commits_left.values()) and commits.at_ms is not None
        return replace(
            last,
            number=last.number + 1,
            planned_at_ms=look.at_ms,
            spans=tuple(spans),
            gone=gone,
            positions=positions,
            until_ms=self._until(last, look, positions),
            through_ms=max(last.through_ms, commits.at_ms or 0) if is_level else last.through_ms,
            begins_ms=last.through_ms,
            commits_at=commits.next,
            commits={partition: marks for partition, marks in commits_left.items() if marks},
            void=void,
        )

    def _until(self, last: TapPlan, look: Look, positions: Mapping[int, int]) -> dict[int, int]:
        """Return by partition the newest look before which everything appended has been taken in."""
        until_ms = {}
        for partition, log in look.logs.items():
            looks = self._looks.setdefault(partition, Looks())
            looks.add(look.at_ms, {partition: log.end})
            position = positions[partition]
            if position < log.end and self._has_none(partition, position, log.end):
                position = log.end
            until_ms[partition] = max(looks.passed({partition: position}) or 0, last.until_ms.get(partition, 0))
        return until_ms


def _within(partition: int, end: int, commits: NewCommits, void: dict[int, Mark]) -> list[Mark]:
    """Return the new commits of a partition that are not beyond its end; note the last one that is in `void`.

    The look is later than the commits: what is beyond the end now was so when it was committed. The group has not read
    up to there: an admin has set the offset, a mirror has copied it, or the topic was created anew. Such a commit takes
    in no record that comes to lie below it later.
    """
    marks = []
    for mark in commits.marks.get(partition, ()):
        beyond = void.get(partition)
        if mark.offset > end:
            void[partition] = mark
        elif beyond is not None and mark.offset == beyond.offset and (commits.is_polled or mark.at_ms <= beyond.at_ms):
            continue  # that commit again
        else:
            void.pop(partition, None)
            marks.append(mark)
    return marks


def _passing(marks: Sequence[Mark], start: int, end: int) -> tuple[Mark, ...]:
    """Return the commits, ascending, that take in the records of [start, end)."""
    first = next(index for index, mark in enumerate(marks) if mark.offset > start)
    last = next(index for index, mark in enumerate(marks) if mark.offset >= end)
    return tuple(marks[first : last + 1])


def _starts(last: TapPlan, look: Look) -> tuple[dict[int, int], dict[int, int]]:
    """Return by partition the offset to go on at, and the number of offsets that retention deleted before it."""
    before = {partition: last.positions.get(partition, 0) for partition in look.logs}
    starts = {partition: max(before[partition], log.start) for partition, log in look.logs.items()}
    return starts, {
        partition: starts[partition] - before[partition]
        for partition in starts
        if starts[partition] > before[partition]
    }
