"""The beacons topic: trails packed into blocks, blocks put into the log, and what goes wrong with them there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import xxhash

from tests.oracle.cast import picked
from tests.oracle.evidence import ALL_IDS, Record
from tests.oracle.plan import END_MS, START_MS, START_S, Plan, chance
from tests.oracle.topologies import PIPELINE, Net
from tests.oracle.traffic import Actor, Seen
from tests.oracle.wire import avro, column, float32, names_column, traces_column


@dataclass
class Draft:
    """A block before it is encoded; `fields` overrides what follows from the rest."""

    actor: Actor
    checkpoint: str
    window_s: int
    partition: int
    partitions: int
    seen: list[Seen]
    at_ms: int
    sample: int = ALL_IDS
    replay: str | None = None
    seq: int = 0
    offset: int = -1
    in_log: bool = True
    key: bytes | None = b""  # b"" is the right one
    value: bytes | None = None
    fields: dict[str, Any] = field(default_factory=dict)


def id_hash(message_id: str) -> int:
    return xxhash.xxh3_64_intdigest(message_id.encode())


def sample_of(plan: Plan, actor: Actor, *, tally: bool = False) -> int:
    """The `sample` an emitter works at: all of them, one kind of node, or one that only its tallies speak of."""
    if not plan.has("sampled"):
        return ALL_IDS
    rng = plan.rng("sampled")
    first = id_hash(f"order-{plan.seed}-0-0") % ALL_IDS  # an edge: this id is just left out
    sample = rng.choice([2**31, 2**31, 3 * 2**30, 2**30, max(first, 2**29), max(first, 2**29)])
    way = rng.choice(["all", "all", "one", "tally", "tally", "blocks"])
    if way == "one" and not chance(plan.rng("sampled", actor.uuid), 0.4):
        return ALL_IDS
    return ALL_IDS if (way == "tally" and not tally) or (way == "blocks" and tally) else sample


def drafts(plan: Plan, net: Net, seen: list[Seen], now_ms: int) -> list[Draft]:
    """All blocks that the emitters sent, in the order of the log."""
    groups: dict[tuple[Any, ...], list[Seen]] = {}
    for beacon in sorted(seen, key=lambda s: s.at_ms):
        hashed = id_hash(beacon.message_id)
        if beacon.dropped or beacon.at_ms > now_ms or hashed % ALL_IDS >= sample_of(plan, beacon.actor):
            continue
        partitions = plan.partitions
        if plan.has("widened"):
            partitions = 3 if beacon.at_ms < START_MS + 30_000 else 5
        place = (beacon.actor, beacon.checkpoint, beacon.window_s, partitions, (hashed * partitions) >> 64)
        groups.setdefault((*place, beacon.replay), []).append(beacon)
    found: list[Draft] = []
    for group, beacons in groups.items():
        found += chunks(plan, net, group, beacons)
    found = sorted((draft for draft in found if draft.at_ms <= now_ms), key=lambda d: d.at_ms)
    for seq, draft in enumerate(found, start=1):
        draft.seq = seq  # grows for each emitter, with gaps
    return found


def chunks(plan: Plan, net: Net, group: tuple[Any, ...], beacons: list[Seen]) -> list[Draft]:
    actor, checkpoint, window_s, partitions, partition, replay = group
    rng = plan.rng("chunks", actor.uuid, checkpoint, window_s, partitions, partition, replay)
    found = []
    while beacons:
        size = rng.choice([1, 2, 4, 8])
        taken, beacons = beacons[:size], beacons[size:]
        at_ms = max(int(taken[-1].at_ms), actor.begin_ms) + rng.randint(50, 900)
        if actor.closed and actor.end_ms is not None and taken[-1].at_ms <= actor.end_ms:
            at_ms = min(at_ms, actor.end_ms)  # flushed before it closed
        draft = Draft(actor, checkpoint, window_s, partition, partitions, taken, at_ms, sample_of(plan, actor))
        draft.replay = replay
        draft.fields = optional_columns(plan, net, draft)
        found.append(draft)
    return found


def optional_columns(plan: Plan, net: Net, draft: Draft) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if draft.checkpoint in net.entrances:
        rng = plan.rng("columns", draft.actor.uuid, draft.at_ms)
        private, timeless = chance(rng, 0.6), chance(rng, 0.5)
        if not (timeless and plan.has("no_event_times")):
            fields["event_offset_ms"] = column("H", [s.event_ms - draft.window_s * 1000 for s in draft.seen])
        if not (private and plan.has("private_ids")):
            fields["message_ids"] = names_column([s.message_id for s in draft.seen])
        traced = plan.rng("traces", draft.actor.uuid, draft.at_ms)
        if chance(traced, 0.5):  # which say nothing of loss
            fields["traces"] = traces_column([at for at in range(len(draft.seen)) if chance(traced, 0.5)])
    late = [at for at, s in enumerate(draft.seen) if is_out_of_order(plan, s)]
    if late:  # which says nothing of loss
        fields["out_of_order"] = column("H", late)
    checked = plan.has("checksums") or plan.has("corrupted")
    if checked and chance(plan.rng("checksums", draft.actor.uuid), 0.8):
        fields["payload_crc"] = column("I", [s.crc for s in draft.seen])
    if plan.has("supplied"):
        rng = plan.rng("supplied", draft.actor.uuid, draft.at_ms)
        after_ms = rng.choice([0, 700, 20_000, 65_000, 600_000, -30_000])
        if chance(rng, 0.7):
            fields["supplied_at"] = int(draft.at_ms + after_ms)
    if draft.checkpoint.endswith((".filtered", ".dead")):
        fields["reason"] = plan.rng("reasons", draft.checkpoint).choice(["drawn", "unreadable"])
    return fields


def is_out_of_order(plan: Plan, seen: Seen) -> bool:
    drawn = chance(plan.rng("out of order", seen.checkpoint, seen.message_id), 0.3)
    return drawn and plan.has("out_of_order")


def encode(draft: Draft) -> Record:
    if draft.value is not None:
        return Record(draft.partition, draft.offset, draft.at_ms, draft.key, draft.value)
    fields = {
        "pipeline": PIPELINE,
        "checkpoint": draft.checkpoint,
        "emitter": draft.actor.uuid,
        "seq": draft.seq,
        "window_start": draft.window_s,
        "partitions": draft.partitions,
        "sample": draft.sample,
        "replay": draft.replay,
        "reason": None,
        "count": len(draft.seen),
        "id_hash": column("Q", [id_hash(s.message_id) for s in draft.seen]),
        "lag_ms": column("f", [float32(s.observed_ms - s.event_ms) for s in draft.seen]),
        "event_offset_ms": None,
        "message_ids": None,
        "payload_crc": None,
        **draft.fields,
    }
    key = draft.key if draft.key != b"" else f"{fields['pipeline']}/{fields['window_start']}".encode()
    return Record(draft.partition, draft.offset, draft.at_ms, key, avro("beacon_block", fields))


def put_into_log(plan: Plan, net: Net, found: list[Draft], now_ms: int) -> dict[int, int]:
    """Adds what does not belong, sets offsets, takes out what is missing; returns the low watermarks."""
    for draft in picked(plan, "repeated_blocks", list(found), 0.25):
        found.append(replace(draft, at_ms=min(now_ms, draft.at_ms + 700)))
    found += [*quarantined(plan, net, found), *ignored(plan, net, found), *early(plan, found)]
    found.sort(key=lambda d: d.at_ms)
    rng = plan.rng("offsets")
    ends: dict[int, int] = {}
    for draft in found:
        draft.offset = ends.get(draft.partition, rng.choice([0, 0, 1, 1_000_003]))
        ends[draft.partition] = draft.offset + (1 if chance(rng, 0.9) else 2)
    for draft in picked(plan, "blocks_missing", [d for d in found if d.window_s == START_S], 0.15):
        draft.in_log = False
    starts: dict[int, int] = {}
    for draft in picked(plan, "aged_out", found[: max(1, len(found) // 2)], 0.05):
        starts[draft.partition] = max(draft.offset + 1, starts.get(draft.partition, 0))
    for draft in found:
        draft.in_log = draft.in_log and draft.offset >= starts.get(draft.partition, 0)
    return starts


def quarantined(plan: Plan, net: Net, found: list[Draft]) -> list[Draft]:
    """Blocks of a known node that are bad: an unknown checkpoint, or a count that disagrees with a column."""
    bad = []
    good = [draft for draft in found if draft.window_s == START_S]
    for draft in picked(plan, "quarantined", good, 0.1):
        rng = plan.rng("bad", draft.seq)
        node, n = draft.actor.node, len(draft.seen)
        following = net.to.get(node, [])
        wrong_out = f"{node}.out" if len(following) > 1 else f"{node}.out:{following[0] if following else 'nobody'}"
        if node in net.retriers:
            wrong_out = f"{node}.filtered"
        ways: list[dict[str, Any]] = [
            *({"checkpoint": checkpoint} for checkpoint in (f"{node}.bogus", node, f"{node}.out:nobody", wrong_out)),
            {"count": n + 1},
            {"count": n - 1},
            {"count": -1},
            {"id_hash": column("Q", [7] * (n + 1))},
            {"lag_ms": b"\0" * (4 * n - 1)},
            {"event_offset_ms": b"\0" * (2 * n + 2)},
            {"payload_crc": b""},
            {"message_ids": names_column(["x"] * (n + 1))},
            *({"out_of_order": column("H", late)} for late in ([], [n], [0, 0])),
            *({"supplied_at": ms} for ms in (-1, 253_402_300_800_000)),
        ]
        fields = {**draft.fields, **rng.choice(ways)}
        seq = draft.seq + rng.choice([100_000, 400_000])  # known to its emitter's tally, or not
        bad.append(replace(draft, seq=seq, at_ms=draft.at_ms + 1, fields=fields))
    return bad


def ignored(plan: Plan, net: Net, found: list[Draft]) -> list[Draft]:
    """What can be no block of the window: none of it may be counted, and none of it spoils the rest."""
    if not plan.has("ignored_blocks"):
        return []
    rng = plan.rng("ignored")
    nobody = Actor(net.sources[0], 99, rng.randbytes(16), START_MS)
    ghosts = [
        Seen(f"{net.sources[0]}.in", nobody, f"ghost-{plan.seed}-{i}", START_MS + 9, START_MS + 10, START_MS + 10, 0)
        for i in range(2)
    ]
    at_ms = START_MS + rng.randrange(60_000)
    base = Draft(nobody, f"{net.sources[0]}.in", START_S, rng.randrange(3), 3, ghosts, at_ms, seq=500_000)
    right = encode(base)
    ways = [
        replace(base, value=b""),
        replace(base, value=b'{"not": "avro"}'),
        replace(base, value=rng.randbytes(60)),
        replace(base, value=right.value[:2] + bytes(8) + right.value[10:], key=right.key),
        replace(base, value=right.value[:40], key=right.key),
        replace(base, fields={"pipeline": "another"}),
        replace(base, fields={"pipeline": "another"}, key=right.key),
        replace(base, key=None),
        replace(base, key=b"clicks"),
        replace(base, key=f"{PIPELINE}/{START_S + 60}".encode()),
        replace(base, fields={"window_start": START_S + 60}, key=right.key),
        replace(base, checkpoint="ghost.in"),
        replace(base, checkpoint=".in"),
        replace(base, window_s=START_S + 30),
        replace(base, window_s=START_S + 86_400),
        replace(base, at_ms=START_MS - 120_001),
    ]
    return rng.sample(ways, k=rng.randint(1, len(ways)))


def early(plan: Plan, found: list[Draft]) -> list[Draft]:
    """A block that arrived as far ahead of its window as is allowed: it counts."""
    good = [draft for draft in found if draft.window_s == START_S]
    edge_ms = START_MS - 120_000
    return [replace(d, seq=d.seq + 200_000, at_ms=edge_ms) for d in picked(plan, "early_blocks", good, 0.05)]


def last_beacon(trail: list[Seen]) -> Seen:
    return max(trail, key=lambda s: s.observed_ms)


def cut(plan: Plan, trail: list[Seen], at_ms: int | None = None) -> list[Seen]:
    """The trail, broken off somewhere, with a last beacon at a whole millisecond (at `at_ms`, where that is later)."""
    in_order = sorted(trail, key=lambda s: s.at_ms)
    kept = in_order[: plan.rng("cut").randint(1, max(1, len(in_order) - 1))]
    newest_ms = max(int(last_beacon(kept).observed_ms) + 1, at_ms or 0)
    return [*kept[:-1], replace(kept[-1], at_ms=min(newest_ms, END_MS), observed_ms=newest_ms)]
