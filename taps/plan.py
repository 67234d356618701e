"""Plans: what a tap reads next, decided and stored before it is read, so that whoever repeats it sends the same blocks.

Pure: brokers, clock and database are elsewhere. Times are epoch ms.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

import msgspec

from lagloss.wire.format import RETENTION_MS

MAX_LOOKS: Final = 256
"""Looks that wait to be passed; beyond that every other one is forgotten, which makes progress coarser, never wrong."""
STANDING_MS: Final = 0
"""The time of a commit that was there when the tap began, from before it reads the log of commits."""
MAX_MARKS: Final = 256
"""Marks of one partition that wait for its records to be read; beyond that every other one is forgotten."""


FASTEST_PER_S: Final = 100
"""Plans of a tap, each of which is committed, and acknowledged by Kafka: more than there can be."""
SLACK_S: Final = 60
"""Of clocks that differ."""


class Mark(NamedTuple):
    """A commit of a consumer group: the offset, and when."""

    offset: int
    at_ms: int


class EndMark(NamedTuple):
    """The end of a partition as a look showed it: no record at or above `offset` was there at `at_ms`, and every record
    below it was by `by_ms`."""

    offset: int
    at_ms: int
    by_ms: int


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """Offsets of a partition at one moment: the first that it holds, the end of what a committed reader can read, and
    the end of all records, those of open transactions included. `epoch` is its leader's, which grows with each new
    one; -1: unknown."""

    start: int
    stable_end: int
    end: int
    epoch: int = -1


@dataclass(frozen=True, slots=True)
class Look:
    """The partitions of a topic, by number, as they were between `at_ms`, when the brokers were asked, and `by_ms`,
    when they had answered (0: at once)."""

    at_ms: int
    logs: Mapping[int, PartitionLog]
    by_ms: int = 0

    @property
    def ends(self) -> dict[int, int]:
        return {partition: log.end for partition, log in self.logs.items()}

    @property
    def epochs(self) -> dict[int, int]:
        return {partition: log.epoch for partition, log in self.logs.items()}


class Suspect(NamedTuple):
    """A partition that has another leader than one of this epoch, in whose log offsets up to `position` were seen.
    `start`: the first that it holds, `newest`: the epoch of its leader now."""

    start: int
    position: int
    epoch: int
    newest: int


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """Offsets of a partition to read, [start, end), and the evidence of when their records were appended and, of a
    group, taken in.

    Attributes:
        ends: looks that bound when the records were appended, by offset.
        commits: those of a group that take the records in, ascending.
    """

    partition: int
    start: int
    end: int
    ends: tuple[EndMark, ...] = ()
    commits: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class TapPlan:
    """One step of a tap, and all that the next one has to know.

    Attributes:
        number: grows by one per plan of a tap.
        planned_at_ms: against which event times are checked.
        partitions, sample: of the beacons topic and the pipeline, as the blocks are made.
        spans: what to read.
        gone: number of offsets by partition that retention deleted before they were planned; 1 where the tap begins at
            an offset before which there may be records of its windows, and where a new leader may lack records.
        positions: next offset to plan, by partition.
        epochs: of the leaders in whose logs these are, by partition.
        until_ms: by partition, everything appended before was read (of a group: taken in).
        through_ms: everything observed before is in this plan or an earlier one.
        begins_ms: every record of an event before is in an earlier plan, as far as is known how late records are.
        topic_id: of the topic that the offsets are of.
        commits_at: next offset of the log of commits to read, for a reader, by its partition.
        commits: marks of commits that are not planned yet, by partition.
        void: by partition, the last commit of the group beyond the end of the log.
        is_spread: each span makes blocks of its own, as tasks do that know only theirs; else all spans together.
        replays: names of replays that blocks of earlier plans have, as far as the account goes back.
        skipped: numbers left out before this plan, which a database that lost its last commits may have given before.
        ends_ms: windows from then on are another tap's, which has replaced this one, as it has reported before.
    """

    number: int
    planned_at_ms: int
    partitions: int
    sample: int
    spans: tuple[OffsetSpan, ...] = ()
    gone: Mapping[int, int] = field(default_factory=dict)
    positions: Mapping[int, int] = field(default_factory=dict)
    until_ms: Mapping[int, int] = field(default_factory=dict)
    through_ms: int = 0
    begins_ms: int = 0
    topic_id: str = ""
    commits_at: Mapping[int, int] = field(default_factory=dict)
    commits: Mapping[int, tuple[Mark, ...]] = field(default_factory=dict)
    void: Mapping[int, Mark] = field(default_factory=dict)
    is_spread: bool = False
    replays: tuple[str, ...] = ()
    skipped: int = 0
    epochs: Mapping[int, int] = field(default_factory=dict)
    ends_ms: int | None = None

    @property
    def sequence(self) -> int:
        """Return the number that those of blocks and reports follow from: of two plans of a tap never the same."""
        return self.number + self.skipped

    @property
    def records(self) -> int:
        """Upper bound of the records to read: offsets, with markers of transactions among them."""
        return sum(span.end - span.start for span in self.spans)

    def as_of(self, now_ms: int) -> Self:
        """Return the plan without what it says of times, if it was made at a later one: the clock was ahead then."""
        return self if self.planned_at_ms <= now_ms else replace(self, until_ms={}, through_ms=0)

    def document(self) -> dict[str, Any]:
        """Return the plan as JSON; `of` reads it back."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the plan in a document."""
        numbers = ("gone", "positions", "until_ms", "commits_at", "epochs")
        document = {"epochs": {}, **document}
        return cls(
            **{
                **document,
                **{name: {int(key): value for key, value in document[name].items()} for name in numbers},
                "spans": tuple(_span(span) for span in document["spans"]),
                "commits": {int(key): _marks(marks) for key, marks in document["commits"].items()},
                "void": {int(key): Mark(*mark) for key, mark in document["void"].items()},
                "replays": tuple(document.get("replays", ())),
            }
        )


