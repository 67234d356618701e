"""The slow, obvious oracle: a closed window judged by docs/arithmetic.md with sets, dicts and loops, a function a rule.

It shares no code with `lagloss` on purpose. `judge` gives the "One window in windows --json" document without `state`,
`revision` and `closed_at`. Rule 11 (presence patterns) is a way to compute, not a result, so it has no function here.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any
from uuid import UUID

from tests.oracle.evidence import (
    AHEAD_MS,
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
    ended_ms,
    follow,
    in_force,
    is_expected,
    is_silent,
    may_be_cut_off,
    mourned_ms,
    newest_version,
    next_checkpoints,
    no_longer_expected,
    reachable,
    read_blocks,
    read_definition,
    readings_ms,
    sent_tally,
    silence_spoils,
    taken_over,
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
    """The smallest lag, as its bin has it, that at least a share q (the number written) of them do not exceed; of none,
    null."""
    share, values = Fraction(str(q)), sorted(bin_value(bin_key(lag)) for lag in lags)
    return next((value for number, value in enumerate(values, 1) if Fraction(number, len(values)) >= share), None)


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
    side: list[str]  # the nodes that are judged; `at` has no beacon of others
    last_seen: dict[int, LastSeen]  # on whichever side
    named: dict[str, dict[int, list[Beacon]]]  # at the sources of all sides, the beacons with a name

    @property
    def entrances(self) -> list[str]:
        return self.d.entrances

    @property
    def sources(self) -> list[str]:
        return [node for node in self.d.sources if node in self.side]

    @property
    def checkpoints(self) -> list[str]:
        """Those of the side."""
        return [x for x in self.d.checkpoints() if x.split(".")[0] in self.side]

    @property
    def deliveries(self) -> list[str]:
        return [x for x in self.d.deliveries() if x in self.checkpoints]

    @property
    def now_ms(self) -> int:
        return self.world.now_ms

    def has(self, id_hash: int, *checkpoints: str) -> bool:
        """Whether the message is at any of these."""
        return any(id_hash in self.at[checkpoint] for checkpoint in checkpoints)

    def handed(self, id_hash: int, n: str) -> bool:
        """Whether N, by all that is known, handed the message to its retrier: a beacon says so, or none says of any
        other node that it did."""
        r = self.d.retrier[n]
        return not any(
            self.has(id_hash, f"{user}.out:{r}", f"{r}.out:{user}") for user in self.d.users(r) if user != n
        ) or self.has(id_hash, f"{n}.out:{r}", f"{r}.out:{n}")

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
        world, window_start_s, d, blocks, quarantined, strangers, emitters, lanes, ALL_IDS, {}, next_checkpoints(d),
        d.all_nodes, {}, {},
    )  # fmt: skip
    case.sample = rule_14_sample(case)
    case.at = {checkpoint: {} for checkpoint in d.checkpoints()}
    for block in blocks:
        for beacon in block.beacons:
            if beacon.id_hash % ALL_IDS < case.sample:
                case.at[block.checkpoint].setdefault(beacon.id_hash, []).append(beacon)
    case.last_seen = rule_4_last_seen(case)
    case.named = {
        x: {i: found for i, beacons in case.at[x].items() if (found := [b for b in beacons if b.name is not None])}
        for x in d.entrances
    }
    return case


def sides(case: Case) -> list[Case]:
    """The case once for each side, with its beacons only: an id that is on two sides is a message of each."""
    found = []
    for nodes in case.d.sides():
        at = {x: ids if x.split(".")[0] in nodes else {} for x, ids in case.at.items()}
        found.append(replace(case, side=nodes, at=at))
    return found


# --- Rules of arithmetic ---------------------------------------------------------------------------------------------


def rule_1_implied(case: Case) -> dict[str, set[int]]:
    """Ids *implied at* x: at x, or at any y that x dominates (every path from any source to y passes x)."""
    every = reachable(case.edges, case.d.entrances)
    implied = {}
    for x in case.d.checkpoints():
        dominated = every - reachable(case.edges, case.d.entrances, without=x)
        implied[x] = {id_hash for y in dominated for id_hash in case.at[y]}
    return implied


def rule_2_messages(case: Case) -> set[int]:
    """`messages` = ids seen anywhere: each entered somewhere."""
    return {id_hash for ids in case.at.values() for id_hash in ids}


def rule_2_unexplained(case: Case, messages: set[int], complete: set[str]) -> set[int]:
    """Those at no source's `in` although every source's evidence is complete."""
    if not set(case.sources) <= complete:
        return set()
    return messages - {id_hash for x in case.d.entrances for id_hash in case.at[x]}


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


def rule_3_seen_from(case: Case, starts: list[str]) -> set[int]:
    """Ids seen at anything reachable from these checkpoints: through a retrier only the node that handed over is."""
    steps = {x: [] if x.split(".")[0] in case.d.retriers else edges for x, edges in case.edges.items()}
    way = {x for x in reachable(steps, starts) if x.split(".")[0] not in case.d.retriers}
    seen = {i for y in way for i in case.at[y]}
    for n, r in case.d.retrier.items():
        if f"{n}.out:{r}" in way:
            seen |= set(case.at[f"{r}.out:{n}"])
            seen |= {i for x in (f"{r}.in", f"{r}.dead") for i in case.at[x] if case.handed(i, n)}
    return seen


def rule_3_missing(case: Case, implied: dict[str, set[int]]) -> dict[int, set[Place]]:
    """Where each id is missing; not if seen again behind the place, unless a branching node before is `copy: all`."""
    missing: dict[int, set[Place]] = {}

    def note(place: Place, ids: set[int], behind: list[str], copied: bool) -> None:
        seen = set() if copied else rule_3_seen_from(case, behind)
        for id_hash in ids - seen:
            missing.setdefault(id_hash, set()).add(place)

    d = case.d
    for n in d.nodes:
        gone = set() if n in d.takes_in else implied[f"{n}.in"] - {i for x in d.exits(n) for i in implied[x]}
        note(Place("node", n), gone, d.exits(n), d.copied_above(n))
        for m in d.to[n]:
            gone = implied[d.out_for(n, m)] - implied[f"{m}.in"]
            note(Place("link", n, m), gone, [f"{m}.in"], d.copied_above(n) or d.branches_copied(n))
    return missing


@dataclass(frozen=True)
class LastSeen:
    """Between which moments a message was last seen."""

    at_ms: float
    by_ms: float


def rule_4_last_seen(case: Case) -> dict[int, LastSeen]:
    """Newest observed_at of its beacons, for which the window's start or end stands in where no source's `in` has an
    event_time. Where times were supplied: it was observed by then, whatever they say."""
    offsets: dict[int, int] = {}
    for entrance in case.d.entrances:
        for id_hash, beacons in case.at[entrance].items():
            known = [b.event_offset_ms for b in beacons if b.event_offset_ms is not None]
            if known:
                offsets[id_hash] = max([*known, offsets.get(id_hash, 0)])
    last: dict[int, LastSeen] = {}
    for ids in case.at.values():
        for id_hash, beacons in ids.items():
            first_ms, last_ms = case.start_s * 1000, case.end_s * 1000
            if id_hash in offsets:
                first_ms = last_ms = case.start_s * 1000 + offsets[id_hash]
            for beacon in beacons:
                at_ms, by_ms = first_ms + beacon.lag_ms, last_ms + beacon.lag_ms
                if beacon.supplied_at is not None:
                    at_ms, by_ms = min(at_ms, beacon.supplied_at), beacon.supplied_at
                before = last.get(id_hash, LastSeen(-math.inf, -math.inf))
                last[id_hash] = LastSeen(max(before.at_ms, at_ms), max(before.by_ms, by_ms))
    return last


def rule_4_progress_ms(case: Case, checkpoint: str, last_seen_ms: float) -> float | None:
    """The minimum over the checkpoint's lanes, now where all of them are of the closed and the dead; no more than what
    a dead emitter had done that may hold a message last seen then; None if never reported."""
    lanes = [lane for lane in case.lanes if lane.checkpoint == checkpoint]
    if not lanes:
        return None
    living = [lane.until_ms for lane in lanes if lane.emitter is None or rule_4_is_alive(case, lane.emitter)]
    holding = [lane.until_ms for lane in lanes if lane.emitter and rule_4_may_hold(case, lane.emitter, last_seen_ms)]
    return float(min(min(living, default=case.now_ms), *holding, math.inf))


def rule_4_is_alive(case: Case, name: bytes) -> bool:
    return not case.emitters[name].closed and not is_silent(case.emitters[name], case.now_ms)


def rule_4_may_hold(case: Case, name: bytes, last_seen_ms: float) -> bool:
    """Whether a dead emitter may have the message in hand: not if it took in no more by then; not if it closed with
    nothing in flight; not if it resumes, and all that its node reads has been taken over."""
    emitter = case.emitters[name]
    if rule_4_is_alive(case, name) or (emitter.closed and not emitter.unfinished):
        return False
    inputs = {(lane.checkpoint, lane.name) for lane in case.lanes if lane.emitter is None}
    own = {key for key in inputs if key[0] == f"{emitter.node}.in"}
    resumed = emitter.resumes and taken_over(emitter, own, case.lanes)
    end_ms = ended_ms(emitter) if emitter.closed else mourned_ms(emitter)
    return last_seen_ms < end_ms + OVERTAKEN_MS + rule_4_clocks_apart_ms(case) and not resumed


def rule_4_clocks_apart_ms(case: Case) -> int:
    """The clock furthest ahead against the one furthest behind, the broker's (0) among them: whole seconds, rounded up;
    less than a second is nothing."""
    relevant = [e for e in case.emitters.values() if clock_matters(e, case.start_s)]
    clocks = [0] + [ms for e in relevant for ms in readings_ms(e, case.start_s)]
    seconds = (max(clocks) - min(clocks)) / 1000
    return math.ceil(seconds) * 1000 if seconds >= 1 else 0


def rule_4_overtaken(case: Case, place: Place, last_seen: LastSeen) -> bool:
    """Progress past last seen + 5 s + what the clocks are apart; where nobody reports any, a beacon there of a window
    that is due, by the newest definition's grace, and began after last seen + what the clocks are apart."""
    d = case.d
    if place.kind == "link":
        checkpoint, own = f"{place.following}.in", [f"{place.following}.in"]
    else:
        checkpoint, own = f"{place.node}.out", d.exits(place.node)
    until_ms = rule_4_progress_ms(case, checkpoint, last_seen.at_ms)
    unseen_ms = rule_4_unseen_ms(case, checkpoint.split(".")[0])
    if last_seen.by_ms + OVERTAKEN_MS + rule_4_clocks_apart_ms(case) >= unseen_ms:
        return False
    if until_ms is not None:
        return until_ms > last_seen.by_ms + OVERTAKEN_MS + rule_4_clocks_apart_ms(case)
    return any(
        x in own
        and window_s > case.start_s
        and window_s * 1000 > last_seen.by_ms + rule_4_clocks_apart_ms(case)
        and tally.content["beacons"] > 0
        and case.world.now_ms >= (window_s + WINDOW_S) * 1000 + newest_version(case.world).grace_ms
        for emitter in case.emitters.values()
        for (x, window_s, _), tally in emitter.tallies.items()
    )


