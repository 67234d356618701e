"""No false loss: consumers of a queue that fail, hang, are killed, come and go, and every file judged at every second
by the rules of arithmetic, as the aggregator would with the reports it has by then."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Final

import pytest

from lagloss.files.progress import DEAD_IN_A_ROW, Held, QueueProgress, slack_ms
from lagloss_server.judging.arithmetic import Overtaken, horizon
from lagloss_server.judging.evidence import EmitterState, Evidence, LaneState
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.graph import Graph

S: Final = 1_000
BEGIN_MS: Final = 1_795_536_000_000
VISIBILITIES_MS: Final = (20 * S, 120 * S)
"""Below and above the time in which a consumer reports what it received."""
NOTIFIED_MS: Final = 30 * S
MAX_RECEIVES: Final = 3
BUSY_S, CALM_S = 1_800, 900
GRAPH: Final = Graph(
    parse_definition(
        "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: scores}\nspec:\n"
        "  nodes: [{name: landing, to: [db]}, {name: db}]\n"
    )
)
LINK = next(place for place in GRAPH.places if place.progress == "db.in")
NODE = next(place for place in GRAPH.places if place.progress == "db.out")


@dataclass(eq=False)
class File:
    """`seen`: observation times that the log has, by checkpoint: received, in (its records), out, dead (epoch ms)."""

    number: int
    landed_ms: int
    notified_ms: int | None
    seen: dict[str, int] = field(default_factory=dict)
    visible_ms: int = 0
    receives: int = 0
    is_deleted: bool = False
    is_in_dead_letters: bool = False

    def is_in_queue(self, now_ms: int) -> bool:
        is_there = self.notified_ms is not None and self.notified_ms <= now_ms
        return is_there and not self.is_deleted and not self.is_in_dead_letters


@dataclass(eq=False)
class Work:
    """Work in hand, as the emitter has it."""

    hand: dict[Work, int]

    def done(self) -> None:
        self.hand.pop(self, None)


@dataclass(eq=False)
class Job:
    file: File
    held: Held
    receives: int
    ends_ms: int = 0
    is_hung: bool = False


class Consumer:
    """A process of the node, with what it has not sent yet."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.id = number.to_bytes(16, "big")
        self.started_ms = world.now_ms
        slack = slack_ms(NOTIFIED_MS / S, world.visibility_ms / S, world.max_receives)
        self.progress = QueueProgress("q", slack, world.visibility_ms, lambda: world.now_ms, lambda: world.now_ms)
        self.hand: dict[Work, int] = {}
        self.jobs: list[Job] = []
        self.observed: list[tuple[File, str, int]] = []
        self.to_delete: list[tuple[Job, int]] = []
        self.flushes = 0
        self.appended_ms = world.now_ms
        self.is_closed = self.is_gone = False
        self.inputs: set[str] = set()
        self.lanes: dict[str, int] = {}

    def step(self) -> None:
        random_ = self.world.random
        if self.jobs:
            self._work(self.jobs[0])
        elif random_.random() < 0.8:
            self.receive()
        for job in self.jobs:
            if not job.is_hung and job.held.visible_at_ms - self.world.now_ms <= self.world.visibility_ms / 3:
                job.held.visible_at_ms = job.file.visible_ms = self.world.now_ms + self.world.visibility_ms
        is_due = self.observed or random_.random() < 0.15 or self.world.now_ms - self.appended_ms >= 10 * S
        if is_due and random_.random() < 0.9:  # else the broker is slow
            self.report()

    def receive(self) -> None:
        world = self.world
        files = world.visible()
        if not files:
            self.progress.emptied(world.now_ms)
            return
        for file in files:
            file.receives += 1
            file.visible_ms = world.now_ms + world.visibility_ms
            work = Work(self.hand)
            self.hand[work] = world.now_ms
            held = Held(file.landed_ms, file.visible_ms, [work])  # type: ignore[list-item]
            self.progress.hold(str(file.number), held)
            self.observed.append((file, "received", world.now_ms))
            takes_ms = world.random.choice([0, 0, 1, 2, 5, 30]) * S
            self.jobs.append(
                Job(file, held, file.receives, world.now_ms + takes_ms, is_hung=world.random.random() < 0.05)
            )

    def _work(self, job: Job) -> None:
        world = self.world
        if world.random.random() < 0.5 and (job.file, "in") not in [each[:2] for each in self.observed]:
            self.observed.append((job.file, "in", world.now_ms))
        if world.now_ms < job.ends_ms + (60 * S if job.is_hung else 0):
            return
        self.jobs.remove(job)
        if world.random.random() < world.works:
            self.observed += [(job.file, "in", world.now_ms), (job.file, "out", world.now_ms)]
            job.held.is_imported = True
            job.held.release()
            self.to_delete.append((job, self.flushes + 1))
        elif job.receives >= world.max_receives:
            self.observed.append((job.file, "dead", world.now_ms))
            self.progress.drop(str(job.file.number), job.held)
        else:
            self.progress.give_up(job.held)

    def report(self) -> None:
        """Send beacons, then a report whose progress was read before."""
        now_ms = self.world.now_ms
        self.lanes = {lane.lane: lane.until for lane in self.progress.lanes("db.in")}
        self.inputs |= {name for name in self.lanes if name}
        if "q" in self.lanes:
            self.world.shared = (self.lanes["q"], self.id)
        self.lanes["out"] = min(self.hand.values(), default=now_ms)
        for file, checkpoint, at_ms in self.observed:
            file.seen[checkpoint] = max(at_ms, file.seen.get(checkpoint, 0))
        self.observed.clear()
        self.flushes += 1
        self.appended_ms = now_ms
        for job, flush in list(self.to_delete):
            if flush <= self.flushes:
                self.to_delete.remove((job, flush))
                if self.world.random.random() < 0.9:
                    job.file.is_deleted = True
                    self.progress.drop(str(job.file.number), job.held)
                else:
                    self.progress.give_up(job.held)

    def end(self, *, is_killed: bool) -> None:
        if not is_killed:
            self.report()
            self.is_closed = self.progress.is_settled and not self.observed
        self.is_gone = True

    def state(self) -> EmitterState:
        at_s = self.appended_ms // S
        return EmitterState(
            self.id,
            "db",
            self.started_ms,
            self.appended_ms,
            self.is_closed,
            at_s,
            self.appended_ms,
            at_s,
            resumes=True,
            inputs=frozenset(self.inputs),
        )


