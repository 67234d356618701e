"""The reports topic: every emitter's account of itself, as the blocks allow it, and what goes wrong with accounts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.oracle.blocks import ALL_IDS, Draft, id_hash, sample_of
from tests.oracle.cast import picked
from tests.oracle.evidence import Record
from tests.oracle.oracle import bin_key
from tests.oracle.plan import END_MS, MINUTE_MS, START_MS, START_S, Plan, chance
from tests.oracle.topologies import PIPELINE, Net
from tests.oracle.traffic import Actor, Seen
from tests.oracle.wire import avro, float32, signed64

PARTITIONS = 4
SETTLED_AFTER_MS = (5_000, 59_999, 60_000, 60_001, 90_000, 20 * 60_000)
SET_BACK_MS = (3_000, 24_000, 30_000, 61_000, 90_000)
LEFT_BEHIND = "old"  # a node that the version in force has no more
NOT_ITS_OWN = 300_000  # from this seq on a block is none that an emitter knows of
TallyKey = tuple[str, int, str | None]
Fields = dict[str, Any]


@dataclass
class Sent:
    """A report on its way: its fields, and when it is appended."""

    actor: Actor
    fields: Fields
    appended_ms: int


@dataclass(frozen=True)
class Lane:
    node: str
    name: str
    number: int


class Accounts:
    """Writes the reports of one world."""

    def __init__(
        self, plan: Plan, net: Net, cast: dict[str, list[Actor]], blocks: list[Draft], seen: list[Seen], now_ms: int
    ) -> None:
        self.plan, self.cast, self.now_ms = plan, cast, now_ms
        self.dropped = [s for s in seen if s.dropped]
        self.blocks_of: dict[bytes, list[Draft]] = {}
        for draft in blocks:
            self.blocks_of.setdefault(draft.actor.uuid, []).append(draft)
        self.summed: dict[tuple[Any, ...], Fields] = {}
        self.edge_ms: int | None = None  # where every lane stands, in worlds about that edge
        every = [actor for node in cast for actor in cast[node]]
        self.unreported = picked(plan, "unreported", every, 0.15)
        self.reporting = [actor for actor in every if actor not in self.unreported]
        self.stale = picked(plan, "stale_tallies", self.reporting, 0.3)
        self.not_final = picked(plan, "not_final", self.reporting, 0.25)
        self.inflated = picked(plan, "inflated_tallies", self.reporting, 0.25)
        self.unchanged = picked(plan, "unchanged_tallies", self.reporting, 0.5)
        self.empty = picked(plan, "empty_tallies", self.reporting, 0.5)
        self.ahead = picked(plan, "ahead_tallies", self.reporting, 0.5)
        self.stuck = picked(plan, "stuck_work", self.reporting, 0.3)
        self.resuming = picked(plan, "resumes", self.reporting, 0.6)
        self.observing = picked(plan, "observes", self.reporting, 0.4)
        self.set_back = picked(plan, "set_back", self.reporting, 0.5)
        self.unfinished = picked(plan, "unfinished", self.reporting, 0.6)
        self.settled = picked(plan, "settled_late", [actor for actor in self.reporting if actor.closed], 0.6)
        self.forgotten = picked(plan, "forgotten_lane", self.reporting, 0.25)
        self.mute = picked(plan, "no_progress", [f"{n}.{side}" for n in cast for side in ("in", "out")], 0.6)
        names = [Lane(n, f"{before}-{n}/{p}", p) for n in cast for before in net.inputs(n) for p in (0, 1)]
        self.lanes, self.stalled = names, picked(plan, "stalled_lane", names, 0.3)
        self.moving = {lane for lane in names if chance(plan.rng("moves", lane), 0.6)}

    # --- when ---------------------------------------------------------------------------------------------------------

    def times(self, actor: Actor) -> list[int]:
        """When it sends its reports; for one that fell silent or closed, the last is that moment."""
        rng = self.plan.rng("times", actor.uuid)
        times = [START_MS + 25_000, END_MS + 6_000, self.now_ms - 25_000, self.now_ms - 21 - rng.randint(0, 3_000)]
        if actor.end_ms is not None:
            times = [t for t in times if t < actor.end_ms] + [actor.end_ms - n for n in (60_000, 30_000, 0)]
        if actor in self.settled and chance(self.plan.rng("settled", actor.uuid, "alone"), 0.5):
            return times[-1:]  # none of the dead's own reports arrived
        if actor.gap_ms is not None:
            gone_ms, back_ms = actor.gap_ms
            times = [
                t for t in (*times, gone_ms, back_ms) if t <= min(gone_ms, self.now_ms) or back_ms <= t < self.now_ms
            ]
        return sorted({t for t in times if actor.begin_ms <= t})

    def write(self) -> list[Sent]:
        sent: list[Sent] = []
        for actor in self.reporting:
            told: dict[TallyKey, Fields] = {}
            times = self.times(actor)
            for seq, at_ms in enumerate(times, start=1):
                silent = actor.end_ms is not None and not actor.closed
                fields = self.report(actor, seq, at_ms, told, first=at_ms == times[0], last=at_ms == times[-1])
                appended_ms = at_ms if silent else min(self.now_ms, at_ms + 20)
                if actor in self.settled and at_ms == times[-1]:  # by a successor, who found its spool
                    appended_ms = min(
                        self.now_ms, at_ms + self.plan.rng("settled", actor.uuid).choice(SETTLED_AFTER_MS)
                    )
                sent.append(Sent(actor, fields, appended_ms))
        self.hand_over(sent)
        return sent

    # --- what ---------------------------------------------------------------------------------------------------------

    def report(
        self, actor: Actor, seq: int, at_ms: int, told: dict[TallyKey, Fields], *, first: bool, last: bool
    ) -> Fields:
        tallies = {} if actor in self.stale and not first else self.tallies(actor, at_ms)
        fresh = [t for key, t in tallies.items() if actor in self.unchanged or told.get(key) != t]
        told.update(tallies)
        if actor in self.ahead and first:
            fresh += [
                self.tally(actor, (f"{actor.node}.{side}", at_ms // MINUTE_MS * 60 + 240, None), [], 1)
                for side in ("in", "out")
            ]
        return {
            "pipeline": PIPELINE,
            "node": actor.node,
            "emitter": actor.uuid,
            "host": "somewhere/1",
            "seq": seq,
            "started_at": actor.begin_ms + actor.clock_ms,
            "sent_at": at_ms + actor.clock_ms - (self.set_back_ms(actor) if last else 0),
            "closed": actor.closed and last,
            "resumes": actor in self.resuming,
            "unfinished": actor in self.unfinished,
            "final_through": self.final_through(actor, at_ms + actor.clock_ms, closed=actor.closed and last),
            "progress": self.progress(actor, at_ms, first=first),
            "tallies": fresh,
        }

    def set_back_ms(self, actor: Actor) -> int:
        """By how much its clock is set back before its last report."""
        return self.plan.rng("set_back", actor.uuid).choice(SET_BACK_MS) if actor in self.set_back else 0

    def final_through(self, actor: Actor, at_ms: int, *, closed: bool) -> int:
        rng = self.plan.rng("final", actor.uuid)
        if actor in self.not_final:
            return rng.choice([0, START_S, START_S - 60])
        if closed and chance(rng, 0.3):  # settled by a successor
            return self.now_ms // MINUTE_MS * 60
        return (at_ms if closed else at_ms - 3_000) // MINUTE_MS * 60

    def tallies(self, actor: Actor, at_ms: int) -> dict[TallyKey, Fields]:
        """Cumulative: of all blocks acknowledged by then, and of what was dropped."""
        blocks: dict[TallyKey, list[Draft]] = {}
        counted: set[int] = set()
        for draft in self.blocks_of.get(actor.uuid, []):
            if draft.at_ms <= at_ms and draft.seq < NOT_ITS_OWN and draft.seq not in counted:
                counted.add(draft.seq)
                blocks.setdefault((draft.checkpoint, draft.window_s, draft.replay), []).append(draft)
        dropped: dict[TallyKey, int] = {}
        for s in self.dropped:
            if s.actor == actor and s.at_ms <= at_ms:
                key = (s.checkpoint, s.window_s, s.replay)
                dropped[key] = dropped.get(key, 0) + 1
                blocks.setdefault(key, [])
        found = {key: self.tally(actor, key, mine, 0) for key, mine in blocks.items()}
        for key, count in dropped.items():
            found[key]["dropped"] = count
        if actor in self.empty:
            for side in ("in", "out"):
                later = (f"{actor.node}.{side}", START_S + 60, None)
                found.setdefault(later, self.tally(actor, later, [], 0))
        if actor in self.inflated and found:
            found[min(found, key=str)]["beacons"] += 1
        return found

    def tally(self, actor: Actor, key: TallyKey, blocks: list[Draft], more: int) -> Fields:
        known = (actor.uuid, key, more, *(draft.seq for draft in blocks))
        if known not in self.summed:
            self.summed[known] = self.sum_up(actor, key, blocks, more)
        return dict(self.summed[known])

    def sum_up(self, actor: Actor, key: TallyKey, blocks: list[Draft], more: int) -> Fields:
        seen = [s for draft in blocks for s in draft.seen]
        bins: dict[int, int] = {}
        for s in seen:
            bin_ = bin_key(float32(s.observed_ms - s.event_ms))
            bins[bin_] = bins.get(bin_, 0) + 1
        offsets: dict[int, list[int]] = {}
        for draft in blocks:
            offsets.setdefault(draft.partition, []).append(draft.offset)
        return {
            "checkpoint": key[0],
            "window_start": key[1],
            "replay": key[2],
            "sample": sample_of(self.plan, actor, tally=True),
            "beacons": len(seen) + more,
            "payload_bytes": 100 * len(seen),
            "id_sum": signed64(sum(id_hash(s.message_id) for s in seen)),
            "dropped": 0,
            "lag_sketch": [{"key": k, "count": bins[k]} for k in sorted(bins)],
            "ranges": [
                {"partition": partition, "first": first, "last": last}
                for partition in sorted(offsets)
                for first, last in ranges(sorted(offsets[partition]))
            ],
        }

    # --- how far ------------------------------------------------------------------------------------------------------

    def owner(self, lane: Lane, at_ms: int) -> Actor | None:
        """Who reads a lane: most lanes move to another emitter when theirs ends, some stand still from then on."""
        mine = [actor for actor in self.cast[lane.node] if actor in self.reporting]
        alive = [a for a in mine if a.begin_ms <= at_ms and (a.end_ms is None or at_ms <= a.end_ms)]
        readers = alive if lane in self.moving else mine
        return readers[lane.number % len(readers)] if readers else None

    def progress(self, actor: Actor, at_ms: int, *, first: bool) -> list[Fields]:
        found = []
        for lane in self.lanes:
            if lane.node == actor.node and self.owner(lane, at_ms) == actor:
                until_ms = min(at_ms, self.stand_ms(lane)) if lane in self.stalled else at_ms + actor.clock_ms
                found.append((f"{actor.node}.in", lane.name, max(0, until_ms)))
        until_ms = min(at_ms, self.stand_ms(actor.uuid)) if actor in self.stuck else at_ms
        found.append((f"{actor.node}.out", "", max(0, until_ms + actor.clock_ms)))
        if actor in self.observing:
            found.append((f"{actor.node}.in", "", at_ms + actor.clock_ms))
        if actor in self.forgotten and first:
            side = self.plan.rng("forgotten", actor.uuid).choice(["in", "in", "out"])
            found.append((f"{actor.node}.{side}", "old/0", at_ms))
        return [
            {"checkpoint": checkpoint, "lane": lane, "until": until if self.edge_ms is None else self.edge_ms}
            for checkpoint, lane, until in found
            if checkpoint not in self.mute
        ]

    def stand_ms(self, what: object) -> int:
        """Where a lane stands still."""
        return self.plan.rng("stand", what).choice([0, START_MS, START_MS, START_MS + 30_000, END_MS, END_MS + 5_000])

    def hand_over(self, sent: list[Sent]) -> None:
        """A lane that two emitters report, one after the other: the newer value holds, be it higher or lower."""
        for actor in picked(self.plan, "lane_handed_over", self.reporting, 0.3):
            mine = sorted((s for s in sent if s.actor.node == actor.node), key=lambda s: s.appended_ms)
            rng = self.plan.rng("handed", actor.uuid)
            pair = (mine[0], mine[-1]) if chance(rng, 0.5) else rng.sample(mine, k=min(2, len(mine)))
            values = rng.choice([(START_MS, self.now_ms), (self.now_ms, START_MS), (START_MS, START_MS + 1)])
            side = rng.choice(["in", "out"])
            for report, until_ms in zip(pair, values, strict=False):
                lane = {"checkpoint": f"{actor.node}.{side}", "lane": "moved/0", "until": until_ms}
                report.fields["progress"].append(lane)


def ranges(offsets: list[int]) -> list[tuple[int, int]]:
    """At most 4 ranges that hold all the offsets."""
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and (offset <= found[-1][1] + 1 or len(found) == 4):
            found[-1] = (found[-1][0], offset)
        else:
            found.append((offset, offset))
    return found


def reports_log(plan: Plan, net: Net, sent: list[Sent], now_ms: int) -> tuple[Record, ...]:
    """The reports as they lie in the topic, some of them twice, late or meaningless."""
    for actor in picked(plan, "out_of_order_reports", list(dict.fromkeys(s.actor for s in sent)), 0.4):
        mine = [s for s in sent if s.actor == actor]
        rng = plan.rng("order", actor.uuid)
        if chance(rng, 0.3):
            times = rng.sample([s.appended_ms for s in mine], k=len(mine))
            for report, at_ms in zip(mine, times, strict=True):
                report.appended_ms = at_ms
        elif len(mine) > 1:
            i = rng.randrange(len(mine) - 1)
            mine[i].appended_ms, mine[i + 1].appended_ms = mine[i + 1].appended_ms, mine[i].appended_ms
    values = [(s.appended_ms, s.actor.uuid, avro("emitter_report", s.fields)) for s in sent]
    values += repeated_reports(plan, sent, now_ms)
    values += ignored_reports(plan, net, sent)
    values += reports_of_left_behind(plan, now_ms)
    ends = {partition: plan.rng("reports", partition).choice([0, 5, 1_000_003]) for partition in range(PARTITIONS)}
    records = []
    for at_ms, key, value in sorted(values, key=lambda v: v[0]):
        partition = key[0] % PARTITIONS if key else 0
        records.append(Record(partition, ends[partition], at_ms, key, value))
        ends[partition] += 1
    return tuple(records)


def repeated_reports(plan: Plan, sent: list[Sent], now_ms: int) -> list[tuple[int, bytes, bytes]]:
    """Reports that arrive again, after newer ones of their emitter, too; some with another content."""
    found = []
    for i, s in picked(plan, "repeated_reports", list(enumerate(sent)), 0.2):
        rng = plan.rng("repeat", i)
        for _ in range(rng.choice([1, 1, 3])):
            at_ms, fields = rng.randint(s.appended_ms, now_ms), s.fields
            if chance(rng, 0.3):
                lanes = [{**lane, "until": rng.choice([0, START_MS, now_ms])} for lane in fields["progress"]]
                closed, sent_at = rng.choice([True, False]), rng.choice([0, now_ms + 3_600_000])
                fields = {**fields, "progress": lanes, "closed": closed, "sent_at": sent_at, "final_through": 0}
            found.append((at_ms, s.actor.uuid, avro("emitter_report", fields)))
    return found


def reports_of_left_behind(plan: Plan, now_ms: int) -> list[tuple[int, bytes, bytes]]:
    """Of a process of a node that only an earlier version has: alive, closed or silent, with a tally or without one."""
    if not plan.has("left_behind"):
        return []
    rng = plan.rng("left_behind", "process")
    sent_at = min(now_ms - 20, rng.choice([START_MS - 700_000, START_MS + 30_000, END_MS - 1, END_MS, now_ms - 1_000]))
    tally = {
        "checkpoint": f"{LEFT_BEHIND}.in",
        "window_start": START_S,
        "replay": None,
        "sample": ALL_IDS,
        "beacons": 0,
        "payload_bytes": 0,
        "id_sum": 0,
        "dropped": 0,
        "lag_sketch": [],
        "ranges": [],
    }
    fields = {
        "pipeline": PIPELINE,
        "node": LEFT_BEHIND,
        "emitter": rng.randbytes(16),
        "host": "somewhere/9",
        "seq": 1,
        "started_at": sent_at - 900_000,
        "sent_at": sent_at,
        "closed": chance(rng, 0.4),
        "resumes": False,
        "unfinished": False,
        "final_through": sent_at // 1000,
        "progress": [],
        "tallies": [tally] if chance(rng, 0.5) else [],
    }
    return [(sent_at + 20, fields["emitter"], avro("emitter_report", fields))]


def ignored_reports(plan: Plan, net: Net, sent: list[Sent]) -> list[tuple[int, bytes, bytes]]:
    if not plan.has("ignored_reports"):
        return []
    rng = plan.rng("ignored_reports")
    found = [(START_MS + 1, b"", b"no report"), (START_MS + 2, b"x", rng.randbytes(50))]
    for s in rng.sample(sent, k=min(2, len(sent))):
        other = {**s.fields, "pipeline": "another", "seq": 900, "final_through": 0, "closed": True, "tallies": []}
        lanes = [{**lane, "until": 0} for lane in s.fields["progress"]]
        found.append((s.appended_ms, s.actor.uuid, avro("emitter_report", {**other, "progress": lanes})))
        stranger = {**s.fields, "node": "ghost", "emitter": rng.randbytes(16), "progress": [], "tallies": []}
        found.append((s.appended_ms, stranger["emitter"], avro("emitter_report", stranger)))
    return found
