"""Random traffic of a made-up pipeline with one fault in it, as blocks and through the kernel, without servers.

src -> ses -> ga, fb, tt: each message goes to one of the three vendors; each node has several processes on some
hosts, of two versions, and reads some partitions.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from aggregator.kernel.plan import ReadPlan, WindowPlan
from aggregator.kernel.spark_reader import gather
from lagloss.wire.format import (
    SAMPLE_ALL,
    BeaconBlock,
    block_key,
    decode_block,
    encode_block,
    hash_id,
    pack_ids,
    partition_of,
)
from lagloss_server.blame.causes import Blame, blame
from lagloss_server.blame.traits import EmitterFacts, Of, Population, SuspectWindow
from lagloss_server.judging.arithmetic import missing_places
from lagloss_server.judging.facts import WindowFacts
from lagloss_server.judging.picked import PickedMessages
from lagloss_server.model.definition import Definition
from lagloss_server.model.graph import Graph
from lagloss_server.model.taps import TAP_LABEL
from lagloss_server.queries.matrix import Presence
from lagloss_server.queries.window_blocks import WindowBlocks
from tests.oracle.evidence import Record
from tests.support.in_memory import run_kernel, to_batches

START_S = 1_780_000_020
START_MS = START_S * 1000
VENDORS = ("ga", "fb", "tt")
NODES = ("src", "ses", *VENDORS)
BEFORE = {"ses": "src", **dict.fromkeys(VENDORS, "ses")}
LOG_PARTITIONS = 4
Cause = Literal["process", "host", "partition", "version", "vendor", "time", "prefix", "start", "none"]
Harm = Literal["lost", "late", "dead", "corrupted"]


@dataclass(frozen=True)
class Process:
    """One process of a node: `partitions` of its input."""

    node: str
    emitter: bytes
    host: str
    version: str
    started_ms: int
    partitions: tuple[int, ...]
    is_tap: bool = False

    @property
    def facts(self) -> EmitterFacts:
        inputs = tuple(f"{self.node}-in/{at}" for at in self.partitions)
        labels = {"version": self.version, **({TAP_LABEL: f"topic {self.node}-in"} if self.is_tap else {})}
        return EmitterFacts(self.host, self.started_ms, None, False, labels, inputs)


@dataclass
class Sighting:
    checkpoint: str
    process: Process
    lag_ms: float
    reason: str | None = None
    crc: int | None = None


@dataclass
class Journey:
    """One message on its way: where it goes, and which partition it lies in at each hop."""

    message_id: str
    event_ms: int
    vendor: str
    partition: dict[str, int]
    seen: list[Sighting] = field(default_factory=list)
    crc: int | None = None

    @property
    def now_ms(self) -> float:
        return self.event_ms + (self.seen[-1].lag_ms if self.seen else 0.0)


@dataclass(frozen=True)
class Fault:
    """What goes wrong, where, and with which share of the messages that it meets; `noise` with any others."""

    cause: Cause
    harm: Harm
    node: str
    share: float
    noise: float
    process: Process | None = None
    value: str = ""
    from_ms: int = 0
    to_ms: int = 0


@dataclass(frozen=True)
class FaultyWorld:
    fault: Fault
    journeys: Sequence[Journey]
    processes: Sequence[Process]
    facts: WindowFacts
    graph: Graph

    @property
    def blame(self) -> Blame:
        """What is found out about the messages that the fault harmed."""
        of: Of = {"lost": "loss", "late": "lag", "dead": "dead", "corrupted": "corruption"}[self.fault.harm]  # type: ignore[assignment]
        found = {
            missing.id_hash: ("lost", [place.label for place in missing_places(self.graph, missing.mask)])
            for missing in self.facts.missing
        }
        window = SuspectWindow(START_S, self.graph, PickedMessages.unpack(self.facts.picked.pack()), found)
        known = {process.emitter: process.facts for process in self.processes}
        return blame(Population.of_windows(of, [window], known))

    @property
    def is_named(self) -> bool:
        """Whether the cause is what is named first; of no cause, none."""
        found = next(iter(self.blame.findings), None)
        if found is None or self.fault.cause == "none":
            return found is None and self.fault.cause == "none"
        node = self.fault.node
        match self.fault.cause:
            case "process" | "start":
                assert self.fault.process is not None
                named = [found, *found.same]
                return any((each.kind, each.value) == ("process", self.fault.process.emitter.hex()) for each in named)
            case "host":
                return (found.kind, found.node, found.value) == ("host", node, self.fault.value)
            case "version":
                return (found.kind, found.name, found.node, found.value) == ("label", "version", node, self.fault.value)
            case "partition":
                return (found.kind, found.value) == ("input", f"{node}-in/{self.fault.value}")
            case "vendor":
                return (found.kind, found.value) == ("destination", node)
            case "time":
                return found.kind in ("time", "second")
            case "prefix":
                return (found.kind, found.value) == ("prefix", self.fault.value)

    def counted(self, part_of: Callable[[int], int]) -> WindowFacts:
        """The facts, the messages counted in parts: their numbers by hash."""
        parts: dict[int, list[Journey]] = {}
        for journey in self.journeys:
            parts.setdefault(part_of(hash_id(journey.message_id)), []).append(journey)
        return _count(self.graph, parts.values())


def faulty_world(cause: Cause, harm: Harm, seed: int, messages: int | None = None) -> FaultyWorld:
    """A random world with this cause; the same for the same seed."""
    rng = random.Random(f"{cause} {harm} {seed}")
    processes = _processes(rng, partitions_each=1 if cause == "partition" else None)
    fault = _fault(cause, harm, rng, processes)
    graph = _definition().graph
    messages = messages or (8_000 if cause == "start" else rng.choice([2_000, 4_000, 8_000]))
    journeys = [_journey(rng, fault, processes) for _ in range(messages)]
    return FaultyWorld(fault, journeys, processes, _count(graph, [journeys]), graph)


def _definition() -> Definition:
    nodes = [
        {"name": "src", "to": ["ses"]},
        {"name": "ses", "to": list(VENDORS)},
        *({"name": name} for name in VENDORS),
    ]
    return Definition.model_validate(
        {"apiVersion": "lagloss/v1", "kind": "Pipeline", "metadata": {"name": "faulty"}, "spec": {"nodes": nodes}}
    )


def _processes(rng: random.Random, partitions_each: int | None) -> list[Process]:
    hosts = [f"host-{at}" for at in range(rng.randint(4, 6))]
    found = []
    for node in NODES:
        count = rng.randint(4, 8)
        partitions = list(range(count * (partitions_each or rng.choice([2, 3]))))
        old = rng.sample(range(count), count // 2)
        machines = rng.sample(hosts * 2, count)
        for at in range(count):
            found.append(
                Process(
                    node,
                    uuid.UUID(int=rng.getrandbits(128)).bytes,
                    f"{machines[at]}:{100 + at}",
                    "1.4.1" if at in old else "1.4.2",
                    START_MS - rng.choice([3_600_000, 86_400_000, 7_200_000]),
                    tuple(partitions[at::count]),
                )
            )
    return found


def _fault(cause: Cause, harm: Harm, rng: random.Random, processes: list[Process]) -> Fault:
    node = rng.choice(NODES[1:])
    if cause == "vendor":
        node = rng.choice(VENDORS)
    mine = [process for process in processes if process.node == node]
    process = rng.choice(mine)
    share = rng.uniform(0.3, 1.0)
    value, span = "", (0, 0)
    match cause:
        case "host":
            machines = [each.facts.machine for each in mine]
            value = max(machines, key=machines.count)
            if machines.count(value) < 2:  # else it is one process
                changed = next(each for each in mine if each.facts.machine != value)
                processes[processes.index(changed)] = _moved(changed, value)
        case "partition":
            (partition,) = process.partitions
            value = str(partition)
            began = START_MS + rng.randint(20_000, 40_000)
            emitter = uuid.UUID(int=rng.getrandbits(128)).bytes
            processes.append(replace(process, emitter=emitter, started_ms=began))  # which reads it from then on
        case "version":
            value = rng.choice(["1.4.1", "1.4.2"])
        case "time":
            start = START_MS + rng.randint(2_000, 50_000)
            span = (start, start + rng.randint(3_000, 9_000))
            share = rng.uniform(0.6, 1.0)
        case "start":
            began = START_MS + rng.randint(5_000, 30_000)
            young = replace(process, started_ms=began)
            processes[processes.index(process)] = process = young
            span = (began, began + rng.randint(25_000, 30_000))  # so that one of eight makes 5 % late: a breach
            share = 1.0
        case "prefix":
            value = rng.choice(["ios-", "web-"])
        case "none":
            share = 0.0
    noise = rng.choice([0.01, 0.03, 0.1]) if cause == "none" else rng.choice([0.0, 0.0005, 0.001])
    return Fault(cause, harm, node, share, noise, process, value, *span)


def _moved(process: Process, machine: str) -> Process:
    return replace(process, host=f"{machine}:{process.host.split(':')[1]}")


def _journey(rng: random.Random, fault: Fault, processes: Sequence[Process]) -> Journey:
    event_ms = START_MS + rng.randrange(60_000)
    name = rng.choice(["ios-", "web-", "and-"]) + f"{rng.getrandbits(64):016x}"
    key = rng.getrandbits(32)
    count = {node: len({at for p in processes if p.node == node for at in p.partitions}) for node in NODES}
    partition = {node: (key if node == "ses" else rng.getrandbits(32)) % count[node] for node in NODES}
    journey = Journey(name, event_ms, rng.choices(VENDORS, [5, 3, 1])[0], partition)
    for node in ("src", "ses", journey.vendor):
        if not _pass(rng, journey, node, fault, processes):
            break
    return journey


def _pass(rng: random.Random, journey: Journey, node: str, fault: Fault, processes: Sequence[Process]) -> bool:
    """One node: in, and out; whether the message goes on."""
    readers = [p for p in processes if p.node == node and journey.partition[node] in p.partitions]
    process = max(readers, key=lambda each: (each.started_ms <= journey.now_ms, each.started_ms))
    lag_ms = journey.now_ms - journey.event_ms + rng.expovariate(1 / 150)
    is_met = _meets(fault, journey, node, process, journey.event_ms + lag_ms)
    hit = (is_met and rng.random() < fault.share) or rng.random() < fault.noise
    if hit and fault.harm == "lost" and fault.cause in ("none", "time") and rng.random() < 0.5 and node != "src":
        return False
    journey.seen.append(Sighting(f"{node}.in", process, lag_ms))
    if hit and fault.harm == "lost":
        return False
    lag_ms += rng.expovariate(1 / 100) + (rng.uniform(6_000, 20_000) if hit and fault.harm == "late" else 0)
    if hit and fault.harm == "dead":
        journey.seen.append(Sighting(f"{node}.dead", process, lag_ms, reason="unreadable"))
        return False
    out = f"{node}.out" if node != "ses" else f"ses.out:{journey.vendor}"
    crc = rng.getrandbits(32) if fault.harm == "corrupted" else None
    if crc is not None and journey.crc is not None:  # as it was sent, or not
        journey.seen[-1].crc = journey.crc ^ 1 if hit else journey.crc
    journey.crc = crc
    journey.seen.append(Sighting(out, process, lag_ms, crc=crc))
    return True


def _meets(fault: Fault, journey: Journey, node: str, process: Process, now_ms: float) -> bool:
    if node != fault.node:
        return False
    match fault.cause:
        case "process":
            return process is fault.process
        case "host":
            return process.facts.machine == fault.value
        case "partition":
            return journey.partition[node] == int(fault.value)
        case "version":
            return process.version == fault.value
        case "vendor":
            return True
        case "time":
            return fault.from_ms <= now_ms < fault.to_ms
        case "start":
            return process is fault.process and fault.from_ms <= now_ms < fault.to_ms
        case "prefix":
            return journey.message_id.startswith(fault.value)
    return False


def presence_of(world: FaultyWorld) -> Presence:
    """The same messages as a read of the log has them."""
    blocks: dict[str, list[BeaconBlock]] = {}
    for record in _records(world.journeys):
        block = decode_block(record.value)
        blocks.setdefault(block.checkpoint, []).append(block)
    return Presence(WindowBlocks(world.graph, START_S, blocks, SAMPLE_ALL))


def _count(graph: Graph, parts: Iterable[Sequence[Journey]]) -> WindowFacts:
    window = WindowPlan(graph, START_S, (1e15,))
    plan = ReadPlan({window.key: window}, frozenset(["faulty"]))
    counted = [each for part in parts for each in run_kernel(to_batches(list(_records(part)), 500), plan)]
    return gather(counted, plan).facts[window.key]


def _records(journeys: Sequence[Journey]) -> Iterator[Record]:
    """Blocks as the SDK would make them: one a second, by checkpoint, process and reason."""
    groups: dict[tuple[object, ...], list[tuple[Journey, Sighting]]] = {}
    for journey in journeys:
        at = partition_of(hash_id(journey.message_id), LOG_PARTITIONS)
        for seen in journey.seen:
            second = int((journey.event_ms + seen.lag_ms) // 1000)
            key = (at, seen.checkpoint, seen.process.emitter, seen.reason, second, seen.crc is None)
            groups.setdefault(key, []).append((journey, seen))
    seq = itertools.count()
    offsets = [itertools.count() for _ in range(LOG_PARTITIONS)]
    for (at, checkpoint, emitter, reason, _, plain), members in groups.items():
        is_first = checkpoint == "src.in"
        block = BeaconBlock(
            pipeline="faulty",
            checkpoint=str(checkpoint),
            emitter=emitter,  # type: ignore[arg-type]
            seq=next(seq),
            window_start=START_S,
            partitions=LOG_PARTITIONS,
            id_hash=np.array([hash_id(journey.message_id) for journey, _ in members], np.uint64),
            lag_ms=np.array([seen.lag_ms for _, seen in members], np.float32),
            reason=reason,  # type: ignore[arg-type]
            payload_crc=None if plain else np.array([seen.crc for _, seen in members], np.uint32),
            event_offset_ms=np.array([j.event_ms - START_MS for j, _ in members], np.uint16) if is_first else None,
            message_ids=pack_ids(j.message_id.encode() for j, _ in members) if is_first else None,
        )
        number = next(offsets[at])  # type: ignore[index]
        yield Record(at, number, START_MS + 100_000, block_key("faulty", START_S), encode_block(block))  # type: ignore[arg-type]
