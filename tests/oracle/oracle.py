"""The slow, obvious oracle: a closed window judged by docs/arithmetic.md with sets, dicts and loops, a function a rule.

It shares no code with `lagloss` on purpose. `judge` gives the "One window in windows --json" document without `state`,
`revision` and `closed_at`. Rule 11 (presence patterns) is a way to compute, not a result, so it has no function here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tests.oracle.evidence import (
    ALL_IDS,
    WINDOW_S,
    Beacon,
    Block,
    Definition,
    Emitter,
    Lane,
    Record,
    TallyKey,
    World,
    clock_matters,
    follow,
    in_force,
    is_expected,
    newest_version,
    next_checkpoints,
    no_longer_expected,
    reachable,
    read_blocks,
    read_definition,
    sent_tally,
    silence_spoils,
    skew_ms,
)

__all__ = ["Record", "World", "difference", "judge", "missing"]

GAMMA = 1.01 / 0.99
OVERTAKEN_MS = 5_000
Z_95 = 1.959963984540054  # the normal quantile behind a 95 % confidence interval


# --- Lag sketch ------------------------------------------------------------------------------------------------------


@functools.cache
def bin_key(lag_ms: float) -> int:
    if abs(lag_ms) <= 0.001:
        return 0
    k = math.ceil(math.log(abs(lag_ms)) / math.log(GAMMA))
    return 10_000 + k if lag_ms > 0 else -(10_000 + k)


def bin_value(key: int) -> float:
    """What a bin stands for: 2 * gamma^k / (gamma + 1) ms."""
    if key == 0:
        return 0.0
    value = 2 * GAMMA ** (abs(key) - 10_000) / (GAMMA + 1)
    return value if key > 0 else -value


def quantile(lags: list[float], q: float) -> float | None:
    """The value of the bin that holds the item of rank floor(q * (n - 1)), counted from 0; of nothing, null."""
    if not lags:
        return None
    values = sorted(bin_value(bin_key(lag)) for lag in lags)
    return values[math.floor(q * (len(values) - 1))]


def difference_or_none(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right


# --- One window's evidence, brought together -------------------------------------------------------------------------


@dataclass
class Case:
    """What is known of one window; `at[x]` maps ids to their beacons at checkpoint x (sampled ids only)."""

    world: World
    start_s: int
    d: Definition
    blocks: list[Block]
    quarantined: set[str]
    strangers: dict[str, int]
    emitters: dict[bytes, Emitter]
    lanes: list[Lane]
    sample: int
    at: dict[str, dict[int, list[Beacon]]]
    edges: dict[str, list[str]]

    @property
    def end_s(self) -> int:
        return self.start_s + WINDOW_S

    def tallies(self) -> list[tuple[bytes, TallyKey, dict[str, Any]]]:
        """The newest tallies of this window, by whatever emitter."""
        return [
            (name, key, tally.content)
            for name, emitter in self.emitters.items()
            for key, tally in emitter.tallies.items()
            if key[1] == self.start_s
        ]

    def live_lags(self, checkpoints: Iterable[str]) -> list[float]:
        return [b.lag_ms for c in checkpoints for beacons in self.at[c].values() for b in beacons if not b.replay]


def open_case(world: World, window_start_s: int) -> Case:
    d = in_force(world, window_start_s)
    blocks, quarantined, strangers = read_blocks(world, d, window_start_s)
    emitters, lanes = follow(world, d.pipeline)
    case = Case(
        world, window_start_s, d, blocks, quarantined, strangers, emitters, lanes, ALL_IDS, {}, next_checkpoints(d)
    )
    case.sample = rule_14_sample(case)
    case.at = {checkpoint: {} for checkpoint in d.checkpoints()}
    for block in blocks:
        for beacon in block.beacons:
            if beacon.id_hash % ALL_IDS < case.sample:
                case.at[block.checkpoint].setdefault(beacon.id_hash, []).append(beacon)
    return case


# --- Rules of arithmetic ---------------------------------------------------------------------------------------------


def rule_1_implied(case: Case) -> dict[str, set[int]]:
    """Ids *implied at* x: at x, or at any y that x dominates (every path from the first checkpoint to y passes x)."""
    first = [f"{case.d.first}.in"]
    every = reachable(case.edges, first)
    implied = {}
    for x in case.d.checkpoints():
        dominated = every - reachable(case.edges, first, without=x)
        implied[x] = {id_hash for y in dominated for id_hash in case.at[y]}
    return implied


def rule_2_messages(case: Case, implied: dict[str, set[int]]) -> set[int]:
    """`messages` = ids implied at the first checkpoint."""
    return implied[f"{case.d.first}.in"]


def rule_2_unexplained(case: Case, messages: set[int], complete: set[str]) -> set[int]:
    """Those not *at* the first checkpoint although the first node's evidence is complete."""
    return messages - set(case.at[f"{case.d.first}.in"]) if case.d.first in complete else set()