def rule_4_unseen_ms(case: Case, node: str) -> float:
    """From when on taps do not see all that comes to a node in this window: since a later version has other taps of it;
    an hour before, if it had none; ever, if what comes in is seen in a table."""
    taps = case.d.entries.get(node, {}).get("taps", {})
    for at_ms, document in case.world.definitions[1:]:
        if at_ms > case.start_s * 1000 and read_definition(document).entries.get(node, {}).get("taps", {}) != taps:
            if "database" in taps.get("in", {}) and node not in case.d.sources:
                return -math.inf
            return at_ms if taps else at_ms - 3_600_000
    return math.inf


def rule_5_with_retrier(case: Case, implied: dict[str, set[int]]) -> dict[int, set[str]]:
    """The nodes that handed an id to their retrier: at `N.out:R`, at no other exit of N (implied counts as at), not at
    `R.dead`."""
    held: dict[int, set[str]] = {}
    for n, r in case.d.retrier.items():
        handed = f"{n}.out:{r}"
        others = {i for x in case.d.exits(n) if x != handed for i in implied[x]}
        if not case.d.copied_above(n):  # as in rule 3: a hole at the exit, but something reachable from it has seen it
            others |= rule_3_seen_from(case, [x for x in case.d.exits(n) if x != handed])
        for id_hash in implied[handed] - others - set(case.at[f"{r}.dead"]):
            held.setdefault(id_hash, set()).add(n)
    return held


