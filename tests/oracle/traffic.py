"""Messages that walk through a pipeline, and the beacons they leave: all that goes wrong on the way is drawn here."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, field, replace

from tests.oracle.plan import END_MS, MINUTE_MS, START_S, Plan, chance
from tests.oracle.topologies import Net


@dataclass(frozen=True)
class Actor:
    """One emitter: a process of a node."""

    node: str
    number: int
    uuid: bytes
    begin_ms: int
    end_ms: int | None = None  # when it closed or fell silent
    closed: bool = False
    history: bool = False  # sends the past: started after the window, tells of it all the same
    clock_ms: int = 0  # how far its host's clock is ahead
    gap_ms: tuple[int, int] | None = None  # lives on, but no report of it arrives between these

    def works_at(self, at_ms: float) -> bool:
        return self.history or (self.begin_ms <= at_ms and (self.end_ms is None or at_ms <= self.end_ms))


@dataclass(frozen=True)
class Seen:
    """One beacon as its emitter makes it."""

    checkpoint: str
    actor: Actor
    message_id: str
    event_ms: int
    at_ms: float  # when it truly happened
    observed_ms: float  # on the emitter's clock
    crc: int
    replay: str | None = None
    dropped: bool = False  # counted in the tally's `dropped` instead of sent

    @property
    def window_s(self) -> int:
        return self.event_ms // MINUTE_MS * 60


@dataclass
class Journey:
    """One message's walk; `seen` is the trail it leaves."""

    plan: Plan
    net: Net
    cast: dict[str, list[Actor]]
    rng: random.Random
    message_id: str
    event_ms: int
    lag_target_ms: float
    seen: list[Seen] = field(default_factory=list)
    replay: str | None = None
    visits: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.whole = chance(self.rng, 0.7)  # whole milliseconds let edges be hit exactly
        self.crc = self.rng.randrange(2**32)
        steps = self.net.steps
        self.new_name_at = self.rng.choice(steps) if self.happens("unexplained", 0.25) else None
        self.new_time_at = self.rng.choice(steps) if self.happens("moved_event_time", 0.25) else None

    def happens(self, phenomenon: str, share: float) -> bool:
        """Draws in any case, so that the walk of a message stays the same without the phenomenon."""
        drawn = chance(self.rng, share)
        return drawn and self.plan.has(phenomenon)

    def delay_ms(self) -> float:
        kind, fraction = self.rng.random(), self.rng.random()
        longest_ms = 0 if kind < 0.1 else 10 if kind < 0.5 else 400
        return round(fraction * longest_ms) if self.whole else fraction * longest_ms

    def observe(self, checkpoint: str, at_ms: float, crc: int) -> None:
        node = checkpoint.split(".")[0]
        actors = [actor for actor in self.cast[node] if actor.works_at(at_ms)] or self.cast[node]
        actor = actors[int(self.rng.random() * len(actors))]
        off_ms = skew_ms(self.plan, node) + actor.clock_ms
        observed_ms = at_ms + off_ms
        self.seen.append(Seen(checkpoint, actor, self.message_id, self.event_ms, at_ms, observed_ms, crc, self.replay))
        if self.happens("duplicates", 0.1):
            again_ms = at_ms + self.delay_ms()
            self.seen.append(replace(self.seen[-1], at_ms=again_ms, observed_ms=again_ms + off_ms))

    def visit(self, node: str, at_ms: float, crc: int, tries: int = 0) -> None:
        """The message comes in at a node."""
        if node == self.new_name_at and not self.message_id.endswith("*"):
            self.message_id += "*"
        if node == self.new_time_at:
            self.event_ms, self.new_time_at = self.event_ms + MINUTE_MS, None
        self.observe(f"{node}.in", at_ms, crc)
        self.visits[node] = self.visits.get(node, 0) + 1
        if self.visits[node] > 6 or (self.visits[node] > 1 and tries == 0 and chance(self.rng, 0.4)):
            return  # a join that lets only the first copy through
        if self.happens("lost_at_node", 0.12):
            return
        at_ms += self.delay_ms()
        if node in self.net.takes_in:
            self.make_new(node, at_ms, crc)
        elif node in self.net.retrier and chance(self.rng, 0.45) and tries < 2:
            self.retry(node, at_ms, crc, tries)
        elif self.happens("filtered", 0.2):
            self.observe(f"{node}.filtered", at_ms, crc)
        elif self.happens("dead", 0.2):
            self.observe(f"{node}.dead", at_ms, crc)
        else:
            self.leave(node, at_ms, crc)

    def retry(self, node: str, at_ms: float, crc: int, tries: int) -> None:
        retrier = self.net.retrier[node]
        self.observe(f"{node}.out:{retrier}", at_ms, crc)
        if self.happens("lost_at_link", 0.12):
            return
        self.observe(f"{retrier}.in", at_ms + self.delay_ms(), crc)
        at_ms += self.delay_ms() * 3
        outcome = self.rng.random()
        if outcome < 0.6:
            self.observe(f"{retrier}.out:{node}", at_ms, crc)
            if not self.happens("lost_at_link", 0.12):
                self.visit(node, at_ms + self.delay_ms(), crc, tries + 1)
        elif outcome < 0.8:
            self.observe(f"{retrier}.dead", at_ms, crc)

    def leave(self, node: str, at_ms: float, crc: int) -> None:
        """Out to the next nodes, or delivered."""
        following = self.net.to[node]
        if not following:
            if self.happens("on_target", 0.6):
                at_ms = self.event_ms + self.lag_target_ms + self.rng.choice([0, 0, 1, -1, 0.001])
            self.observe(f"{node}.out", at_ms, crc)
            if node in self.net.new_ids:
                self.make_new(node, at_ms, crc)
            return
        taken = list(following)
        if len(following) > 1 and node not in self.net.copies:
            taken = self.rng.sample(following, k=1 if chance(self.rng, 0.7) else len(following))
        for name in taken:
            if len(taken) > 1 and self.happens("lost_at_node", 0.1):
                continue  # one of the copies is never sent
            self.observe(self.net.out_for(node, name), at_ms, crc)
            self.cross(name, at_ms, crc)

    def make_new(self, node: str, at_ms: float, crc: int) -> None:
        """New messages of this one, which go on: two children, one with another id, or one with the same."""
        old, visits = self.message_id, self.visits
        for new in self.rng.choice([[f"{old}#1/2", f"{old}#2/2"], [f"{old}+"], [old]]):
            self.message_id, self.visits = new, {}
            self.visit(f"{node}-new", at_ms + self.delay_ms(), crc)
        self.message_id, self.visits = old, visits

    def cross(self, name: str, at_ms: float, crc: int) -> None:
        """Over a link, to the node of that name."""
        if self.happens("lost_at_link", 0.12):
            return
        at_ms += self.delay_ms()
        wait = self.rng.choice([3 * MINUTE_MS, 20 * MINUTE_MS, 20_000, 1_500])
        if self.happens("huge_lags", 0.1):
            at_ms += wait
        damage = self.rng.randrange(1, 2**32)
        self.visit(name, at_ms, crc ^ damage if self.happens("corrupted", 0.2) else crc)
        if self.happens("duplicates", 0.08):  # delivered twice
            self.visit(name, at_ms + self.delay_ms(), crc)