@dataclass(frozen=True)
class Place:
    """A node, a link or a retrier, where a message can be missing."""

    kind: str
    node: str  # N of a node or of a link N -> M; R of a retrier
    following: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.node}" + (f"->{self.following}" if self.following else "")

    @property
    def witness(self) -> str:
        """The node whose beacon is missing: M for a link, N for a node (rule 6)."""
        return self.following or self.node


def rule_3_missing(case: Case, implied: dict[str, set[int]]) -> dict[int, set[Place]]:
    """Where each id is missing; not if seen again behind the place, unless a branching node before is `copy: all`."""
    missing: dict[int, set[Place]] = {}

    def note(place: Place, ids: set[int], behind: list[str], copied: bool) -> None:
        seen = set() if copied else {i for y in reachable(case.edges, behind) for i in case.at[y]}
        for id_hash in ids - seen:
            missing.setdefault(id_hash, set()).add(place)

    d = case.d
    for n in d.nodes:
        gone = implied[f"{n}.in"] - {i for x in d.exits(n) for i in implied[x]}
        note(Place("node", n), gone, d.exits(n), d.copied_above(n))
        for m in d.to[n]:
            gone = implied[d.out_for(n, m)] - implied[f"{m}.in"]
            note(Place("link", n, m), gone, [f"{m}.in"], d.copied_above(n) or d.branches_copied(n))
    return missing


def rule_4_last_seen_ms(case: Case) -> dict[int, float]:
    """Newest observed_at of its beacons; where the first checkpoint has no event_time, the window's end stands in."""
    offsets: dict[int, int] = {}
    for id_hash, beacons in case.at[f"{case.d.first}.in"].items():
        known = [b.event_offset_ms for b in beacons if b.event_offset_ms is not None]
        if known:
            offsets[id_hash] = max(known)
    last: dict[int, float] = {}
    for ids in case.at.values():
        for id_hash, beacons in ids.items():
            event_time_ms = case.end_s * 1000
            if id_hash in offsets:
                event_time_ms = case.start_s * 1000 + offsets[id_hash]
            for beacon in beacons:
                last[id_hash] = max(last.get(id_hash, -math.inf), event_time_ms + beacon.lag_ms)
    return last


def rule_4_progress_ms(case: Case, checkpoint: str) -> float | None:
    """The minimum over the checkpoint's lanes; now where all of them are closed emitters'; None if never reported."""
    lanes = [lane for lane in case.lanes if lane.checkpoint == checkpoint]
    if not lanes:
        return None
    left = [lane for lane in lanes if lane.emitter is None or not case.emitters[lane.emitter].closed]
    return float(min((lane.until_ms for lane in left), default=case.world.now_ms))


def rule_4_clocks_apart_ms(case: Case) -> int:
    """The clock furthest ahead against the one furthest behind, the broker's (0) among them: whole seconds, rounded up;
    less than a second is nothing."""
    clocks = [0] + [skew_ms(e) for e in case.emitters.values() if clock_matters(e, case.start_s)]
    seconds = (max(clocks) - min(clocks)) / 1000
    return math.ceil(seconds) * 1000 if seconds >= 1 else 0