def rule_5_trail_ends_with(case: Case, id_hash: int) -> set[str]:
    """The retriers that have seen the id."""
    return {r for r in case.d.retriers if case.has(id_hash, f"{r}.in", *case.d.outs(r))}


def rule_5_waiting(case: Case, last_seen: LastSeen) -> str:
    """Pending, and overdue for longer than `maxWait` since surely last seen."""
    return "overdue" if case.now_ms - last_seen.by_ms > case.d.max_wait_ms else "pending"


def rule_7_complete(case: Case) -> set[str]:
    """The nodes whose evidence is complete."""
    changed = rule_7e_changed(case) | rule_7k_replaced(case)
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
            or rule_7i_cut_off(case, node)
            or rule_7j_lost_reports(case)
            or node in case.d.spanned
        )
    }


def rule_7a_not_final(case: Case, node: str) -> bool:
    """An expected emitter's `final_through` is before the window's end, or one fell silent here."""
    now_ms = case.world.now_ms
    return any(
        (is_expected(e, case.start_s, now_ms, case.lanes) and e.final_through_s < case.end_s)
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


def rule_7e_left_behind(case: Case) -> list[Definition]:
    """Versions replaced in the hour before the window that have a node which the one in force has not, while an emitter
    of that node is expected in the window, or sent a tally for it."""
    working = {key[0].split(".")[0] for _, key, _ in case.tallies()}
    for emitter in case.emitters.values():
        if is_expected(emitter, case.start_s, case.world.now_ms, case.lanes):
            working.add(emitter.node)
    found = []
    for number, (at_ms, _) in enumerate(case.world.definitions):
        if number > 0 and case.start_s * 1000 - 3_600_000 < at_ms <= case.start_s * 1000:
            before = read_definition(case.world.definitions[number - 1][1])
            if working & set(before.all_nodes) - set(case.d.all_nodes):
                found.append(before)
    return found


def rule_7e_changed(case: Case) -> set[str]:
    """Nodes that are not the same in both versions, and the neighbours, in either version, of such nodes."""
    changed: set[str] = set()
    for new in rule_7e_versions(case) + rule_7e_left_behind(case):
        names = {*case.d.all_nodes, *new.all_nodes}
        different = {name for name in names if facts(case.d, name) != facts(new, name)}
        changed |= different
        for version in (case.d, new):
            for n in version.nodes:
                for m in version.to[n]:
                    changed |= {m} if n in different else set()
                    changed |= {n} if m in different else set()
    return changed


def rule_7k_replaced(case: Case) -> set[str]:
    """Nodes, and their neighbours, with a tally of an emitter that had closed, unfinished, by the window's start."""
    found = {
        e.node
        for e in case.emitters.values()
        if e.unfinished and e.sent_at_ms <= case.start_s * 1000 and sent_tally(e, case.start_s)
    }
    links = [(n, m) for n in case.d.nodes for m in case.d.to[n]]
    return found | {m for n, m in links if n in found} | {n for n, m in links if m in found}


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
        is_expected(e, case.start_s, case.now_ms, case.lanes) or sent_tally(e, case.start_s)
        for e in case.emitters.values()
        if e.node == node
    )


