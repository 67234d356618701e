"""A topic and its reader in simulated time: what both taps say never makes a record that is there a certain loss.

Producers stamp records with anything, some are copies of others in a replay, the group commits anywhere, and either tap
is away for any time. Whoever takes over knows the stored plan alone. At some time a new version of the definition has
another tap of the group, of the same topic.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from lagloss.wire.format import Progress, decode_block, hash_id
from lagloss_server.extraction import Extractor, Records
from lagloss_server.judging.arithmetic import Overtaken, horizon
from lagloss_server.judging.evidence import EmitterState, Evidence, LaneState
from lagloss_server.judging.facts import Pattern
from lagloss_server.model.definition import Definition
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.taps import Extraction, Tap
from taps.kernel import BlockMaker, Blocks
from taps.plan import Look, Mark, OffsetSpan, PartitionLog, TapPlan
from taps.plan_runner import claims
from taps.planner import GroupPlanner, NewCommits, TopicPlanner, beginning
from taps.records import SpanRecords
from taps.wanted import RunningTap
from tests.support.tap_histories import STAMPS

MINUTE_MS = 60_000
SINCE_MS = 29_000_000 * MINUTE_MS
GRAPH = Definition.model_validate(
    {
        "apiVersion": "lagloss/v1",
        "kind": "Pipeline",
        "metadata": {"name": "p"},
        "spec": {"nodes": [{"name": "a", "to": ["b"]}, {"name": "b"}]},
    }
).graph
EXTRACTION = Extraction(IdExpression.parse("$.id"), TimeExpression.parse("$.at"))
GROUP = Tap("p", "b", "", "t", "g", ("in",), EXTRACTION, first=False)
ENDED = RunningTap(GROUP, b"group", SINCE_MS)
SEEDS = range(300)


def seen_at(at_ms: float, by_ms: float) -> Pattern:
    """Return the pattern of a message that was last seen at this time, surely by that."""
    return Pattern(1, 1, (), at_ms, at_ms, by_ms, by_ms)


@dataclass(frozen=True)
class Record:
    name: str
    appended_ms: int
    event_ms: int
    stamp_ms: int
    is_broken: bool
    replay: str | None = None

    @property
    def sighting(self) -> tuple[int, str | None]:
        """Return what no other record is."""
        return hash_id(self.name), self.replay

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        return [] if self.replay is None else [("lagloss-replay", self.replay.encode())]

    @property
    def value(self) -> bytes:
        return b"{broken" if self.is_broken else json.dumps({"id": self.name, "at": self.event_ms}).encode()


@dataclass
class World:
    """One topic of two partitions, its group, and the taps of both."""

    seed: int
    now_ms: int = SINCE_MS + 90_000
    log: dict[int, list[Record]] = field(default_factory=lambda: {0: [], 1: []})
    commits: dict[int, list[Mark]] = field(default_factory=lambda: {0: [], 1: []})
    sent: dict[tuple[int, str | None], tuple[float, float]] = field(default_factory=dict)
    """The lag with which each record was last seen, and by when it surely was, by its sighting."""
    received: set[tuple[int, str | None]] = field(default_factory=set)
    looked: dict[str, list[int]] = field(default_factory=lambda: {"group": []})
    """When each of the group's taps looked at the topic."""
    incomplete: set[int] = field(default_factory=set)
    """Windows (epoch s) of which the group's tap may lack records."""
    applied_ms: int | None = None
    """When the group got another tap."""
    ended: RunningTap = ENDED
    """The group's first tap, as the last report of it knew it."""
    lanes: dict[str, LaneState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.is_append_time = self.random.random() < 0.2
        self.stamps = self.random.choices(list(STAMPS), k=3)
        self.makers = {
            kind: BlockMaker(
                tap,
                bytes(16),
                SINCE_MS,
                Extractor(EXTRACTION),
            )
            for kind, tap in (("topic", replace(GROUP, node="a", group=None, places=("out",))), ("group", GROUP))
        }
        self.plans: dict[str, TapPlan | None] = {"topic": None, "group": None, "other": None}
        self.read_commits = {"group": {0: 0, 1: 0}}
        self.restart("topic")
        self.restart("group")

    def restart(self, kind: str) -> None:
        """Have another process take over, which knows the stored plan."""
        self.planner = getattr(self, "planner", {})
        self.planner[kind] = TopicPlanner() if kind == "topic" else GroupPlanner(lambda *_: False)

    @property
    def until_ms(self) -> int | None:
        """Start of the first window of the other tap."""
        return None if self.applied_ms is None else -(-self.applied_ms // MINUTE_MS) * MINUTE_MS

    def apply(self) -> None:
        """Give the group another tap."""
        if self.applied_ms is None and self.plans["group"] is not None:
            self.applied_ms = self.now_ms
            self.makers["other"] = replace(self.makers["group"], since_ms=self.until_ms)
            self.read_commits["other"], self.looked["other"] = {0: 0, 1: 0}, []
            self.restart("other")

    def append(self) -> None:
        at = self.random.randrange(2)
        for _ in range(self.random.randint(1, 5)):
            event_ms = self.now_ms - self.random.choice([0, 900, 30_000, 10 * MINUTE_MS])
            stamp_ms = self.now_ms if self.is_append_time else STAMPS[self.random.choice(self.stamps)](self.now_ms)
            record = Record(f"{at}-{len(self.log[at])}", self.now_ms, event_ms, stamp_ms, self.random.random() < 0.05)
            if self.random.random() < 0.15:
                before = self.random.choice([record, *self.log[0], *self.log[1]])
                record = replace(record, name=before.name, event_ms=before.event_ms, replay=f"of {record.name}")
            self.log[at].append(record)

    def commit(self) -> None:
        at = self.random.randrange(2)
        end = len(self.log[at])
        offset = self.random.choice([end, end, self.random.randint(0, end), end + self.random.choice([1, 4, 1_000])])
        self.commits[at].append(Mark(offset, self.now_ms))

    def look(self) -> Look:
        logs = {at: PartitionLog(0, len(records), len(records)) for at, records in self.log.items()}
        return Look(self.now_ms, logs, self.now_ms + self.random.choice([0, 3]))

    def turn(self, kind: str) -> None:
        look, last = self.look(), self.plans[kind]
        gone: dict[int, int] = {}
        if last is None:
            begun = beginning(look, dict.fromkeys(look.logs, 0), set())
            last, gone = TapPlan(0, 0, 8, 1 << 32, positions=begun.positions), dict(begun.gone)
        commits = None
        if kind != "topic":
            self.looked[kind].append(self.now_ms)
            marks = {at: some[self.read_commits[kind][at] :] for at, some in self.commits.items()}
            self.read_commits[kind] = {at: len(some) for at, some in self.commits.items()}
            commits = NewCommits(self.now_ms, {0: 1}, marks)
        if kind == "group":
            last = replace(last, ends_ms=self.until_ms)
        plan = self.planner[kind].plan(last, look, commits, self.random.choice([3, 1_000]))
        self.plans[kind] = plan = replace(plan, gone={**gone, **plan.gone})
        made = self.makers[kind].make(plan, {span.partition: self.records(span) for span in plan.spans})
        self.take(kind, made)
        if kind != "topic":
            self.report(kind, plan)

    def report(self, kind: str, plan: TapPlan) -> None:
        lanes = tuple(Progress("b.in", f"t/{at}", until_ms) for at, until_ms in plan.until_ms.items())
        emitter = kind.encode()
        if kind == "group":
            self.ended = replace(ENDED, until_ms=self.until_ms)
            lanes = claims(lanes, self.ended, "")
        for lane in lanes:
            self.lanes[lane.lane] = LaneState("b.in", lane.until, None if lane.lane else emitter, lane.lane, emitter)

    def records(self, span: OffsetSpan) -> SpanRecords:
        found = self.log[span.partition][span.start : span.end]
        nothing = [None] * len(found)
        stamps = np.array([record.stamp_ms for record in found], np.int64)
        values, headers = ([getattr(record, name) for record in found] for name in ("value", "headers"))
        columns = Records(stamps, nothing, values, headers)
        return SpanRecords(np.arange(span.start, span.end), columns, np.full(len(found), self.is_append_time))

    def take(self, kind: str, made: Blocks) -> None:
        for packed in made.blocks:
            block = decode_block(packed.value)
            for id_, lag_ms in zip(block.id_hash.tolist(), block.lag_ms.tolist(), strict=True):
                if kind == "topic":
                    self.sent[id_, block.replay] = lag_ms, block.supplied_at or 0
                else:
                    self.received.add((id_, block.replay))
        if kind != "topic":
            self.incomplete |= {key.window_start for key in made.dropped}

    def false_losses(self) -> list[str]:
        """Return the records that rules 4 and 6 make a certain loss on the way to the group, though they are there."""
        if not self.lanes:
            return []
        cuts = {is_before: self.overtaken(is_before=is_before) for is_before in (False, True)}
        return [
            f"{record} was seen {self.sent[sighting]}, the group has {overtaken}"
            for records in self.log.values()
            for record in records
            if (sighting := record.sighting) in self.sent
            and sighting not in self.received
            and self.is_complete(window_s := record.event_ms // MINUTE_MS * 60)
            and (overtaken := cuts[window_s * 1_000 < (self.applied_ms or 0)]).holds(
                seen_at(at_ms := record.event_ms + self.sent[sighting][0], max(at_ms, self.sent[sighting][1]))
            )
        ]

    def is_complete(self, window_s: int) -> bool:
        """Return whether the evidence of the group may be complete in a window, by the rules."""
        is_begun = self.until_ms is None or window_s * 1_000 < self.until_ms or self.plans["other"] is not None
        return window_s not in self.incomplete and is_begun

    def overtaken(self, *, is_before: bool) -> Overtaken:
        """Return what the group has overtaken of windows, before it got another tap or since, by the rules."""
        is_over = self.ended.until_ms is not None
        at_ms = self.ended.until_ms or self.now_ms
        emitter = EmitterState(b"group", "b", SINCE_MS, at_ms, is_over, 0, at_ms, 0, unfinished=is_over)
        seen_until = {"b": self.applied_ms} if is_before and self.applied_ms is not None else {}
        evidence = Evidence(0, self.now_ms, [emitter], lanes=[*self.lanes.values()], seen_until=seen_until)
        cuts = horizon(GRAPH, evidence)
        return next(cut for place, cut in cuts.overtaken.items() if place.progress == "b.in")

    def received_unread(self) -> list[str]:
        """Return the records that were received by no commit but those beyond the end of the log, as the tap has seen
        before the records came."""
        return [
            f"{record} is received, by {self.commits[at]} at the most"
            for at, records in self.log.items()
            for offset, record in enumerate(records)
            if record.sighting in self.received
            and not any(self.takes_in(at, commit, offset, record) for commit in self.commits[at])
        ]

    def takes_in(self, at: int, commit: Mark, offset: int, record: Record) -> bool:
        """Return whether a commit may have taken a record in, as far as one of the group's taps can know."""
        if commit.offset <= offset:
            return False
        end = sum(other.appended_ms <= commit.at_ms for other in self.log[at])
        looked = (any(commit.at_ms <= at_ms < record.appended_ms for at_ms in looks) for looks in self.looked.values())
        return commit.offset <= end or not all(looked)

    def act(self) -> None:
        actions = [
            (self.append, 6),
            (self.commit, 4),
            (lambda: self.turn("topic"), 6),
            (lambda: self.turn("group"), 6),
            (lambda: self.restart("topic"), 1),
            (lambda: self.restart("group"), 1),
            (self.apply, 1),
        ]
        if self.applied_ms is not None and (begun := self.plans["group"]) is not None:
            actions.append((lambda: self.report("group", begun), 1))
        if self.ended.until_ms is not None:
            actions += [(lambda: self.turn("other"), 6), (lambda: self.restart("other"), 1)]
        self.random.choices([action for action, _ in actions], [weight for _, weight in actions])[0]()
        self.now_ms += self.random.choice([10, 300, 1_000, 1_000, 7_000, 45_000])


@pytest.mark.parametrize("seed", SEEDS)
def test_no_record_that_is_there_is_lost_for_certain(seed: int) -> None:
    world = World(seed)
    for _ in range(60):
        world.act()
        assert not world.false_losses(), f"seed {seed}"
        assert not world.received_unread(), f"seed {seed}"
