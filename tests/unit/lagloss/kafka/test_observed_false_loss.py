"""No false loss at a node: hosts that leave commits to it, and hosts that it observes, which commit early, late or
never, abort and skip; they go back, hang, hand over and are killed, and operators rewind the group. They are cut off
from lagloss and work on, with a spool or without, and a killed one's spool is recovered late, or lost with its disk.
Every message is judged at every second by the rules of arithmetic, as the aggregator would with the reports it has by
then."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

import pytest

from lagloss.broker.partition_bounds import Key
from lagloss.identity import Carrier, Identity
from lagloss.kafka import lane_proofs
from lagloss.kafka.base import BaseNode, RecordPosition
from lagloss.kafka.commits import OffsetTracker
from lagloss.kafka.lane_proofs import LaneProofs
from lagloss.kafka.outputs import Outputs
from lagloss_server.judging.arithmetic import Overtaken, horizon
from lagloss_server.judging.evidence import EmitterState, Evidence, LaneState, TallyState
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.graph import Graph

S: Final = 1_000
BEGIN_MS: Final = 1_795_536_000_000
PARTITIONS: Final = 3
BUSY_S, CALM_S = 500, 400
POLICIES: Final = ("before", "auto", "after", "never", "transaction")
"""When a host commits that the node observes."""
NODE_COMMITS: Final = "the node commits"
GRAPH: Final = Graph(
    parse_definition(
        "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: orders}\nspec:\n"
        "  nodes: [{name: src, to: [mid]}, {name: mid}]\n"
    )
)
LINK = next(place for place in GRAPH.places if place.progress == "mid.in")
NODE = next(place for place in GRAPH.places if place.progress == "mid.out")


@dataclass(eq=False)
class Order:
    """A message; `seen`: when it was last seen at each checkpoint, as far as the log has the beacons (epoch ms)."""

    number: int
    key: Key
    offset: int | None
    """None if it was lost on its way into the topic."""
    seen: dict[str, int] = field(default_factory=dict)

    @property
    def window_s(self) -> int:
        return self.seen["src.out"] // (60 * S) * 60

    @property
    def identity(self) -> Identity:
        return Identity(str(self.number), 1)


@dataclass(eq=False)
class Work:
    hand: dict[Work, int]

    def done(self) -> None:
        self.hand.pop(self, None)


class Beacons:
    """Stands in for an emitter: keeps what is observed until it is flushed."""

    first = keeps_traces = False
    node = "mid"

    def __init__(self, world: World) -> None:
        self._world = world
        self.hand: dict[Work, int] = {}
        self.observed: list[tuple[str, str, int]] = []
        self.has_unfinished: Callable[[], bool] = lambda: False

    def close_unfinished_if(self, has_unfinished: Callable[[], bool]) -> None:
        self.has_unfinished = has_unfinished

    def processing(self) -> Work:
        work = Work(self.hand)
        self.hand[work] = self._world.now_ms
        return work

    def received(self, message_id: str, *_: Any, **__: Any) -> bool:
        self.observed.append((message_id, "mid.in", self._world.now_ms))
        return True

    def sent(self, message_id: str, *_: Any, **__: Any) -> bool:
        self.observed.append((message_id, "mid.out", self._world.now_ms))
        return True


class Node(BaseNode[Order]):
    def place_of(self, record: Order) -> RecordPosition:
        assert record.offset is not None
        return record.key, record.offset

    def carrier_of(self, record: Order) -> Carrier:
        return Carrier({}, b"", record)

    def record_key_of(self, record: Order) -> None:
        return None

    def value_of(self, record: Order) -> None:
        return None


class Host:
    """A process of mid, with what it has not sent yet."""

    def __init__(self, world: World, number: int, policy: str) -> None:
        self.world, self.policy = world, policy
        self.id = number.to_bytes(16, "big")
        self.started_ms = self.appended_ms = self.sent_ms = self.flushed_ms = world.now_ms
        self.cut_off_until_ms = 0
        self.has_spool = world.random.random() < 0.7
        self.unsent: list[tuple[str, str, int]] = []
        """Beacons that were flushed and that lagloss does not have."""
        self.unconfirmed: dict[Key, int] = {}
        """Offsets that wait until it has them."""
        self.changes: list[tuple[int, int]] = []
        """Windows of which beacons were sent: (when in epoch ms, start)."""
        self.final_s = world.now_ms // S
        self.beacons = Beacons(world)
        identity = lambda carrier: carrier.original.identity  # noqa: E731
        observe = policy != NODE_COMMITS
        self.node = Node("orders", "mid", observe=observe, identity=identity, emitter=self.beacons)  # type: ignore[arg-type]
        self.outputs: Outputs[Order] = Outputs(self.node, None, is_transactional=policy == "transaction")
        self.proofs = LaneProofs("mid.in", observe=observe)
        self.tracker = OffsetTracker()
        self.positions: dict[Key, int] = {}
        self.jobs: list[tuple[int, Order]] = []
        self.sent_in_transaction: list[Order] = []
        self.skipped_from: dict[Key, int] = {}
        self.lanes: dict[str, int] = {}
        self.out_until = 0
        self.is_closed = self.is_unfinished = self.is_gone = False
        self.has_reported_assignment = False

    # -- the group ------------------------------------------------------------------------------------------------

    def assign(self, keys: set[Key]) -> None:
        self.node.release_partitions(self.positions, self)
        self.tracker.drop(self.positions)
        self.proofs.release(list(self.positions))
        self.positions = {key: self.world.committed.get(key, 0) for key in sorted(keys)}
        for key, start in self.positions.items():
            self.proofs.hold(
                key, start if key in self.world.committed else None, is_new=key not in self.world.committed
            )
        self.jobs = [(ends_ms, order) for ends_ms, order in self.jobs if self.world.random.random() < 0.5]
        self.skipped_from.clear()
        self.unconfirmed.clear()
        self.has_reported_assignment = False

    def commit(self) -> None:
        if not self.skipped_from:  # what is skipped for good is lost, and not by mistake
            self.world.committed.update(self.positions)

    # -- a second -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        chance = self.world.random.random
        if chance() < 0.7:
            self._poll()
        self._work()
        if chance() < 0.2:
            self.node.end_handovers(self, self.world.committed)
        if self.policy == "auto" and chance() < 0.3:
            self.commit()
        if self.policy == "after" and not self.jobs and chance() < 0.5:
            self.commit()
        if self.policy == "transaction" and self.sent_in_transaction and chance() < 0.5:
            self._end_transaction(is_committed=chance() < 0.6)
        if self.positions and chance() < self.world.turmoil * 0.05:
            self._seek()
        is_due = self.beacons.observed or chance() < 0.3 or self.world.now_ms - self.appended_ms >= 10 * S
        if is_due and chance() < 0.7:  # else the broker is slow
            self.report()

    def _poll(self) -> None:
        for key in self.positions:
            log = self.world.log[key]
            for order in log[self.positions[key] : self.positions[key] + self.world.random.randint(0, 2)]:
                assert order.offset is not None
                self.positions[key] = order.offset + 1
                if self.policy == "before":
                    self.commit()
                handling = self.node.take(order, self.tracker.taken(key, order.offset))
                self.proofs.take(key, order.offset, None)
                assert handling is not None
                if self.node.observes:
                    handling.end_handling()  # by the next poll, whatever the host does with it
                if self.world.random.random() < self.world.works or not self.node.observes:
                    ends_ms = self.world.now_ms + self.world.random.choice([0, 0, 1, 4, 40]) * S
                    self.jobs.append((ends_ms, order))

    def _work(self) -> None:
        for ends_ms, order in [job for job in self.jobs if job[0] <= self.world.now_ms]:
            self.jobs.remove((ends_ms, order))
            output = self.outputs.begin("next", None, None, source=order)
            output.accepted()
            if self.world.random.random() < 0.1 * self.world.turmoil:
                output.failed()
                continue
            output.arrived(lambda: None)
            output.acknowledged()
            handling = self.node.in_flight(order)
            if handling is not None:
                handling.end_handling()
            if self.policy == "transaction":
                self.sent_in_transaction.append(order)

    def _end_transaction(self, *, is_committed: bool) -> None:
        if is_committed:
            self.commit()
        self.outputs.end_transaction(is_committed=is_committed)
        self.outputs.begin_transaction()
        self.sent_in_transaction.clear()
        if not is_committed and self.world.random.random() < 0.8:
            for key in self.positions:
                self._seek_to(key, min(self.positions[key], self.world.committed.get(key, 0)))

    def _seek(self) -> None:
        key = self.world.random.choice(sorted(self.positions))
        if key in self.skipped_from:
            self._seek_to(key, self.skipped_from.pop(key))
        elif self.policy == "never" and self.world.random.random() < 0.5:
            self.skipped_from[key] = self.positions[key]
            self._seek_to(key, min(self.positions[key] + 3, len(self.world.log[key])))
        else:
            self._seek_to(key, max(0, self.positions[key] - self.world.random.randint(0, 5)))

    def _seek_to(self, key: Key, offset: int) -> None:
        self.positions[key] = offset
        self.tracker.rewind(key, offset)
        self.proofs.seek(key, offset)

    def report(self) -> None:
        """Send beacons, then a report whose progress was read before; commit what is finished and acknowledged. While
        it is cut off, nothing arrives."""
        self.unconfirmed |= self.tracker.advance()
        self.unsent += self.beacons.observed
        self.beacons.observed.clear()
        self.flushed_ms = self.world.now_ms
        if self.world.now_ms < self.cut_off_until_ms:
            return
        self.proofs.follow_assignment()
        ends = {key: len(self.world.log[key]) for key in self.proofs.keys}
        begins = dict.fromkeys(self.proofs.without_start(), 0)
        self.proofs.prove(self.proofs.taken(), self.world.now_ms, begins, ends)
        self.lanes |= {lane.lane: lane.until for lane in self.proofs.progress(self.world.now_ms)}
        for name, until in self.lanes.items():
            if name and name in {f"{topic}/{partition}" for topic, partition in self.proofs.keys}:
                self.world.shared[name] = (until, self.id)
        self.out_until = min(self.beacons.hand.values(), default=self.world.now_ms)
        self.send()
        if self.policy == NODE_COMMITS:
            self.world.committed |= self.unconfirmed
        self.unconfirmed.clear()
        self.sent_ms = self.world.now_ms
        self.final_s = self.world.now_ms // S
        self.has_reported_assignment = True

    def send(self) -> None:
        for message_id, checkpoint, at_ms in self.unsent:
            order = self.world.orders[int(message_id)]
            order.seen[checkpoint] = max(at_ms, order.seen.get(checkpoint, 0))
            self.changes.append((self.world.now_ms, order.window_s))
        self.unsent.clear()
        self.appended_ms = self.world.now_ms

    def end(self, *, is_killed: bool) -> None:
        if not is_killed:
            self.report()
        is_cut_off = self.world.now_ms < self.cut_off_until_ms
        self.is_unfinished = is_killed or self.beacons.has_unfinished()
        self.is_closed = not (is_killed or is_cut_off)
        if not self.is_closed and self.has_spool and self.world.random.random() < 0.5:
            self.world.spools.append(self)
        self.is_gone = True

    def recover(self) -> None:
        """Send what its spool holds, and close its account."""
        unsure = [] if not self.is_unfinished or not self.node.observes else self.unsure_windows()
        self.sent_ms, self.final_s = self.flushed_ms, min([self.flushed_ms // S, *unsure])
        if unsure:
            died_ms = min(self.world.now_ms, self.flushed_ms + 60 * S)
            self.sent_ms = (died_ms // (60 * S) + 1) * 60 * S
        self.is_closed = True
        self.send()

    def unsure_windows(self) -> list[int]:
        ids = [message_id for message_id, _, at_ms in self.unsent if at_ms > self.flushed_ms - 60 * S]
        sent = [start_s for at_ms, start_s in self.changes if at_ms > self.flushed_ms - 60 * S]
        return [*(self.world.orders[int(message_id)].window_s for message_id in ids), *sent, self.flushed_ms // S]

    def state(self) -> EmitterState:
        late = [start_s for at_ms, start_s in self.changes if at_ms >= self.appended_ms - 60 * S]
        disturbed_s = min(late, default=self.appended_ms // (60 * S) * 60)
        return EmitterState(
            self.id, "mid", self.started_ms, self.sent_ms, self.is_closed, self.final_s, self.appended_ms, disturbed_s,
            resumes=not self.node.observes, inputs=frozenset(name for name in self.lanes if name),
            unfinished=self.is_unfinished,
        )  # fmt: skip


class World:
    def __init__(self, seed: int, policies: Sequence[str] = POLICIES) -> None:
        self.random = random.Random(seed)
        self.policies = policies
        self.now_ms = BEGIN_MS
        self.orders: list[Order] = []
        self.log: dict[Key, list[Order]] = {("orders", number): [] for number in range(PARTITIONS)}
        self.committed: dict[Key, int] = {}
        self.shared: dict[str, tuple[int, bytes]] = {}
        self.hosts: list[Host] = []
        self.spools: list[Host] = []
        """The dead whose spools may be recovered."""
        self.rewinds = 0.005
        self.cuts_off, self.ends = 0.0, 0.03
        """How often a host is cut off, and how often one ends (of those that are cut off: each, twice as often)."""
        self.works = self.random.choice([0.6, 0.9])
        self.turmoil = 1

    @property
    def living(self) -> list[Host]:
        return [host for host in self.hosts if not host.is_gone]

    def put(self) -> None:
        key = self.random.choice(sorted(self.log))
        is_lost = self.random.random() < 0.1
        order = Order(len(self.orders), key, None if is_lost else len(self.log[key]), {"src.out": self.now_ms})
        self.orders.append(order)
        if not is_lost:
            self.log[key].append(order)

    def rebalance(self) -> None:
        shares: list[set[Key]] = [set() for _ in self.living]
        for number, key in enumerate(sorted(self.log)):
            if shares:
                shares[number % len(shares)].add(key)
        for host, share in zip(self.living, shares, strict=True):
            host.assign(share)

    def start(self, policy: str | None = None) -> None:
        self.hosts.append(Host(self, len(self.hosts) + 1, policy or self.random.choice(self.policies)))
        self.rebalance()

    def step(self, *, is_busy: bool) -> None:
        self.now_ms += S
        if is_busy and self.random.random() < 0.3:
            self.put()
        for host in self.living:
            host.step()
        if self.spools and self.living and self.random.random() < 0.02:
            self.spools.pop().recover()
        if not is_busy:
            return
        for host in self.living:
            if self.random.random() < self.cuts_off:
                host.cut_off_until_ms = self.now_ms + self.random.choice([20, 300, 600]) * S
        if self.random.random() < 0.02 and len(self.living) < 4:
            self.start()
        enders = [host for host in self.living if host.has_reported_assignment or not host.node.observes]
        ending = [self.random.choice(enders)] if enders and self.random.random() < self.ends else []
        cut_off = [host for host in enders if self.now_ms < host.cut_off_until_ms and host not in ending]
        ending += [host for host in cut_off if self.random.random() < 2 * self.ends]
        for host in ending:
            host.end(is_killed=self.random.random() < 0.7)
        if ending:
            self.rebalance()
        if self.random.random() < self.rewinds:
            self.rewind()

    def rewind(self) -> None:
        """Reset the group to the beginning, as operators do."""
        self.committed = dict.fromkeys(self.log, 0)
        self.rebalance()

    def evidence(self, window_s: int = 0) -> Evidence:
        """Of a window; progress is the same for all."""
        reported = [host for host in self.hosts if host.out_until]
        lanes = [LaneState("mid.out", host.out_until, host.id) for host in reported]
        lanes += [LaneState("mid.in", host.lanes[""], host.id) for host in reported if "" in host.lanes]
        lanes += [LaneState("mid.in", until, None, name, by) for name, (until, by) in self.shared.items()]
        tallies = [
            TallyState(host.id, "mid", "mid.in", None, 0, 0)
            for host in reported
            if any(start_s == window_s for _, start_s in host.changes)
        ]
        return Evidence(window_s, self.now_ms, [host.state() for host in reported], tallies, lanes)

    def overtaken(self) -> dict[Order, str]:
        """Orders that are missing and overtaken: lost for certain, unless a crash makes the evidence incomplete."""
        cuts = horizon(GRAPH, self.evidence()).overtaken
        found = {order: missing_at(order, cuts[LINK], cuts[NODE]) for order in self.orders}
        return {order: checkpoint for order, checkpoint in found.items() if checkpoint}

    def lost(self) -> dict[Order, str]:
        """Orders that are lost for certain: overtaken, and the evidence of the node is complete in their window."""
        overtaken = self.overtaken()
        windows = {order.window_s for order in overtaken}
        complete = {start_s for start_s in windows if "mid" not in self.evidence(start_s).incomplete(GRAPH, {}, ())}
        return {order: checkpoint for order, checkpoint in overtaken.items() if order.window_s in complete}


def missing_at(order: Order, link: Overtaken, node: Overtaken) -> str | None:
    if "mid.out" in order.seen:
        return None
    last_ms = max(order.seen.values())
    if "mid.in" not in order.seen:
        return "mid.in" if is_behind(link, last_ms) else None
    return "mid.out" if is_behind(node, last_ms) else None


def is_behind(overtaken: Overtaken, seen_ms: float) -> bool:
    """As `Overtaken.holds`, of one message."""
    return seen_ms < overtaken.before and not any(start <= seen_ms < end for start, end in overtaken.held)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("policies", [POLICIES, [NODE_COMMITS]], ids=["observed", "committed"])
def test_no_order_that_still_comes_is_ever_lost_for_certain(
    policies: Sequence[str], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(seed, policies)
    monkeypatch.setattr(lane_proofs, "time", SimpleNamespace(monotonic=lambda: world.now_ms / S))
    world.start()
    ever_overtaken: dict[Order, str] = {}
    for second in range(BUSY_S + CALM_S):
        if second == BUSY_S:
            world.works, world.turmoil = 1, 0
            for host in world.living:
                host.end(is_killed=True)
            world.start("after" if policies is POLICIES else None)
            world.rewind()
        world.step(is_busy=second < BUSY_S)
        ever_overtaken |= world.overtaken()
    came = [order for order in world.orders if "mid.out" in order.seen]
    assert len(came) == sum(map(len, world.log.values()))
    assert {order.number: ever_overtaken[order] for order in came if order in ever_overtaken} == {}


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("policies", [POLICIES, [NODE_COMMITS]], ids=["observed", "committed"])
def test_no_order_is_lost_for_certain_because_of_hosts_that_were_cut_off_or_killed(
    policies: Sequence[str], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(seed, policies)
    world.cuts_off, world.ends = world.random.choice([(0.004, 0.003), (0.004, 0.003), (0, 0.03)])
    world.rewinds = 0
    monkeypatch.setattr(lane_proofs, "time", SimpleNamespace(monotonic=lambda: world.now_ms / S))
    world.start()
    ever_lost: dict[Order, str] = {}
    for second in range(BUSY_S + CALM_S):
        if second == BUSY_S:
            world.works, world.turmoil = 1, 0
            for host in world.living:
                host.end(is_killed=True)
            world.start("after" if policies is POLICIES else None)
            world.rewind()
        world.step(is_busy=second < BUSY_S)
        ever_lost |= world.lost()
    false = {
        order.number: ever_lost[order] for order in world.orders if order.offset is not None and order in ever_lost
    }
    assert false == {}


def test_an_order_that_never_reached_the_topic_is_lost_for_certain_while_hosts_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(0)
    monkeypatch.setattr(lane_proofs, "time", SimpleNamespace(monotonic=lambda: world.now_ms / S))
    world.start("after")
    for _ in range(300):
        world.step(is_busy=False)
        world.put()
    for _ in range(60):
        world.step(is_busy=False)
    gone = {order for order in world.orders if order.offset is None}
    assert gone
    assert {order for order, checkpoint in world.overtaken().items() if checkpoint == "mid.in"} == gone