class World:
    def __init__(self, seed: int, visibility_ms: int, max_receives: int = MAX_RECEIVES) -> None:
        self.random = random.Random(seed)
        self.visibility_ms = visibility_ms
        self.max_receives = max_receives
        self.now_ms = BEGIN_MS
        self.files: list[File] = []
        self.consumers: list[Consumer] = []
        self.shared: tuple[int, bytes] | None = None
        self.works = self.random.choice([0.5, 0.8, 0.95])

    @property
    def living(self) -> list[Consumer]:
        return [each for each in self.consumers if not each.is_gone]

    def visible(self) -> list[File]:
        """What a long poll finds; it moves what was received too often to the dead-letter queue."""
        found = [file for file in self.files if file.is_in_queue(self.now_ms) and file.visible_ms <= self.now_ms]
        for file in found:
            file.is_in_dead_letters = file.receives >= self.max_receives
        found = [file for file in found if not file.is_in_dead_letters]
        self.random.shuffle(found)
        return found[: self.random.randint(1, 3)]

    def land(self) -> None:
        delay_ms = self.random.choice([0, 0, 1, 2, 10, 30]) * S
        is_lost = self.random.random() < 0.1
        notified_ms = None if is_lost else self.now_ms + min(delay_ms, NOTIFIED_MS)
        self.files.append(File(len(self.files), self.now_ms, notified_ms))

    def start(self) -> Consumer:
        self.consumers.append(Consumer(self, len(self.consumers) + 1))
        return self.consumers[-1]

    def step(self, *, is_busy: bool) -> None:
        self.now_ms += S
        for consumer in self.living:
            consumer.step()
        if is_busy:
            if self.random.random() < 0.05:
                self.land()
            if self.random.random() < 0.02 and len(self.living) < 4:
                self.start()
            if self.living and self.random.random() < 0.02:
                self.random.choice(self.living).end(is_killed=self.random.random() < 0.5)
        if self.now_ms // S % 30 == 0:  # who looks into the dead-letter queue
            for file in self.files:
                if file.is_in_dead_letters:
                    file.seen.setdefault("dead", self.now_ms)

    def evidence(self) -> Evidence:
        """Of any window: progress is the same for all."""
        lanes = [LaneState("db.in", each.lanes[""], each.id) for each in self.consumers if each.lanes]
        lanes += [LaneState("db.out", each.lanes["out"], each.id) for each in self.consumers if each.lanes]
        if self.shared is not None:
            lanes.append(LaneState("db.in", self.shared[0], None, "q", self.shared[1]))
        return Evidence(0, self.now_ms, [each.state() for each in self.consumers if each.lanes], (), lanes)

    def overtaken(self) -> dict[File, str]:
        """Files that are overtaken where they are missing, or whose records are: lost for certain, unless a crash makes
        the evidence incomplete."""
        cuts = horizon(GRAPH, self.evidence()).overtaken
        return {file: found for file in self.files if (found := overtaken_at(file, cuts[LINK], cuts[NODE]))}