def rule_7i_cut_off(case: Case, node: str) -> bool:
    """An emitter that nothing stands in for fell silent, and may live: not at a source."""
    now_ms, max_wait_ms = case.world.now_ms, case.d.max_wait_ms
    return node not in case.d.sources and any(
        e.node == node and may_be_cut_off(e, case.start_s, now_ms, case.lanes, max_wait_ms)
        for e in case.emitters.values()
    )


def rule_7j_lost_reports(case: Case) -> bool:
    """The log has lost reports that may have been about the window: later ones repeat only what changed. A tally more
    than two minutes ahead of its report is bad."""
    from_ms = case.world.whole_from_ms
    return from_ms > 0 and case.start_s * 1000 <= from_ms + AHEAD_MS


@dataclass(frozen=True)
class Fate:
    """What became of a message: the first class that fits, and where it is missing."""

    kind: str  # lost, perhaps, overdue, pending, delivered, dead or filtered
    missing_at: frozenset[Place] = frozenset()
    certain_at: frozenset[Place] = frozenset()
    perhaps_at: frozenset[Place] = frozenset()


@dataclass(frozen=True)
class Trail:
    """What rule 8 asks of one message: where it is missing, who handed it to a retrier, and when it was last seen."""

    missing: set[Place]
    held: set[str]
    last_seen: LastSeen


def rule_8_trails(case: Case, messages: set[int], implied: dict[str, set[int]]) -> dict[int, Trail]:
    missing, held = rule_3_missing(case, implied), rule_5_with_retrier(case, implied)
    return {i: Trail(missing.get(i, set()), held.get(i, set()), case.last_seen[i]) for i in messages}


def rule_8_fate(case: Case, id_hash: int, trail: Trail, complete: set[str]) -> Fate:
    """Each message counts once: lost (certain, perhaps, overdue), pending, delivered, dead, filtered."""
    fate = rule_8_missing(case, trail.missing, trail.held, trail.last_seen, complete)
    if fate is not None:
        return fate
    if case.has(id_hash, *case.d.deliveries()):
        return Fate("delivered")
    for kind in ("dead", "filtered"):
        if case.has(id_hash, *(x for x in case.d.checkpoints() if x.endswith(f".{kind}"))):
            return Fate(kind)
    # Its trail ends in a retrier and who handed it over is not known (a hole): it is with that retrier.
    at_retrier = rule_5_trail_ends_with(case, id_hash)
    if not at_retrier:
        raise AssertionError(f"rule 8 leaves {id_hash:016x} without a class")
    return Fate(rule_5_waiting(case, trail.last_seen), frozenset(Place("retrier", r) for r in at_retrier))


def rule_8_missing(
    case: Case, missing: set[Place], held: set[str], last_seen: LastSeen, complete: set[str]
) -> Fate | None:
    """Lost, perhaps, overdue or pending at these places; None where it is missing at none."""
    everywhere = frozenset(missing | {Place("retrier", case.d.retrier[n]) for n in held})
    overtaken = {place for place in missing if rule_4_overtaken(case, place, last_seen)}
    certain = frozenset(place for place in overtaken if place.witness in complete)  # rule 6
    perhaps = frozenset(overtaken - certain)
    if certain:
        return Fate("lost", everywhere, certain, perhaps)
    if perhaps:
        return Fate("perhaps", everywhere, certain, perhaps)
    return Fate(rule_5_waiting(case, last_seen), everywhere) if everywhere else None


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
    """How many beacons of one message may be at `N.in`, and so at each of N's exits: the most that one of its sources
    may bring."""
    if node in d.retriers:
        return 1
    return max(rule_9_allowed_from(d, source, node) for source in d.sources)


def rule_9_allowed_from(d: Definition, source: str, node: str) -> int:
    """The same of messages that entered at that source; 0 where none of them can come."""
    if node == source:
        return 1
    incoming = [rule_9_allowed_from(d, source, before) for before in d.before(node)]
    copied = any(d.branches_copied(n) and (n == source or source in d.ancestors(n)) for n in d.ancestors(node))
    return sum(incoming) if copied else max(incoming, default=0)


def rule_10_verdict(case: Case, counts: dict[str, Any], destinations: list[dict[str, Any]], complete: set[str]) -> str:
    """`loss`, or else `unknown`, if it is so for the pipeline or for a destination with targets of its own."""
    through = all(rule_10_is_through(case, source) and source not in case.d.spanned for source in case.sources)
    counted = any(
        key[0].split(".")[0] in case.sources and content["beacons"] + content["dropped"] > 0
        for _, key, content in case.tallies()
    )
    verdicts = ["idle" if through and not counted and not rule_7j_lost_reports(case) else "unknown"]
    if counts["messages"] > 0:
        verdicts = [rule_10_judged(case, counts, counts["messages"], case.d.loss_max, complete)]
    for row in destinations:
        if row["name"] in case.d.objectives and row["due"] > 0:
            verdicts.append(rule_10_judged(case, row, row["due"], case.d.objectives[row["name"]][0], complete))
    return next((verdict for verdict in ("loss", "unknown") if verdict in verdicts), verdicts[0])