def rule_4_overtaken(case: Case, place: Place, last_seen_ms: float) -> bool:
    """Progress past last seen + 5 s + what the clocks are apart; where nobody reports any, a beacon there of a later
    window that is due, by the newest definition's grace."""
    d = case.d
    if place.kind == "link":
        checkpoint, own = f"{place.following}.in", [f"{place.following}.in"]
    else:
        checkpoint, own = f"{place.node}.out", d.exits(place.node)
    until_ms = rule_4_progress_ms(case, checkpoint)
    if until_ms is not None:
        return until_ms > last_seen_ms + OVERTAKEN_MS + rule_4_clocks_apart_ms(case)
    return any(
        x in own
        and window_s > case.start_s
        and tally.content["beacons"] > 0
        and case.world.now_ms >= (window_s + WINDOW_S) * 1000 + newest_version(case.world).grace_ms
        for emitter in case.emitters.values()
        for (x, window_s, _), tally in emitter.tallies.items()
    )


def rule_5_with_retrier(case: Case, implied: dict[str, set[int]]) -> dict[int, set[Place]]:
    """Ids handed to a retrier: at `N.out:R`, at no other exit of N (implied counts as at), not at `R.dead`."""
    held: dict[int, set[Place]] = {}
    for n, r in case.d.retrier.items():
        handed = f"{n}.out:{r}"
        others = {i for x in case.d.exits(n) if x != handed for i in implied[x]}
        if not case.d.copied_above(n):  # as in rule 3: a hole at the exit, but something reachable from it has seen it
            elsewhere = [x for x in case.d.exits(n) if x != handed]
            others |= {i for x in reachable(case.edges, elsewhere) for i in case.at[x]}
        for id_hash in implied[handed] - others - set(case.at[f"{r}.dead"]):
            held.setdefault(id_hash, set()).add(Place("retrier", r))
    return held


def rule_5_is_overdue(case: Case, last_seen_ms: float) -> bool:
    """Pending for longer than `maxWait` since last seen."""
    return case.world.now_ms - last_seen_ms > case.d.max_wait_ms


def rule_7_complete(case: Case) -> set[str]:
    """The nodes whose evidence is complete."""
    changed = rule_7e_changed(case)
    return {
        node
        for node in case.d.all_nodes
        if not (
            rule_7a_not_final(case, node)
            or rule_7b_short(case, node)
            or rule_7c_dropped(case, node)
            or node in case.quarantined  # 7d: a block of it was quarantined
            or node in changed
            or rule_7f_nobody(case, node)
        )
    }


def rule_7a_not_final(case: Case, node: str) -> bool:
    """An expected emitter's `final_through` is before the window's end, or one fell silent here."""
    now_ms = case.world.now_ms
    return any(
        (is_expected(e, case.start_s, now_ms) and e.final_through_s < case.end_s)
        or silence_spoils(e, case.start_s, now_ms)
        for e in case.emitters.values()
        if e.node == node
    )


def rule_7b_short(case: Case, node: str) -> bool:
    """A tally says more beacons than the blocks read hold (before ids are left out by sampling)."""
    for emitter, (checkpoint, _, replay), content in case.tallies():
        held = sum(
            len(block.beacons)
            for block in case.blocks
            if (block.emitter, block.checkpoint, block.replay) == (emitter, checkpoint, replay)
        )
        if checkpoint.split(".")[0] == node and content["beacons"] > held:
            return True
    return False


def rule_7c_dropped(case: Case, node: str) -> bool:
    return any(key[0].split(".")[0] == node and content["dropped"] > 0 for _, key, content in case.tallies())


def rule_7e_versions(case: Case) -> list[Definition]:
    """The versions applied inside the window; the first one is no change, it holds for all windows before it, too."""
    inside = [doc for at_ms, doc in case.world.definitions[1:] if case.start_s * 1000 < at_ms < case.end_s * 1000]
    return [read_definition(document) for document in inside]


