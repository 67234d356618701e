"""Random worlds for the oracle and for whoever is compared with it: `make_world(rng)` and the strategy `worlds()`."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tests.oracle.blocks import Draft, cut, drafts, encode, last_beacon, put_into_log
from tests.oracle.cast import actors
from tests.oracle.evidence import World, read_definition
from tests.oracle.oracle import open_case, rule_4_clocks_apart_ms
from tests.oracle.plan import BUNDLES, END_MS, PHENOMENA, START_MS, START_S, Plan
from tests.oracle.reports import LEFT_BEHIND, Accounts, reports_log
from tests.oracle.topologies import TOPOLOGIES, Document, Net, changed, definition, extended, own_targets, tapped
from tests.oracle.traffic import Seen, journeys
from tests.oracle.wire import float32

LONG_AGO_MS = START_MS - 86_400_000
WHOLE_FROM_MS = tuple(START_MS + after_ms for after_ms in (-180_000, -120_001, -120_000, 0, 1, 61_000))
REPLACED_MS = (0, 0, 40_000, 3_599_999, 3_600_000, 3_600_001)  # before the window
RETAPPED_MS = (-59_999, -30_000, 0, 1, 5_000, 20_000, 60_000, 3_600_000)  # after the window
QUIET: tuple[frozenset[str], ...] = (frozenset(),) * len(BUNDLES)


def draw_plan(rng: random.Random) -> Plan:
    """Each phenomenon by itself; some worlds quiet, some wild."""
    share = rng.choice([0.02, 0.08, 0.16, 0.3])
    return Plan(
        topology=rng.choice(list(TOPOLOGIES)),
        messages=rng.randint(3, 12),
        partitions=rng.choice([8, 8, 8, 1, 3]),
        phenomena=frozenset(name for name in PHENOMENA if rng.random() < share) | rng.choice(BUNDLES * 2 + QUIET),
        seed=rng.randrange(2**32),
    )


def make_world(rng: random.Random) -> tuple[World, int]:
    """A random world, and the window to judge in it."""
    return build_world(draw_plan(rng)), START_S


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Shrinks to few phenomena, few messages and the simplest topology."""
    return Plan(
        topology=draw(st.sampled_from(list(TOPOLOGIES))),
        messages=draw(st.integers(3, 12)),
        partitions=draw(st.sampled_from([1, 3, 8])),
        phenomena=draw(st.sampled_from(BUNDLES)) | draw(st.frozensets(st.sampled_from(PHENOMENA), max_size=10)),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def worlds() -> st.SearchStrategy[tuple[World, int]]:
    """Worlds with the window to judge; to see a failure's plan, draw from `plans()` and build it yourself."""
    return plans().map(lambda plan: (build_world(plan), START_S))


def build_world(plan: Plan) -> World:
    """The world that the plan describes, always the same one."""
    document = definition(plan.topology, plan.rng("definition"))
    if plan.has("own_targets"):
        document = own_targets(document, plan.rng("own_targets"))
    pipeline, net = read_definition(document), Net(document)
    now_ms = judged_at(plan, int(pipeline.grace_ms), int(pipeline.max_wait_ms))
    cast = actors(plan, net, now_ms)
    trails = journeys(plan, net, cast, pipeline.lag_target_ms)
    edge_ms = set_edges(plan, trails, now_ms, int(pipeline.max_wait_ms))
    seen = [beacon for trail in trails for beacon in trail]
    blocks = drafts(plan, net, seen, now_ms)
    low = put_into_log(plan, net, blocks, now_ms)
    accounts = Accounts(plan, net, cast, blocks, seen, now_ms)
    accounts.edge_ms = edge_ms
    world = World(
        definitions=versions(plan, document),
        beacons=tuple(encode(draft) for draft in in_log(blocks)),
        reports=reports_log(plan, net, accounts.write(), now_ms),
        now_ms=now_ms,
        beacons_start=low,
        whole_from_ms=plan.rng("lost_reports").choice(WHOLE_FROM_MS) if plan.has("lost_reports") else 0,
    )
    if edge_ms is None or not plan.has("clocks_off"):
        return world
    accounts.edge_ms = edge_ms + rule_4_clocks_apart_ms(open_case(world, START_S))  # which is where the edge is then
    return replace(world, reports=reports_log(plan, net, accounts.write(), now_ms))


def in_log(blocks: list[Draft]) -> list[Draft]:
    return [draft for draft in blocks if draft.in_log]


def judged_at(plan: Plan, grace_ms: int, max_wait_ms: int) -> int:
    """When the window, due by then, is judged."""
    rng = plan.rng("now")
    now_ms = END_MS + grace_ms + rng.choice([0, 0, 1, 3_000, 30_000, 59_999, 60_000, 300_000])
    late_ms = rng.choice([100_000, 16 * 60_000, 17 * 60_000, 45 * 60_000, 180 * 60_000])
    edge_ms = START_MS + max_wait_ms + rng.randint(30_000, 90_000)
    if plan.has("judged_late"):
        now_ms += late_ms
    back_ms = rng.choice([0, 0, 100_000, 660_000])
    if plan.has("comeback"):
        now_ms += back_ms
    return max(now_ms, edge_ms) if plan.has("max_wait_edge") else now_ms


def set_edges(plan: Plan, trails: list[list[Seen]], now_ms: int, max_wait_ms: int) -> int | None:
    """Breaks off a trail so that maxWait, or a lane, is met to the millisecond; returns where lanes stand then."""
    mine = [i for i, trail in enumerate(trails) if trail and not trail[0].dropped and trail[0].window_s == START_S]
    if not mine or not (plan.has("max_wait_edge") or plan.has("lane_edge")):
        return None
    rng = plan.rng("edge")
    which, step_ms = rng.choice(mine), rng.choice([-1, 0, 0, 1])
    if plan.has("max_wait_edge"):
        trails[which] = cut(plan, trails[which], now_ms - max_wait_ms + step_ms)
        return START_MS
    trails[which] = cut(plan, trails[which])
    last = last_beacon(trails[which])
    return int(last.event_ms + float32(last.observed_ms - last.event_ms)) + 5_000 + step_ms


def versions(plan: Plan, document: Document) -> tuple[tuple[int, dict[str, Any]], ...]:
    """The document in force in the window, and sometimes other versions around it."""
    if plan.has("left_behind"):
        rng = plan.rng("left_behind")
        return ((LONG_AGO_MS, extended(document, LEFT_BEHIND, rng)), (START_MS - rng.choice(REPLACED_MS), document))
    if plan.has("retapped"):
        rng = plan.rng("retapped")
        before, since = tapped(document, rng), tapped(document, rng)
        return ((LONG_AGO_MS, before), (END_MS + rng.choice(RETAPPED_MS), since))
    if not plan.has("changed_definition"):
        return ((LONG_AGO_MS, document),)
    rng = plan.rng("versions")
    other, third = changed(document, rng), changed(document, rng)
    match rng.choice(["inside", "inside", "inside", "twice", "start", "end", "before", "first"]):
        case "inside":
            at_ms = rng.choice([START_MS + 1, START_MS + 30_000, END_MS - 1])
            return ((LONG_AGO_MS, document), (at_ms, other))
        case "twice":
            return ((LONG_AGO_MS, document), (START_MS + 20_000, other), (START_MS + 40_000, third))
        case "start":
            return ((LONG_AGO_MS, other), (START_MS, document))
        case "end":
            return ((LONG_AGO_MS, document), (END_MS, other))
        case "before":
            return ((LONG_AGO_MS, other), (START_MS - 40_000, document), (END_MS + 10, third))
        case _:
            return ((START_MS + 30_000, document), (END_MS + 10, other))


__all__ = ["PHENOMENA", "Plan", "World", "build_world", "draw_plan", "make_world", "plans", "worlds"]