def rule_10_judged(case: Case, counts: dict[str, Any], messages: int, loss_max: float, complete: set[str]) -> str:
    if counts["lost"]["min"] / messages > loss_max:
        return "loss"
    unsure = (counts["lost"]["max"] + counts["pending"]) / messages
    return "ok" if unsure <= loss_max and set(case.sources) <= complete else "unknown"


def rule_20_out_of_order(case: Case, checkpoint: str) -> int:
    """Messages of which a live beacon says so."""
    return sum(any(b.out_of_order and not b.replay for b in beacons) for beacons in case.at[checkpoint].values())


def rule_18_worst(verdicts: list[str]) -> str:
    """The verdict of a pipeline with several sides."""
    return next(verdict for verdict in ("loss", "unknown", "ok", "idle") if verdict in verdicts)


def rule_10_is_through(case: Case, source: str) -> bool:
    """Every known emitter (at least one) of a source is final, or closed: in good order, or before the window's end."""
    known = [
        e
        for e in case.emitters.values()
        if e.node == source and not no_longer_expected(e, case.start_s, case.now_ms, case.lanes)
    ]
    return bool(known) and all(
        e.final_through_s >= case.end_s or (e.closed and (not e.unfinished or e.sent_at_ms < case.end_s * 1000))
        for e in known
    )


def rule_10_reasons(case: Case, fates: list[Fate], unexplained: int, complete: set[str]) -> list[str]:
    """Every one that is true, whatever the verdict."""
    reasons = [f"evidence:{node}" for node in case.d.all_nodes if node not in complete]
    reasons += [kind for kind in ("pending", "overdue") if any(fate.kind == kind for fate in fates)]
    reasons += ["unexplained"] if unexplained else []
    reasons += ["version"] if rule_7e_versions(case) or rule_7e_left_behind(case) else []
    reasons += ["sample"] if case.sample < ALL_IDS else []
    reasons += sorted({f"crash:{crash['node']}" for crash in rule_16_crashes(case)})
    return sorted(reasons)


def rule_16_crashes(case: Case) -> list[dict[str, str]]:
    """Silent emitters that leave a node incomplete for good."""
    silent = [e for e in case.emitters.values() if silence_spoils(e, case.start_s, case.now_ms)]
    rows = [{"node": e.node, "emitter": str(UUID(bytes=e.uuid))} for e in silent if e.node in case.d.all_nodes]
    return sorted(rows, key=lambda row: (case.d.all_nodes.index(row["node"]), row["emitter"]))


def rule_12_first_arrivals(case: Case, delivery: str) -> dict[int, float]:
    """By distinct message, the smallest live lag at a delivery checkpoint, whatever became of its copies."""
    live = {i: [b.lag_ms for b in beacons if not b.replay] for i, beacons in case.at[delivery].items()}
    return {i: min(lags) for i, lags in live.items() if lags}


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


def reasons_by_node(case: Case) -> dict[str, dict[str, dict[str, int]]]:
    """Live beacons of each node's `filtered` and `dead` by the reason that their blocks give."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for block in case.blocks:
        node, _, way = block.checkpoint.partition(".")
        if way in ("filtered", "dead") and block.replay is None and block.reason is not None:
            taken = sum(beacon.id_hash % ALL_IDS < case.sample for beacon in block.beacons)
            counts = found.setdefault(node, {}).setdefault(way, {})
            counts[block.reason] = counts.get(block.reason, 0) + taken
    scaled = {
        node: {
            way: {reason: rule_14_scaled(case, count) for reason, count in counts.items() if count}
            for way, counts in ways.items()
        }
        for node, ways in found.items()
    }
    return {
        node: {way: counts for way, counts in ways.items() if counts}
        for node, ways in scaled.items()
        if any(ways.values())
    }


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


@dataclass(frozen=True)
class Arrivals:
    """One destination: its delivery checkpoint, its part of the graph, and the fates of the messages due there."""

    delivery: str
    part: set[str]
    fates: dict[int, Fate]
    first_ms: dict[int, float]
    lag_target_ms: float

    @property
    def asked(self) -> list[int]:
        """Those that count for the on-time share: due, and neither filtered nor dead."""
        return [i for i, fate in self.fates.items() if fate.kind not in ("filtered", "dead")]

    @property
    def on_time(self) -> list[int]:
        return [
            i
            for i, fate in self.fates.items()
            if fate.kind == "delivered" and self.first_ms.get(i, math.inf) <= self.lag_target_ms
        ]


def rule_15_deliveries(case: Case, checkpoint: str) -> set[str]:
    """The deliveries that can be reached from here; back from a retrier, the node that handed over can."""
    d, node = case.d, checkpoint.split(".")[0]
    if node in d.retriers:
        ways = {f"{node}.out:{user}": [user] for user in d.users(node)} | {f"{node}.in": d.users(node)}
        back = ways.get(checkpoint, [])
        return {delivery for user in back for delivery in rule_15_deliveries(case, f"{user}.in")}
    if node in d.retrier and checkpoint == f"{node}.out:{d.retrier[node]}":
        return rule_15_deliveries(case, f"{node}.in")
    steps = {x: [] if x.split(".")[0] in d.retriers else edges for x, edges in case.edges.items()}
    return reachable(steps, [checkpoint]) & set(d.deliveries())


def rule_15_part(case: Case, delivery: str) -> set[str]:
    """Every checkpoint from which this is the only delivery that can be reached; of a side with one delivery, all."""
    every = case.checkpoints
    if case.deliveries == [delivery]:
        return set(every)
    return {x for x in every if rule_15_deliveries(case, x) == {delivery}}


def rule_15_destinations(
    case: Case, implied: dict[str, set[int]], trails: dict[int, Trail], complete: set[str]
) -> list[Arrivals]:
    found = []
    for delivery in case.deliveries:
        part = rule_15_part(case, delivery)
        due = {i for x in part for i in implied[x]}
        fates = {i: rule_15_fate(case, i, delivery, part, trails[i], complete) for i in due}
        _, target_ms = case.d.objectives.get(delivery.split(".")[0], (0.0, case.d.lag_target_ms))
        found.append(Arrivals(delivery, part, fates, rule_12_first_arrivals(case, delivery), target_ms))
    return found


def rule_15_place_in(case: Case, place: Place, part: set[str]) -> bool:
    """The nodes N with `N.in` in it, and the links with N's out in it."""
    if place.kind == "node":
        return f"{place.node}.in" in part
    return case.d.out_for(place.node, str(place.following)) in part


