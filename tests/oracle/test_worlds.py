"""The generator is not vacuous: what it can draw does occur, and what is drawn has its effect on the judgement."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.oracle.evidence import World
from tests.oracle.oracle import judge, missing
from tests.oracle.plan import HARMLESS, PHENOMENA, START_S, Plan
from tests.oracle.topologies import TOPOLOGIES
from tests.oracle.worlds import build_world, draw_plan, make_world, worlds

LOSSY = frozenset({"lost_at_link", "lost_at_node"})  # where most phenomena show
SHOWS_WITH = {  # where the others do
    "midway": {"no_traffic"},
    "empty_tallies": {"no_progress", "judged_late"},
    "ahead_tallies": {"no_progress", "judged_late"},
    "restamped": {"lane_edge", "stalled_lane", "stuck_work", "judged_late"},
    "no_event_times": {"stalled_lane", "stuck_work", "judged_late", "crooked_clocks"},
    "out_of_order_reports": {"closed", "forgotten_lane", "stalled_lane", "lane_handed_over"},
    "repeated_reports": {"silent", "lane_handed_over"},
    "stale_tallies": {"blocks_missing", "dropped"},
    "scaled": {"huge_lags"},
    "settled_late": {"closed", "huge_lags"},
    "unfinished": {"closed", "several_emitters", "stuck_work", "judged_late"},
    "observes": {"silent", "several_emitters", "judged_late"},
    "resumes": {"silent", "several_emitters", "stuck_work", "judged_late"},
}


def plans(count: int, phenomena: frozenset[str] = frozenset()) -> list[Plan]:
    shapes = list(TOPOLOGIES)
    return [Plan(shapes[i % len(shapes)], 6, 8, phenomena, i) for i in range(count)]


def answers(world: World) -> tuple[Any, Any]:
    return judge(world, START_S), missing(world, START_S)


def test_over_300_seeds_every_verdict_reason_kind_and_place_occurs() -> None:
    seen: Counter[str] = Counter()
    for seed in range(300):
        world, window_s = make_world(random.Random(seed))
        result = judge(world, window_s)
        seen[f"verdict {result['verdict']}"] += 1
        seen.update(f"reason {reason}" for reason in {r.split(":")[0] for r in result["reasons"]})
        seen.update(key for key in ("delivered", "filtered", "dead", "pending", "unexplained") if result[key])
        seen.update(
            key for key in ("duplicates", "replayed", "out_of_order") if any(c.get(key) for c in result["checkpoints"])
        )
        seen.update(["corrupted"] if any(link["corrupted"] for link in result["links"]) else [])
        seen.update(["certain loss"] if result["lost"]["min"] else [])
        seen.update(["unsure loss"] if result["lost"]["max"] > result["lost"]["min"] else [])
        seen.update(["partly on time"] if 0 < (result["on_time_share"] or 0) < 1 else [])
        seen.update(["negative lag"] if (result["e2e_lag_ms"]["p50"] or 0) < 0 else [])
        for message in missing(world, window_s).values():
            seen.update([f"missing {message['kind']}", *(f"at {place.split()[0]}" for place in message["places"])])
            seen.update(["missing at two places"] if len(message["places"]) > 1 else [])
    expected = {f"verdict {verdict}" for verdict in ("ok", "loss", "unknown", "idle")}
    expected |= {f"reason {r}" for r in ("pending", "overdue", "evidence", "unexplained", "version", "sample")}
    expected |= {f"missing {kind}" for kind in ("lost", "perhaps", "overdue", "pending", "at two places")}
    expected |= {"at node", "at link", "at retrier", "delivered", "filtered", "dead", "pending", "unexplained"}
    expected |= {
        "duplicates",
        "replayed",
        "out_of_order",
        "corrupted",
        "certain loss",
        "unsure loss",
        "partly on time",
        "negative lag",
    }
    assert {what: seen[what] for what in expected if seen[what] < 5} == {}


def test_over_600_seeds_every_phenomenon_is_drawn_in_every_topology() -> None:
    drawn = Counter(p for seed in range(600) for p in draw_plan(random.Random(seed)).phenomena)
    shapes = Counter(draw_plan(random.Random(seed)).topology for seed in range(600))
    assert min(drawn[p] for p in PHENOMENA) >= 20
    assert min(shapes[name] for name in TOPOLOGIES) >= 20


@pytest.mark.parametrize("phenomenon", sorted(set(PHENOMENA) - set(HARMLESS)))
def test_a_phenomenon_changes_the_judgement_of_some_lossy_world(phenomenon: str) -> None:
    around = (LOSSY | SHOWS_WITH.get(phenomenon, set())) - {phenomenon}
    changes = (
        answers(build_world(plan)) != answers(build_world(replace(plan, phenomena=plan.phenomena | {phenomenon})))
        for plan in plans(220, around)
    )
    assert any(changes)
    assert any(changes)  # twice, in two worlds


@pytest.mark.parametrize("phenomenon", HARMLESS)
def test_a_harmless_phenomenon_never_changes_the_judgement_but_does_change_the_logs(phenomenon: str) -> None:
    logs = 0
    for plan in plans(24, LOSSY | SHOWS_WITH.get(phenomenon, set())):
        before = build_world(plan)
        after = build_world(replace(plan, phenomena=plan.phenomena | {phenomenon}))
        logs += (before.beacons, before.reports) != (after.beacons, after.reports)
        assert answers(before) == answers(after)
    assert logs > 12


def test_quiet_worlds_without_a_retrier_are_ok_and_tell_of_nothing() -> None:
    for plan in plans(60):
        if "retr" not in plan.topology and plan.topology != "any_graph":
            result = judge(build_world(plan), START_S)
            assert (result["verdict"], result["reasons"], result["lost"]["max"]) == ("ok", [], 0)
            assert all(node["complete"] for node in result["nodes"])


@given(drawn=worlds())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
def test_every_message_counts_once_and_no_place_has_more_than_the_window(drawn: tuple[World, int]) -> None:
    result = judge(*drawn)
    if "sample" not in result["reasons"]:
        parts = sum(result[key] for key in ("delivered", "filtered", "dead", "pending"))
        assert result["messages"] == parts + result["lost"]["max"]
    for place in [*result["nodes"], *result["links"]]:
        assert place["lost"]["min"] <= place["lost"]["max"] <= result["lost"]["max"]
        assert place["lost"]["min"] <= result["lost"]["min"]