@functools.lru_cache(maxsize=1024)
def skew_ms(plan: Plan, node: str) -> float:
    """How far off a node's observations are, for a reason that no report shows."""
    rng = plan.rng("clock", node)
    off = rng.choice([-3_000, -70_000, -250.5, 20_000, 900_000, 10_000_000])
    return off if chance(rng, 0.4) and plan.has("crooked_clocks") else 0


def journeys(plan: Plan, net: Net, cast: dict[str, list[Actor]], lag_target_ms: float) -> list[list[Seen]]:
    """The trail of every message of the window to judge, then of those of other windows."""
    windows = [] if plan.has("no_traffic") else [(START_S, i) for i in range(plan.messages)]
    for later in (-60, 60, 120):
        drawn = plan.rng("others", later).randint(0, 3)
        windows += [(START_S + later, i) for i in range(drawn if plan.has("other_windows") else 0)]
    trails = []
    for window_s, i in windows:
        rng = plan.rng("message", window_s, i)
        event_ms = window_s * 1000 + rng.choice([0, 59_999, *(rng.randrange(MINUTE_MS) for _ in range(8))])
        name = f"order-{plan.seed}-{window_s - START_S}-{i}{rng.choice(['', '', 'é'])}"
        journey = Journey(plan, net, cast, rng, name, event_ms, lag_target_ms)
        source = plan.rng("source", window_s, i).choice(net.sources)
        journey.visit(source, event_ms + journey.delay_ms(), journey.crc)
        if journey.happens("duplicates", 0.1) and len(net.sources) > 1:  # sent to two sources
            journey.visit(next(name for name in net.sources if name != source), event_ms + 500, journey.crc)
        trails.append(with_holes(plan, rng, journey.seen) + replayed(journey) + restamped(plan, net, journey.seen))
    return trails


def with_holes(plan: Plan, rng: random.Random, seen: list[Seen]) -> list[Seen]:
    """Beacons that never reach the log while the message goes on: unnoticed, or counted in `dropped`."""
    kept = []
    for beacon in seen:
        hole, dropped = chance(rng, 0.15), chance(rng, 0.08)
        if dropped and plan.has("dropped"):
            kept.append(replace(beacon, dropped=True))
        elif not (hole and plan.has("holes")):
            kept.append(beacon)
    return kept


def restamped(plan: Plan, net: Net, seen: list[Seen]) -> list[Seen]:
    """The first beacon once more with another event time of the same window."""
    rng = plan.rng("restamped", seen[0].message_id, seen[0].event_ms)
    start_ms = seen[0].window_s * 1000
    again = replace(seen[0], event_ms=start_ms + rng.randrange(MINUTE_MS))
    right = seen[0].checkpoint in net.entrances and chance(rng, 0.6)
    return [again] if right and plan.has("restamped") else []


def replayed(journey: Journey) -> list[Seen]:
    """The message sent once more on purpose, from a node on."""
    rng = journey.plan.rng("replay", journey.message_id, journey.event_ms)
    if not (journey.plan.has("replays") and chance(rng, 0.5)):
        return []
    again = replace(journey, rng=rng, seen=[], visits={}, replay=rng.choice(["again-1", "again-1", "again-2"]))
    again.visit(rng.choice(journey.net.steps), END_MS + rng.randint(1_000, 30_000), journey.crc)
    return again.seen