def rule_15_handed_in(case: Case, n: str, part: set[str]) -> bool:
    return f"{n}.out:{case.d.retrier[n]}" in part


def rule_15_fate(case: Case, id_hash: int, delivery: str, part: set[str], trail: Trail, complete: set[str]) -> Fate:
    """As rule 8, over what is in the destination's part."""
    missing = {place for place in trail.missing if rule_15_place_in(case, place, part)}
    held = {n for n in trail.held if rule_15_handed_in(case, n, part)}
    fate = rule_8_missing(case, missing, held, trail.last_seen, complete)
    if fate is not None:
        return fate
    if case.has(id_hash, delivery):
        return Fate("delivered")
    users = [n for n in case.d.retrier if rule_15_handed_in(case, n, part) and case.handed(id_hash, n)]
    nodes = [n for n in case.d.nodes if f"{n}.in" in part and n not in case.d.takes_in]
    if case.has(id_hash, *(f"{n}.dead" for n in nodes), *(f"{case.d.retrier[n]}.dead" for n in users)):
        return Fate("dead")
    if case.has(id_hash, *(f"{n}.filtered" for n in nodes)):
        return Fate("filtered")
    if not rule_5_trail_ends_with(case, id_hash) & {case.d.retrier[n] for n in users}:
        raise AssertionError(f"rule 15 leaves {id_hash:016x} without a class at {delivery}")
    return Fate(rule_5_waiting(case, trail.last_seen))


def rule_15_outside(case: Case, trails: dict[int, Trail], fates: dict[int, Fate], parts: list[set[str]]) -> set[int]:
    """Messages with a missing place outside all parts."""

    def is_outside(id_hash: int, trail: Trail) -> bool:
        if any(not any(rule_15_place_in(case, place, part) for part in parts) for place in trail.missing):
            return True
        if trail.missing or trail.held or not fates[id_hash].missing_at:
            return any(not any(rule_15_handed_in(case, n, part) for part in parts) for n in trail.held)
        users = [n for n, r in case.d.retrier.items() if Place("retrier", r) in fates[id_hash].missing_at]
        known = [n for n in users if case.handed(id_hash, n)]
        return not any(rule_15_handed_in(case, n, part) for n in known for part in parts)

    return {i for i, trail in trails.items() if is_outside(i, trail)}


def rule_15_on_time_of(destinations: list[Arrivals], outside: int) -> int:
    """What the share is of: those asked for at any destination, and those missing outside all parts."""
    return sum(len(there.asked) for there in destinations) + outside


def rule_15_on_time_share(destinations: list[Arrivals], outside: int) -> float | None:
    """On time at any destination, of those; of no messages, null."""
    of = rule_15_on_time_of(destinations, outside)
    return sum(len(there.on_time) for there in destinations) / of if of else None


def rule_17_of(implied: dict[str, set[int]], source: str) -> set[int]:
    """The messages *of* a source: those implied at its `in`."""
    return implied[f"{source}.in"]


def rule_17_on_time(of: set[int], destinations: list[Arrivals], outside: set[int]) -> tuple[int, int]:
    """How many of a source's messages were on time, of how many: as rule 15 says of the pipeline's."""
    on_time = sum(len(of & set(there.on_time)) for there in destinations)
    return on_time, sum(len(of & set(there.asked)) for there in destinations) + len(of & outside)


def rule_19_parent(name: str | None) -> str | None:
    """`PARENT` of `PARENT#k` or `PARENT#k/n`."""
    found = re.fullmatch(r"(.+)#\d+(/\d+)?", name or "", re.DOTALL)
    return found[1] if found else None


