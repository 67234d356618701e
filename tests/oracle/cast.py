"""Who works at each node: how many emitters, when they start, close, fall silent or come back, by which clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from tests.oracle.plan import END_MS, START_MS, Plan, chance
from tests.oracle.topologies import Net
from tests.oracle.traffic import Actor

T = TypeVar("T")

SILENT_AT = (
    -760_000,
    -60_001,
    -60_000,
    -59_999,
    20_000,
    45_000,
    61_000,
    65_000,
    125_000,
    140_000,
    200_000,
)  # last report, from the start
CLOSED_AT = (-300_000, 30_000, 59_999, 60_000, 60_001, 70_000)
CLOCKS_MS = (-120_000, -90_000, -5_500, -1_020, -1_019, 400, 979, 980, 61_000, 120_000)  # transit takes 20 ms
GAPS_AT = (-30_000, 26_000, 67_000)  # the last report before ten minutes without one, from the start
GAP_MS = 600_000
AT_MOST = 20  # emitters that a node is scaled to
BEGUN_AT = (-1, 0, 10_000, 59_999, 60_000, 60_001, 75_000)


def picked(plan: Plan, phenomenon: str, items: Iterable[T], share: float) -> list[T]:
    """The items that a phenomenon befalls, at least one; none where the plan does not have it."""
    every = list(items)
    if not plan.has(phenomenon) or not every:
        return []
    chosen = [item for i, item in enumerate(every) if chance(plan.rng(phenomenon, "picked", i), share)]
    return chosen or [plan.rng(phenomenon, "picked").choice(every)]


def actors(plan: Plan, net: Net, now_ms: int) -> dict[str, list[Actor]]:
    cast: dict[str, list[Actor]] = {}
    crowded = picked(plan, "several_emitters", [*net.steps, *net.retriers], 0.5)
    for node in [*net.steps, *net.retriers]:
        count = plan.rng("several", node).choice([2, 2, 3]) if node in crowded else 1
        uuids = [plan.rng("actor", node, i).randbytes(16) for i in range(count)]
        cast[node] = [Actor(node, i, uuid, START_MS - 600_000) for i, uuid in enumerate(uuids)]
    lives = {actor: actor for node in cast for actor in cast[node]}
    for node in picked(plan, "scaled", cast, 0.2):
        rng = plan.rng("scaled", node)
        begin_ms, end_ms = START_MS + rng.choice([-60_000, 0, 10_000]), END_MS + rng.choice([-30_000, -10_000, 2_000])
        more = [Actor(node, i, rng.randbytes(16), begin_ms, end_ms, True) for i in range(len(cast[node]), AT_MOST)]
        cast[node] += more
        lives |= {actor: actor for actor in more}
    for node in picked(plan, "history", cast, 0.4):
        for actor in (actor for actor in cast[node] if actor.end_ms is None):
            begin_ms = min(END_MS + plan.rng("history", node).choice([1, 5_000, 100_000]), now_ms - 4_000)
            lives[actor] = replace(lives[actor], begin_ms=begin_ms, history=True)
    for actor in picked(plan, "midway", [actor for actor in lives if actor.end_ms is None], 0.3):
        begin_ms = min(START_MS + plan.rng("midway", actor.uuid).choice(BEGUN_AT), now_ms - 4_000)
        lives[actor] = replace(lives[actor], begin_ms=begin_ms)
    for actor in picked(plan, "closed", lives, 0.4):
        ends = [START_MS + at_ms for at_ms in CLOSED_AT] + [now_ms - 1_000]
        lives[actor] = ended(lives[actor], plan.rng("closed", actor.uuid).choice(ends), closed=True)
    for actor in picked(plan, "silent", lives, 0.3):
        ends = [START_MS + at_ms for at_ms in SILENT_AT]
        ends += [END_MS - 660_000, END_MS - 660_001, END_MS - 960_000, END_MS - 960_001]
        ends += [now_ms - 59_999, now_ms - 60_000, now_ms - 60_001, now_ms - 60_001]
        past = [end_ms for end_ms in ends if end_ms <= now_ms]
        lives[actor] = ended(lives[actor], plan.rng("silent", actor.uuid).choice(past), closed=False)
    lasting = [a for a in lives if lives[a].end_ms is None and lives[a].begin_ms < START_MS + min(GAPS_AT)]
    for actor in picked(plan, "comeback", lasting, 0.3):
        from_ms = START_MS + plan.rng("comeback", actor.uuid).choice(GAPS_AT)
        lives[actor] = replace(lives[actor], gap_ms=(from_ms, from_ms + GAP_MS))
    for actor in picked(plan, "clocks_off", lives, 0.4):
        lives[actor] = replace(lives[actor], clock_ms=plan.rng("clock_off", actor.uuid).choice(CLOCKS_MS))
    return {node: [lives[actor] for actor in cast[node]] for node in cast}


def ended(actor: Actor, end_ms: int, *, closed: bool) -> Actor:
    begin_ms = actor.begin_ms if actor.begin_ms < end_ms - 40_000 else end_ms - 200_000
    return replace(actor, begin_ms=begin_ms, end_ms=end_ms, closed=closed)
