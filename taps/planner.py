"""Planners: the next plan of a tap, from its last one, a look at the topic, and (of a group) its commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Protocol

from taps.plan import EndMarks, Look, Looks, Mark, OffsetSpan, TapPlan, merged_commits, shared_out

HasNone = Callable[[int, int, int], bool]
"""Return whether a partition holds no record in [start, end), but markers of transactions at most."""


@dataclass(frozen=True, slots=True)
class NewCommits:
    """Commits of a group since those read before, by partition, in the order of time. `at_ms`: none before that is
    missing; None if that is not known yet. `next`: next offset of the log of commits. `topic_after`: monotonic s; a
    look at the topic that was asked later has the commits' partitions."""

    at_ms: int | None
    next: int
    marks: Mapping[int, Sequence[Mark]]
    topic_after: float = 0.0


ANEW: Final[Mapping[int, int]] = MappingProxyType({0: -1})
"""Positions in a topic that was created anew: an offset counts as gone for what was not read of the one before it."""


def first_positions(look: Look, starts: Mapping[int, int]) -> dict[int, int]:
    """Return where a tap begins, by partition: at `starts`, the first offsets from some moment on. Where those are the
    first that the log holds, retention may have deleted some since that moment: one counts as gone."""
    return {at: start - (0 < start == look.logs[at].start) for at, start in starts.items()}


class Planner(Protocol):
    """Keeps between turns only what makes times more precise: a new one plans the same records."""

    def plan(self, last: TapPlan, look: Look, commits: NewCommits | None, limit: int) -> TapPlan:
        """Return the next plan, of at most `limit` offsets, made for as many partitions and the sample of the last."""


class TopicPlanner:
    """Plans the records of a topic as far as a committed reader can read."""

    def __init__(self) -> None:
        self._looks = Looks()
        self._marks = EndMarks()

    def plan(self, last: TapPlan, look: Look, commits: NewCommits | None, limit: int) -> TapPlan:
        self._looks.add(look.at_ms, look.ends)
        self._marks.add(look)
        starts, gone = _starts(last, look)
        wanted = {at: log.stable_end - starts[at] for at, log in look.logs.items() if log.stable_end > starts[at]}
        shares = shared_out(wanted, limit)
        spans = tuple(
            OffsetSpan(at, starts[at], starts[at] + share, self._marks.take(at, starts[at], starts[at] + share))
            for at, share in sorted(shares.items())
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

    def plan(self, last: TapPlan, look: Look, commits: NewCommits | None, limit: int) -> TapPlan:
        assert commits is not None
        starts = {at: last.positions.get(at, 0) for at in look.logs}
        known = {
            at: merged_commits(last.commits.get(at, ()), commits.marks.get(at, ()), starts[at]) for at in look.logs
        }
        wanted = {
            at: min(marks[-1].offset, look.logs[at].stable_end) - starts[at] for at, marks in known.items() if marks
        }
        shares = shared_out({at: size for at, size in wanted.items() if size > 0}, limit)
        positions = starts | {at: starts[at] + share for at, share in shares.items()}
        spans = []
        gone = {}
        for at in sorted(shares):
            start, end = max(starts[at], min(look.logs[at].start, positions[at])), positions[at]
            if start > starts[at]:
                gone[at] = start - starts[at]
            if end > start:
                spans.append(OffsetSpan(at, start, end, _passing(known[at], start, end)))
        left = {at: tuple(mark for mark in marks if mark.offset > positions[at]) for at, marks in known.items()}
        is_level = not any(left.values()) and commits.at_ms is not None
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
            commits={at: marks for at, marks in left.items() if marks},
        )

    def _until(self, last: TapPlan, look: Look, positions: Mapping[int, int]) -> dict[int, int]:
        """Return by partition the newest look before which everything appended has been taken in."""
        found = {}
        for at, log in look.logs.items():
            looks = self._looks.setdefault(at, Looks())
            looks.add(look.at_ms, {at: log.end})
            position = positions[at]
            if position < log.end and self._has_none(at, position, log.end):
                position = log.end
            found[at] = max(looks.passed({at: position}) or 0, last.until_ms.get(at, 0))
        return found


def _passing(marks: Sequence[Mark], start: int, end: int) -> tuple[Mark, ...]:
    """Return the commits, ascending, that take in the records of [start, end)."""
    first = next(at for at, mark in enumerate(marks) if mark.offset > start)
    last = next(at for at, mark in enumerate(marks) if mark.offset >= end)
    return tuple(marks[first : last + 1])


def _starts(last: TapPlan, look: Look) -> tuple[dict[int, int], dict[int, int]]:
    """Return by partition the offset to go on at, and the number of offsets that retention deleted before it."""
    before = {at: last.positions.get(at, 0) for at in look.logs}
    starts = {at: max(before[at], log.start) for at, log in look.logs.items()}
    return starts, {at: starts[at] - before[at] for at in starts if starts[at] > before[at]}