def overtaken_at(file: File, link: Overtaken, node: Overtaken) -> str | None:
    """Return the checkpoint at which the file or its records are missing and overtaken."""
    if "out" in file.seen or "dead" in file.seen:
        return None
    for checkpoint in ("received", "in"):
        if checkpoint not in file.seen and is_behind(link, file.landed_ms):
            return f"{checkpoint} of {file}"
    last_ms = max(file.seen.values(), default=math.inf)
    return f"out of {file}" if is_behind(node, last_ms) else None


def is_behind(overtaken: Overtaken, seen_ms: float) -> bool:
    """As `Overtaken.holds`, of one message."""
    return seen_ms < overtaken.before and not any(start <= seen_ms < end for start, end in overtaken.held)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("visibility_ms", VISIBILITIES_MS)
def test_no_file_that_still_comes_is_ever_lost_for_certain_and_those_that_do_not_come_are(
    seed: int, visibility_ms: int
) -> None:
    world = World(seed, visibility_ms)
    world.start()
    found_while_busy: set[File] = set()
    for at_s in range(BUSY_S + CALM_S):
        if at_s == BUSY_S:
            world.works = 1
            world.start()
        world.step(is_busy=at_s < BUSY_S)
        overtaken = world.overtaken()
        # of one that is in the dead-letter queue, who looks there has yet to report
        assert all(file.notified_ms is None or file.is_in_dead_letters for file in overtaken), f"{at_s}: {overtaken}"
        found_while_busy |= overtaken.keys() if at_s < BUSY_S else set()
    gone = {file for file in world.files if file.notified_ms is None}
    assert all({"out", "dead"} & file.seen.keys() for file in world.files if file not in gone)
    assert gone == world.overtaken().keys()
    assert found_while_busy


@pytest.mark.parametrize("dead", range(1, DEAD_IN_A_ROW))
def test_a_file_is_not_lost_while_importers_are_killed_in_a_row(dead: int) -> None:
    """The first has reported that it received the file, the others nothing. Another one finds the queue empty."""
    world = World(0, 120 * S, max_receives=10)
    other, first, *others = (world.start() for _ in range(2 + dead))
    world.files.append(File(0, BEGIN_MS, BEGIN_MS))
    takers = [first, *others[:-1], world.start()]
    for at_s in range(11, 1_200):
        world.now_ms = BEGIN_MS + at_s * S
        if world.visible():
            taker = takers.pop(0)
            taker.receive()
            if not takers:
                taker.observed.append((world.files[0], "out", world.now_ms))
                world.files[0].is_deleted = True
            elif taker is not first:
                taker.end(is_killed=True)
        else:
            other.progress.emptied(world.now_ms)
        if at_s == 12:
            first.observed.append((world.files[0], "in", world.now_ms))
            first.jobs[0].file.visible_ms = world.now_ms + world.visibility_ms  # extended once more
            first.report()
            first.end(is_killed=True)
        for consumer in world.living:
            consumer.report()
        assert not world.overtaken(), f"{at_s} s: {world.overtaken()}"
    assert world.files[0].receives == 1 + dead


@pytest.mark.parametrize(
    ("received_s", "again_s"),
    [
        pytest.param(131, 251, id="at once"),
        pytest.param(200, 320, id="behind a backlog"),
        pytest.param(131, 290, id="behind a backlog after its importer was killed"),
    ],
)
def test_a_file_that_failed_is_not_lost_while_its_next_importer_was_killed_before_it_reported(
    received_s: int, again_s: int
) -> None:
    """`received_s`, `again_s`: when the file is received a second and a third time; until then others of the queue are,
    so that no poll comes back empty. The third importer lives, and takes a while until it reports."""
    world = World(0, 120 * S)
    failed, killed, third = world.start(), world.start(), world.start()
    world.files.append(File(0, BEGIN_MS, BEGIN_MS))
    for at_s in range(11, again_s + 300):
        world.now_ms = BEGIN_MS + at_s * S
        is_there = bool(world.visible())
        if at_s in (11, received_s, again_s):
            assert is_there
            {11: failed, received_s: killed, again_s: third}[at_s].receive()
        elif not is_there:
            for consumer in (failed, third):
                consumer.progress.emptied(world.now_ms)
        if at_s == 12:
            failed.observed.append((world.files[0], "in", world.now_ms))
            failed.progress.give_up(failed.jobs[0].held)
        if at_s == received_s:
            killed.end(is_killed=True)
        for consumer in world.living:
            if consumer is not third or not again_s <= at_s < again_s + 10:
                consumer.report()
        assert not world.overtaken(), f"{at_s} s: {world.overtaken()}"
    assert failed.progress.is_settled