def rule_19_not_whole(side: Judged, of: set[int]) -> dict[str, int] | None:
    """Parents of which a child is lost: for certain, and at most. Null where not all lost children say whose they are,
    and of a sample, which leaves children out."""
    case = side.case
    names = {i: beacon.name for x in case.entrances for i, found in case.named.get(x, {}).items() for beacon in found}
    lost = {i: side.fates[i].kind for i in of if side.fates[i].kind in ("lost", "perhaps", "overdue")}
    parents = {i: rule_19_parent(names.get(i)) for i in lost}
    if case.sample < ALL_IDS or None in parents.values():
        return None
    certain = {parents[i] for i, kind in lost.items() if kind == "lost"}
    return {"min": len(certain), "max": len(set(parents.values()))}


def rule_13_corrupted(case: Case, n: str, m: str) -> tuple[int, int]:
    """Both ends carry a payload_crc, and no value of one equals a value of the other: how many, of how many."""
    count = checked = 0
    sent, taken = case.at[case.d.out_for(n, m)], case.at[f"{m}.in"]
    for id_hash in set(sent) & set(taken):
        left = {b.crc for b in sent[id_hash] if b.crc is not None}
        right = {b.crc for b in taken[id_hash] if b.crc is not None}
        checked += bool(left and right)
        if left and right and not left & right:
            count += 1
    return count, checked


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


@dataclass(frozen=True)
class Judged:
    """One side of a window."""

    case: Case
    implied: dict[str, set[int]]
    trails: dict[int, Trail]
    fates: dict[int, Fate]
    unexplained: set[int]
    destinations: list[Arrivals]
    outside: set[int]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [destination_row(self.case, there) for there in self.destinations]


def judge_side(case: Case, complete: set[str]) -> Judged:
    implied = rule_1_implied(case)
    messages = rule_2_messages(case)
    trails = rule_8_trails(case, messages, implied)
    fates = {i: rule_8_fate(case, i, trail, complete) for i, trail in trails.items()}
    destinations = rule_15_destinations(case, implied, trails, complete)
    outside = rule_15_outside(case, trails, fates, [there.part for there in destinations])
    unexplained = rule_2_unexplained(case, messages, complete)
    return Judged(case, implied, trails, fates, unexplained, destinations, outside)


def judge(world: World, window_start_s: int) -> dict[str, Any]:
    """One closed window as in `windows --json`, without `state`, `revision` and `closed_at`."""
    case = open_case(world, window_start_s)
    complete = rule_7_complete(case)
    judged = [judge_side(side, complete) for side in sides(case)]
    fates = [fate for side in judged for fate in side.fates.values()]
    unexplained = sum(len(side.unexplained) for side in judged)
    destinations = [there for side in judged for there in side.destinations]
    destinations.sort(key=lambda there: case.d.deliveries().index(there.delivery))
    outside = sum(len(side.outside) for side in judged)
    counts = headline(case, fates, unexplained)
    arrivals = [lag_ms for there in destinations for lag_ms in there.first_ms.values()]
    side_rows = [side_row(side, complete) for side in judged]
    return {
        "pipeline": case.d.pipeline,
        "window_start": datetime.fromtimestamp(window_start_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "verdict": rule_18_worst([row["verdict"] for row in side_rows]),
        "reasons": rule_10_reasons(case, fates, unexplained, complete),
        "proof": "beacons",
        "sample": float(f"{case.sample / ALL_IDS:.6g}"),
        **counts,
        "clock_skew_ms": rule_4_clocks_apart_ms(case),
        "loss_ratio": loss_ratio(counts),
        "on_time_share": rule_15_on_time_share(destinations, outside),
        "on_time_of": rule_14_scaled(case, rule_15_on_time_of(destinations, outside)),
        "e2e_lag_ms": {**percentiles(arrivals), "max": quantile(arrivals, 1.0)},
        "checkpoints": [checkpoint_row(case, c) for c in case.d.checkpoints() if case.at[c]],
        "nodes": [node_row(case, n, fates, complete) for n in case.d.all_nodes],
        "links": [link_row(case, n, m, fates) for n in case.d.nodes for m in case.d.to[n]],
        "destinations": [destination_row(case, there) for there in destinations],
        **several("sources", [source_row(side_of(judged, source), source) for source in case.d.sources]),
        **several("sides", side_rows),
        "reasons_by_node": reasons_by_node(case),
        "staleness_ms": {},  # a matter of several windows, added to a judgement
        "crashes": rule_16_crashes(case),
        "unknown_checkpoints": unknown_checkpoints(case),
    }


def side_of(judged: list[Judged], node: str) -> Judged:
    return next(side for side in judged if node in side.case.side)


def loss_ratio(counts: dict[str, Any]) -> dict[str, float | None]:
    return {end: counts["lost"][end] / counts["messages"] if counts["messages"] else None for end in ("min", "max")}


def side_row(side: Judged, complete: set[str]) -> dict[str, Any]:
    """One side by itself."""
    counts = headline(side.case, list(side.fates.values()), len(side.unexplained))
    return {
        "name": side.case.sources[0],
        "nodes": side.case.side,
        "verdict": rule_10_verdict(side.case, counts, side.rows, complete),
        **counts,
        "loss_ratio": loss_ratio(counts),
    }


def headline(case: Case, fates: list[Fate], unexplained: int) -> dict[str, Any]:
    kinds = [fate.kind for fate in fates]
    certain = kinds.count("lost")
    uncertain = kinds.count("perhaps") + kinds.count("overdue")
    return {
        "messages": rule_14_scaled(case, len(kinds)),
        "delivered": rule_14_scaled(case, kinds.count("delivered")),
        "filtered": rule_14_scaled(case, kinds.count("filtered")),
        "dead": rule_14_scaled(case, kinds.count("dead")),
        "pending": rule_14_scaled(case, kinds.count("pending")),
        "unexplained": rule_14_scaled(case, unexplained),
        "lost": rule_14_interval(case, certain, certain + uncertain, len(kinds)),
    }


def lost_at(case: Case, fates: list[Fate], *places: Place) -> dict[str, int]:
    """A place's own counts: the messages that are certain, perhaps or overdue at that place."""
    certain = sum(1 for fate in fates if fate.certain_at & set(places))
    perhaps = sum(1 for fate in fates if fate.perhaps_at & set(places))
    overdue = sum(1 for fate in fates if fate.kind == "overdue" and fate.missing_at & set(places))
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
        **({"out_of_order": late} if (late := rule_14_scaled(case, rule_20_out_of_order(case, checkpoint))) else {}),
    }