def _span(document: Mapping[str, Any]) -> OffsetSpan:
    ends = tuple(EndMark(*mark) for mark in document["ends"])
    return OffsetSpan(**{**document, "ends": ends, "commits": _marks(document["commits"])})


def _marks(rows: Iterable[Sequence[int]]) -> tuple[Mark, ...]:
    return tuple(Mark(*mark) for mark in rows)


def skip_after(plan: TapPlan, now_ms: int) -> int:
    """Return how many numbers to leave out between a plan that a process took over and the next one.

    The database may have lost commits since, by a failover or an older backup: plans that were carried out, and whose
    numbers a reader of the log knows. Their blocks under the same number and with other records would be dropped as
    repeats. So as many numbers are left out as there can have been plans since.
    """
    age_ms = min(max(0, now_ms - plan.planned_at_ms), RETENTION_MS)  # by then the log has forgotten them, too
    return FASTEST_PER_S * (SLACK_S + age_ms // 1_000)


class Looks:
    """Looks at a topic's ends in the order of time, until positions have passed them."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Mapping[int, int]]] = deque()

    def add(self, at_ms: int, ends: Mapping[int, int]) -> None:
        """Add the ends of all partitions at a time later than those before."""
        self._waiting.append((at_ms, ends))
        if len(self._waiting) > MAX_LOOKS:
            self._waiting = deque(
                look for index, look in enumerate(self._waiting) if index % 2 == 0 or look[0] == at_ms
            )

    def passed(self, positions: Mapping[int, int]) -> int | None:
        """Return the time of the newest look at which every partition ended at or before these positions, and forget
        those up to it; None if there is none.

        Positions only grow, and so do the ends of a partition: a look that is not passed keeps later ones.
        """
        newest = None
        while self._waiting and all(
            positions.get(partition, 0) >= end for partition, end in self._waiting[0][1].items()
        ):
            newest = self._waiting.popleft()[0]
        return newest


class EndMarks:
    """Marks of one topic's ends by partition: when records of which offsets had been appended."""

    def __init__(self) -> None:
        self._marks: dict[int, list[EndMark]] = {}

    def add(self, look: Look) -> None:
        """Add the ends of a look later than those before."""
        for partition, log in look.logs.items():
            marks = self._marks.setdefault(partition, [])
            mark = EndMark(log.end, look.at_ms, max(look.at_ms, look.by_ms))
            if len(marks) >= 2 and marks[-1].offset == marks[-2].offset == log.end:
                marks[-1] = mark  # of equal ends, the first and the last say all
            else:
                marks.append(mark)
            if len(marks) > MAX_MARKS:
                del marks[1:-1:2]

    def take(self, partition: int, start: int, end: int, none_ms: int = 0) -> tuple[EndMark, ...]:
        """Return the marks that bound the records of [start, end), and forget those that no later record needs.

        Args:
            none_ms: a time (epoch ms) at which no record at or above `start` was there, as a planner before this one
                knew; 0 if there is none.
        """
        marks = self._marks.get(partition, [])
        first = max(0, bisect_right(marks, start, key=_offset) - 1)
        last = bisect_left(marks, end, key=_offset)
        needed = tuple(marks[first : last + 1])
        del marks[: max(0, bisect_right(marks, end, key=_offset) - 1)]
        if none_ms and (not needed or needed[0].offset > start):
            needed = EndMark(start, none_ms, none_ms), *needed
        return needed


def _offset(mark: EndMark) -> int:
    return mark.offset


def merged_commits(marks: Sequence[Mark], more: Iterable[Mark], position: int) -> tuple[Mark, ...]:
    """Return the commits that take records from `position` on, in the order of time: a commit at or below what was
    committed before (a group that was reset) takes nothing."""
    merged = list(marks)
    highest = max(position, merged[-1].offset if merged else position)
    for mark in more:
        if mark.offset > highest:
            merged.append(mark)
            highest = mark.offset
    if len(merged) > MAX_MARKS:
        merged = [mark for index, mark in enumerate(merged) if index % 2 == 1 or index == len(merged) - 1]
    return tuple(merged)


def shared_out(sizes: Mapping[int, int], limit: int) -> dict[int, int]:
    """Return how many offsets each partition gets of a limit for all, none more than it wants: equal shares, and what
    is left by those that want less goes to the others."""
    shares: dict[int, int] = {}
    remaining = limit
    for index, (partition, size) in enumerate(sorted(sizes.items(), key=lambda item: item[1])):
        shares[partition] = min(size, remaining // (len(sizes) - index))
        remaining -= shares[partition]
    return shares