def rule_7e_changed(case: Case) -> set[str]:
    """Nodes that are not the same in both versions, and the neighbours, in either version, of such nodes."""
    changed: set[str] = set()
    for new in rule_7e_versions(case):
        names = {*case.d.all_nodes, *new.all_nodes}
        different = {name for name in names if facts(case.d, name) != facts(new, name)}
        changed |= different
        for version in (case.d, new):
            for n in version.nodes:
                for m in version.to[n]:
                    changed |= {m} if n in different else set()
                    changed |= {n} if m in different else set()
    return changed


def facts(d: Definition, name: str) -> Any:
    """All that makes a node the same node in two versions; None where it is absent."""
    if name in d.retriers:
        return "retrier", d.entries.get(name), set(d.users(name))
    if name in d.nodes:
        return "node", d.entries[name], set(d.to[name]), set(d.before(name)), d.retrier.get(name)
    return None


def rule_7f_nobody(case: Case, node: str) -> bool:
    """No emitter of the node is expected in, or sent a tally for, the window."""
    return not any(
        is_expected(e, case.start_s, case.world.now_ms) or sent_tally(e, case.start_s)
        for e in case.emitters.values()
        if e.node == node
    )


@dataclass(frozen=True)
class Fate:
    """What became of a message: the first class that fits, and where it is missing."""

    kind: str  # lost, perhaps, overdue, pending, delivered, dead or filtered
    missing_at: frozenset[Place] = frozenset()
    certain_at: frozenset[Place] = frozenset()
    perhaps_at: frozenset[Place] = frozenset()


def rule_8_fates(case: Case, messages: set[int], implied: dict[str, set[int]], complete: set[str]) -> dict[int, Fate]:
    missing, held, last_seen = (
        rule_3_missing(case, implied),
        rule_5_with_retrier(case, implied),
        rule_4_last_seen_ms(case),
    )
    return {
        i: rule_8_fate(case, i, missing.get(i, set()), held.get(i, set()), last_seen[i], complete) for i in messages
    }


def rule_8_fate(
    case: Case, id_hash: int, missing: set[Place], held: set[Place], last_seen_ms: float, complete: set[str]
) -> Fate:
    """Each message counts once: lost (certain, perhaps, overdue), pending, delivered, dead, filtered."""
    everywhere = frozenset(missing | held)
    overtaken = {place for place in missing if rule_4_overtaken(case, place, last_seen_ms)}
    certain = frozenset(place for place in overtaken if place.witness in complete)  # rule 6
    perhaps = frozenset(overtaken - certain)
    waiting = "overdue" if rule_5_is_overdue(case, last_seen_ms) else "pending"
    if certain:
        return Fate("lost", everywhere, certain, perhaps)
    if perhaps:
        return Fate("perhaps", everywhere, certain, perhaps)
    if everywhere:
        return Fate(waiting, everywhere)
    if any(id_hash in case.at[x] for x in case.d.deliveries()):
        return Fate("delivered")
    for kind in ("dead", "filtered"):
        if any(id_hash in case.at[x] for x in case.d.checkpoints() if x.endswith(f".{kind}")):
            return Fate(kind)
    # Its trail ends in a retrier and who handed it over is not known (a hole): it is with that retrier.
    at_retrier = [r for r in case.d.retriers if any(id_hash in case.at[x] for x in (f"{r}.in", *case.d.outs(r)))]
    if not at_retrier:
        raise AssertionError(f"rule 8 leaves {id_hash:016x} without a class")
    return Fate(waiting, frozenset(Place("retrier", r) for r in at_retrier))


def rule_9_duplicates(case: Case, checkpoint: str) -> int:
    """Live beacons beyond the ones allowed; one per incoming link is allowed below a `copy: all` that meets again."""
    d = case.d
    node = checkpoint.split(".")[0]
    if node in d.retriers or (node in d.retrier and checkpoint == f"{node}.out:{d.retrier[node]}"):
        return 0  # the loop's beacons are no duplicates
    total = 0
    for id_hash, beacons in case.at[checkpoint].items():
        live = sum(1 for b in beacons if not b.replay)
        back = 0
        if checkpoint == f"{node}.in" and node in d.retrier:
            returned = case.at[f"{d.retrier[node]}.out:{node}"].get(id_hash, [])
            back = sum(1 for b in returned if not b.replay)
        total += max(0, live - rule_9_allowed(d, node) - back)
    return total