def node_row(case: Case, node: str, fates: list[Fate], complete: set[str]) -> dict[str, Any]:
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


def link_row(case: Case, n: str, m: str, fates: list[Fate]) -> dict[str, Any]:
    lag_out = quantile(case.live_lags([case.d.out_for(n, m)]), 0.95)
    lag_in = quantile(case.live_lags([f"{m}.in"]), 0.95)
    return {
        "from": n,
        "to": m,
        "queue_time_p95_ms": difference_or_none(lag_in, lag_out),
        "queue_time_ms": percentiles(stays(case, [case.d.out_for(n, m)], [f"{m}.in"])),
        "lost": lost_at(case, fates, Place("link", n, m)),
        "corrupted": rule_14_scaled(case, rule_13_corrupted(case, n, m)[0]),
        "checked": rule_14_scaled(case, rule_13_corrupted(case, n, m)[1]),
    }


def destination_row(case: Case, there: Arrivals) -> dict[str, Any]:
    kinds = [fate.kind for fate in there.fates.values()]
    certain, unsure = kinds.count("lost"), kinds.count("perhaps") + kinds.count("overdue")
    arrivals = list(there.first_ms.values())
    return {
        "name": there.delivery.split(".")[0],
        "due": rule_14_scaled(case, len(kinds)),
        **{kind: rule_14_scaled(case, kinds.count(kind)) for kind in ("delivered", "filtered", "dead", "pending")},
        "lost": rule_14_interval(case, certain, certain + unsure, len(kinds)),
        "on_time_share": len(there.on_time) / len(there.asked) if there.asked else None,
        "e2e_lag_ms": {**percentiles(arrivals), "max": quantile(arrivals, 1.0)},
    }


def several(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows that are there only where there are several."""
    return {name: rows} if len(rows) > 1 else {}


def source_row(side: Judged, source: str) -> dict[str, Any]:
    case, fates, destinations = side.case, side.fates, side.destinations
    of = rule_17_of(side.implied, source)
    kinds = [fates[i].kind for i in of]
    certain, unsure = kinds.count("lost"), kinds.count("perhaps") + kinds.count("overdue")
    on_time, asked = rule_17_on_time(of, destinations, side.outside)
    arrivals = [lag_ms for there in destinations for i, lag_ms in there.first_ms.items() if i in of]
    return {
        "name": source,
        "messages": rule_14_scaled(case, len(of)),
        **{kind: rule_14_scaled(case, kinds.count(kind)) for kind in ("delivered", "filtered", "dead", "pending")},
        "lost": rule_14_interval(case, certain, certain + unsure, len(of)),
        "on_time_share": on_time / asked if asked else None,
        "on_time_of": rule_14_scaled(case, asked),
        "e2e_lag_ms": {**percentiles(arrivals), "max": quantile(arrivals, 1.0)},
        **({"parents_not_whole": rule_19_not_whole(side, of)} if source in case.d.splits else {}),
    }


def missing(world: World, window_start_s: int) -> dict[int, dict[str, Any]]:
    """By id hash, every lost, perhaps lost, overdue or pending message, and all the places it is missing at."""
    case = open_case(world, window_start_s)
    complete, found = rule_7_complete(case), dict[int, dict[str, Any]]()
    for side in sides(case):
        for id_hash, fate in judge_side(side, complete).fates.items():
            if fate.missing_at:
                places = {*found.get(id_hash, {"places": []})["places"], *map(str, fate.missing_at)}
                kinds = {fate.kind, *([found[id_hash]["kind"]] if id_hash in found else [])}
                kind = next(kind for kind in ("lost", "perhaps", "overdue", "pending") if kind in kinds)
                found[id_hash] = {"kind": kind, "places": sorted(places)}
    return found


def difference(world: World, window_start_s: int, a: str, b: str) -> set[int]:
    """`lagloss diff`: strictly the ids at checkpoint a that are not at checkpoint b."""
    case = open_case(world, window_start_s)
    return set(case.at[a]) - set(case.at[b])