def rule_9_allowed(d: Definition, node: str) -> int:
    """How many beacons of one message may be at `N.in`, and so at each of N's exits."""
    incoming = [rule_9_allowed(d, before) for before in d.before(node)]
    if not incoming:
        return 1
    return sum(incoming) if d.copied_above(node) else max(incoming)


def rule_10_verdict(case: Case, counts: dict[str, Any], complete: set[str]) -> str:
    messages, lost = counts["messages"], counts["lost"]
    if messages > 0 and lost["min"] / messages > case.d.loss_max:
        return "loss"
    if messages > 0 and (lost["max"] + counts["pending"]) / messages <= case.d.loss_max and case.d.first in complete:
        return "ok"
    return "idle" if messages == 0 and rule_10_first_is_through(case) else "unknown"


def rule_10_first_is_through(case: Case) -> bool:
    """Every known emitter (at least one) of the first node is final or closed."""
    known = [
        e
        for e in case.emitters.values()
        if e.node == case.d.first and not no_longer_expected(e, case.start_s, case.world.now_ms)
    ]
    return bool(known) and all(e.closed or e.final_through_s >= case.end_s for e in known)


def rule_10_reasons(case: Case, fates: dict[int, Fate], unexplained: set[int], complete: set[str]) -> list[str]:
    """Every one that is true, whatever the verdict."""
    reasons = [f"evidence:{node}" for node in case.d.all_nodes if node not in complete]
    reasons += [kind for kind in ("pending", "overdue") if any(fate.kind == kind for fate in fates.values())]
    reasons += ["unexplained"] if unexplained else []
    reasons += ["version"] if rule_7e_versions(case) else []
    reasons += ["sample"] if case.sample < ALL_IDS else []
    return sorted(reasons)


def rule_12_first_arrivals(case: Case) -> dict[int, float]:
    """By distinct message, the smallest live lag over all delivery checkpoints, whatever became of its copies."""
    first: dict[int, float] = {}
    for checkpoint in case.d.deliveries():
        for id_hash, beacons in case.at[checkpoint].items():
            for beacon in beacons:
                if not beacon.replay:
                    first[id_hash] = min(first.get(id_hash, math.inf), beacon.lag_ms)
    return first


def stays(case: Case, arrivals: list[str], departures: list[str]) -> list[float]:
    """How long each id of a 1-in-16 sample stayed: from its first live arrival to its first live departure."""

    def first(checkpoints: list[str], id_hash: int) -> float | None:
        lags = [b.lag_ms for c in checkpoints for b in case.at[c].get(id_hash, []) if not b.replay]
        return min(lags, default=None)

    found = []
    for id_hash in {i for ids in case.at.values() for i in ids}:
        into, out = first(arrivals, id_hash), first(departures, id_hash)
        if id_hash % ALL_IDS < min(case.sample, ALL_IDS // 16) and into is not None and out is not None:
            found.append(out - into)
    return found


def unknown_checkpoints(case: Case) -> list[dict[str, Any]]:
    """Beacons that tallies (or blocks, if another version has the checkpoint) count where this version has no
    checkpoint."""
    known = set(case.d.checkpoints())
    told: dict[str, int] = {}
    for _, (checkpoint, _, _), content in case.tallies():
        if checkpoint not in known:
            told[checkpoint] = told.get(checkpoint, 0) + content["beacons"]
    for checkpoint, beacons in case.strangers.items():
        told[checkpoint] = max(told.get(checkpoint, 0), beacons)
    return [{"name": name, "beacons": told[name]} for name in sorted(told)[:20]]


def rule_12_on_time_share(case: Case, fates: dict[int, Fate]) -> float | None:
    """Messages delivered within the lag target / (messages - filtered - dead); of no messages, null."""
    first = rule_12_first_arrivals(case)
    asked = [i for i, fate in fates.items() if fate.kind not in ("filtered", "dead")]
    on_time = [i for i in asked if fates[i].kind == "delivered" and first.get(i, math.inf) <= case.d.lag_target_ms]
    return len(on_time) / len(asked) if asked else None


def rule_13_corrupted(case: Case, n: str, m: str) -> int:
    """Both ends carry a payload_crc, and no value of one equals a value of the other."""
    count = 0
    sent, taken = case.at[case.d.out_for(n, m)], case.at[f"{m}.in"]
    for id_hash in set(sent) & set(taken):
        left = {b.crc for b in sent[id_hash] if b.crc is not None}
        right = {b.crc for b in taken[id_hash] if b.crc is not None}
        if left and right and not left & right:
            count += 1
    return count


def rule_14_sample(case: Case) -> int:
    """The lowest `sample` among the window's blocks and tallies."""
    samples = [ALL_IDS, *(block.sample for block in case.blocks)]
    samples += [content["sample"] for _, _, content in case.tallies()]
    return min(samples)


def rule_14_scaled(case: Case, count: int) -> int:
    return count if case.sample == ALL_IDS else round(count * (ALL_IDS / case.sample))


def rule_14_interval(case: Case, lost_min: int, lost_max: int, messages: int) -> dict[str, int]:
    """The loss interval, widened by its 95 % confidence interval (Wilson) where ids are sampled."""
    if case.sample == ALL_IDS or messages == 0:
        return {"min": lost_min, "max": lost_max}
    factor = ALL_IDS / case.sample
    return {
        "min": math.floor(wilson(lost_min, messages, -1) * messages * factor),
        "max": math.ceil(wilson(lost_max, messages, +1) * messages * factor),
    }


def wilson(count: int, n: int, side: int) -> float:
    """The lower (side -1) or upper (side +1) end of Wilson's score interval for count out of n."""
    if (count, side) == (0, -1):
        return 0.0
    if (count, side) == (n, +1):
        return 1.0
    share = count / n
    middle = share + Z_95**2 / (2 * n)
    half = Z_95 * math.sqrt(share * (1 - share) / n + Z_95**2 / (4 * n**2))
    return (middle + side * half) / (1 + Z_95**2 / n)


# --- The documents ---------------------------------------------------------------------------------------------------


def judge(world: World, window_start_s: int) -> dict[str, Any]:
    """One closed window as in `windows --json`, without `state`, `revision` and `closed_at`."""
    case = open_case(world, window_start_s)
    implied, complete = rule_1_implied(case), rule_7_complete(case)
    messages = rule_2_messages(case, implied)
    unexplained = rule_2_unexplained(case, messages, complete)
    fates = rule_8_fates(case, messages, implied, complete)
    counts = headline(case, fates, unexplained)
    ratio = {end: counts["lost"][end] / counts["messages"] if counts["messages"] else None for end in ("min", "max")}
    arrivals = list(rule_12_first_arrivals(case).values())
    return {
        "pipeline": case.d.pipeline,
        "window_start": datetime.fromtimestamp(window_start_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "verdict": rule_10_verdict(case, counts, complete),
        "reasons": rule_10_reasons(case, fates, unexplained, complete),
        "proof": "beacons",
        "sample": float(f"{case.sample / ALL_IDS:.6g}"),
        **counts,
        "clock_skew_ms": rule_4_clocks_apart_ms(case),
        "loss_ratio": ratio,
        "on_time_share": rule_12_on_time_share(case, fates),
        "e2e_lag_ms": {**percentiles(arrivals), "max": quantile(arrivals, 1.0)},
        "checkpoints": [checkpoint_row(case, c) for c in case.d.checkpoints() if case.at[c]],
        "nodes": [node_row(case, n, fates, complete) for n in case.d.all_nodes],
        "links": [link_row(case, n, m, fates) for n in case.d.nodes for m in case.d.to[n]],
        "unknown_checkpoints": unknown_checkpoints(case),
    }


def headline(case: Case, fates: dict[int, Fate], unexplained: set[int]) -> dict[str, Any]:
    kinds = [fate.kind for fate in fates.values()]
    certain = kinds.count("lost")
    uncertain = kinds.count("perhaps") + kinds.count("overdue")
    return {
        "messages": rule_14_scaled(case, len(kinds)),
        "delivered": rule_14_scaled(case, kinds.count("delivered")),
        "filtered": rule_14_scaled(case, kinds.count("filtered")),
        "dead": rule_14_scaled(case, kinds.count("dead")),
        "pending": rule_14_scaled(case, kinds.count("pending")),
        "unexplained": rule_14_scaled(case, len(unexplained)),
        "lost": rule_14_interval(case, certain, certain + uncertain, len(kinds)),
    }


def lost_at(case: Case, fates: dict[int, Fate], *places: Place) -> dict[str, int]:
    """A place's own counts: the messages that are certain, perhaps or overdue at that place."""
    certain = sum(1 for fate in fates.values() if fate.certain_at & set(places))
    perhaps = sum(1 for fate in fates.values() if fate.perhaps_at & set(places))
    overdue = sum(1 for fate in fates.values() if fate.kind == "overdue" and fate.missing_at & set(places))
    return rule_14_interval(case, certain, certain + perhaps + overdue, len(fates))


def percentiles(lags: list[float]) -> dict[str, float | None]:
    return {"p50": quantile(lags, 0.5), "p95": quantile(lags, 0.95), "p99": quantile(lags, 0.99)}


def checkpoint_row(case: Case, checkpoint: str) -> dict[str, Any]:
    every = [b for beacons in case.at[checkpoint].values() for b in beacons]
    replayed = sum(1 for b in every if b.replay)
    return {
        "name": checkpoint,
        "beacons": rule_14_scaled(case, len(every) - replayed),
        "distinct": rule_14_scaled(case, len(case.at[checkpoint])),
        "duplicates": rule_14_scaled(case, rule_9_duplicates(case, checkpoint)),
        "replayed": rule_14_scaled(case, replayed),
        "lag_ms": percentiles(case.live_lags([checkpoint])),
    }


def node_row(case: Case, node: str, fates: dict[int, Fate], complete: set[str]) -> dict[str, Any]:
    lag_in = quantile(case.live_lags([f"{node}.in"]), 0.95)
    lag_out = quantile(case.live_lags(case.d.outs(node)), 0.95)
    return {
        "name": node,
        "lag_in_p95_ms": lag_in,
        "lag_out_p95_ms": lag_out,
        "process_duration_p95_ms": difference_or_none(lag_out, lag_in),
        "process_duration_ms": percentiles(stays(case, [f"{node}.in"], case.d.outs(node))),
        "lost": lost_at(case, fates, Place("node", node), Place("retrier", node)),
        "complete": node in complete,
    }


def link_row(case: Case, n: str, m: str, fates: dict[int, Fate]) -> dict[str, Any]:
    lag_out = quantile(case.live_lags([case.d.out_for(n, m)]), 0.95)
    lag_in = quantile(case.live_lags([f"{m}.in"]), 0.95)
    return {
        "from": n,
        "to": m,
        "queue_time_p95_ms": difference_or_none(lag_in, lag_out),
        "queue_time_ms": percentiles(stays(case, [case.d.out_for(n, m)], [f"{m}.in"])),
        "lost": lost_at(case, fates, Place("link", n, m)),
        "corrupted": rule_14_scaled(case, rule_13_corrupted(case, n, m)),
    }


def missing(world: World, window_start_s: int) -> dict[int, dict[str, Any]]:
    """By id hash, every lost, perhaps lost, overdue or pending message, and all the places it is missing at."""
    case = open_case(world, window_start_s)
    implied, complete = rule_1_implied(case), rule_7_complete(case)
    fates = rule_8_fates(case, rule_2_messages(case, implied), implied, complete)
    return {
        id_hash: {"kind": fate.kind, "places": sorted(str(place) for place in fate.missing_at)}
        for id_hash, fate in fates.items()
        if fate.missing_at
    }


def difference(world: World, window_start_s: int, a: str, b: str) -> set[int]:
    """`lagloss diff`: strictly the ids at checkpoint a that are not at checkpoint b."""
    case = open_case(world, window_start_s)
    return set(case.at[a]) - set(case.at[b])
