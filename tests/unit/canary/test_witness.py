"""The witness against synthetic results: what is right is right, and every kind of wrong answer is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from canary.plan import CORRUPTING, HOUR_S, LOSING, MESSAGES, MINUTE_S, MinutePlan, plan_of
from canary.witness import Breaches, Judgement, MissingName, Notice, Result, judge, window_start_of
from lagloss_server.model.canary import ALERTING_PLACES, APP, CANARY, RELAY, STORE, alerting_rule
from lagloss_server.model.window import (
    CheckpointCounts,
    DestinationCounts,
    Interval,
    Lags,
    LinkCounts,
    LossRatio,
    NodeCounts,
    Percentiles,
    Window,
    rfc3339,
)

SECRET = b"s" * 32
START_S = 1_764_000_000 // HOUR_S * HOUR_S


def rich_plan() -> MinutePlan:
    """A minute with every kind of fault but a few."""
    plans = (plan_of(SECRET, START_S + minute * MINUTE_S) for minute in range(2_000))
    return next(plan for plan in plans if plan.late and plan.dead and plan.corrupted and plan.doubled_at)


PLAN = rich_plan()


def true_window(plan: MinutePlan) -> Window:
    """The result of a minute as it should be."""
    lost, total = Interval(len(plan.lost), len(plan.lost)), MESSAGES - plan.dead
    at_place = {place: Interval(plan.lost_at[place], plan.lost_at[place]) for place in LOSING}
    none, at_once = Interval(0, 0), Percentiles(20.0, 20.0, 20.0)
    delays = plan.delays_ms
    e2e = [20.0 + delays[round(share * (len(delays) - 1))] for share in (0.5, 0.95, 0.99, 1.0)]
    delivered, took = Percentiles(*e2e[:3]), e2e[1] - 20.0
    links = ((APP, RELAY), (RELAY, STORE))
    return Window(
        pipeline=CANARY,
        window_start=rfc3339(plan.start_s),
        verdict="loss",
        reasons=(),
        proof="beacons",
        sample=1.0,
        messages=MESSAGES,
        delivered=plan.delivered,
        filtered=0,
        dead=plan.dead,
        pending=0,
        unexplained=0,
        clock_skew_ms=0,
        lost=lost,
        loss_ratio=LossRatio(lost.min / MESSAGES, lost.min / MESSAGES),
        on_time_share=plan.on_time_share,
        on_time_of=total,
        e2e_lag_ms=Lags(*e2e),
        checkpoints=tuple(
            CheckpointCounts(
                name,
                seen + plan.doubled_at[name],
                seen,
                plan.doubled_at[name],
                0,
                delivered if name == f"{STORE}.out" else at_once,
            )
            for name, seen in plan.seen_at.items()
        ),
        nodes=tuple(
            NodeCounts(name, 20.0, out_ms, out_ms - 20.0, at_once, at_place.get(f"node {name}", none), True)
            for name, out_ms in ((APP, 20.0), (RELAY, 20.0), (STORE, 20.0 + took))
        ),
        links=tuple(
            LinkCounts(source, target, 0.0, at_once, at_place[label], *checks)
            for source, target in links
            for label in (f"link {source}->{target}",)
            for checks in (((plan.corrupted, plan.seen_at[f"{RELAY}.in"]) if label == CORRUPTING else (0, 0)),)
        ),
        destinations=(
            DestinationCounts(STORE, MESSAGES, plan.delivered, 0, plan.dead, 0, lost, plan.on_time_share, Lags(*e2e)),
        ),
        reasons_by_node={RELAY: {"dead": {"canary": plan.dead}}} if plan.dead else None,
        staleness_ms={},
        crashes=(),
        unknown_checkpoints=(),
    )


def last_checkpoint(place: str) -> str:
    return place.removeprefix("node ") + ".in" if place.startswith("node ") else place[5:].split("->")[0] + ".out"


def true_result(plan: MinutePlan) -> Result:
    return Result(
        1,
        true_window(plan),
        tuple(MissingName(name, "lost", (place,), last_checkpoint(place)) for name, place in plan.lost.items()),
    )


def true_breaches(plan: MinutePlan) -> list[Breaches]:
    return [Breaches(alerting_rule(plan.breaching_place), ((plan.start_s - MINUTE_S, plan.start_s + MINUTE_S),))]


def true_notices(plan: MinutePlan) -> dict[int, Notice]:
    rule = alerting_rule(plan.breaching_place)
    return {plan.start_s: Notice(rule, MESSAGES, len(plan.lost), tuple(plan.lost)[:2])}


def judged(**changes: Any) -> Judgement:
    """The judgement of the minute with other fields of its window."""
    result = true_result(PLAN)
    window = structs.replace(result.window, **changes)
    return judge(PLAN, replace(result, window=window), true_breaches(PLAN), true_notices(PLAN))


@given(st.binary(min_size=32, max_size=32), st.integers(0, 30_000_000).map(lambda minute: minute * MINUTE_S))
def test_a_true_result_is_right(secret: bytes, start_s: int) -> None:
    plan = plan_of(secret, start_s)

    judgement = judge(plan, true_result(plan), true_breaches(plan), true_notices(plan))

    assert judgement == Judgement((), len(plan.lost), len(plan.lost), 0)
    assert judgement.is_right


def test_a_minute_without_a_result_is_wrong() -> None:
    assert judge(PLAN, None, [], {}) == Judgement(("no result",), len(PLAN.lost), 0, 0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"verdict": "ok"}, "verdict: ok reported"),
        ({"verdict": "unknown"}, "verdict: unknown reported"),
        ({"messages": MESSAGES - 1}, "messages: 59 reported, 60 in truth"),
        ({"delivered": PLAN.delivered + 1}, "delivered:"),
        ({"dead": PLAN.dead - 1}, "dead:"),
        ({"pending": 1}, "pending: 1 reported, 0 in truth"),
        ({"filtered": 1}, "filtered: 1 reported"),
        ({"unexplained": 1}, "unexplained: 1 reported"),
        ({"lost": Interval(0, 0)}, "lost: 0 reported"),
        ({"lost": Interval(len(PLAN.lost), 60)}, f"lost: {len(PLAN.lost)} to 60 reported"),
        ({"lost": None}, "lost: nothing reported"),
        ({"on_time_share": PLAN.delivered / (MESSAGES - PLAN.dead)}, "on time:"),
        ({"on_time_of": MESSAGES + 1}, "messages that could be on time:"),
        ({"reasons": ("evidence:relay",)}, "reasons:"),
        ({"proof": "tallies"}, "proof:"),
        ({"sample": 0.5}, "sample:"),
        ({"loss_ratio": LossRatio(0.5, 0.5)}, "share of losses:"),
        ({"reasons_by_node": {RELAY: {"dead": {"canary": PLAN.dead + 1}}}}, "reasons of dead letters:"),
        ({"e2e_lag_ms": Lags(20.0, 10.0, 20.0, 20.0)}, "rest of store:"),
    ],
)
def test_a_wrong_number_of_a_window_is_found(changes: dict[str, Any], problem: str) -> None:
    (found, *_) = judged(**changes).problems

    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("part", "change", "problem"),
    [
        ("checkpoints", lambda part: structs.replace(part, duplicates=(part.duplicates or 0) + 1), "duplicates at"),
        ("nodes", lambda part: structs.replace(part, lost=Interval(9, 9)), "lost at node"),
        ("links", lambda part: structs.replace(part, lost=Interval(9, 9)), "lost at link"),
        ("links", lambda part: structs.replace(part, corrupted=PLAN.corrupted + 1), "checksums of"),
        ("links", lambda part: structs.replace(part, checked=None), "checksums of"),
        ("links", lambda part: structs.replace(part, queue_time_p95_ms=7.0), "queue time of"),
        ("checkpoints", lambda part: structs.replace(part, beacons=part.beacons + 1), "beacons at"),
        ("checkpoints", lambda part: structs.replace(part, distinct=part.distinct - 1), "messages at checkpoints"),
        ("checkpoints", lambda part: structs.replace(part, replayed=1), "replayed and out of order"),
        (
            "checkpoints",
            lambda part: structs.replace(part, lag_ms=Percentiles(20.0, 20.0, 9_000.0)),
            "lag at app.in, p99",
        ),
        ("nodes", lambda part: structs.replace(part, complete=False), "complete evidence"),
        ("nodes", lambda part: structs.replace(part, lag_in_p95_ms=None), "lags of app"),
        ("nodes", lambda part: structs.replace(part, process_duration_p95_ms=None), "process duration of app"),
        ("destinations", lambda part: structs.replace(part, delivered=part.delivered - 1), "messages of store"),
        ("destinations", lambda part: structs.replace(part, pending=1), "rest of store"),
    ],
)
def test_a_wrong_number_of_a_place_is_found(part: str, change: Callable[[Any], Any], problem: str) -> None:
    first, *others = getattr(true_window(PLAN), part)

    (found,) = judged(**{part: (change(first), *others)}).problems

    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("part", "problem"), [("nodes", "places:"), ("links", "places:"), ("destinations", "destinations:")]
)
@pytest.mark.parametrize("change", [lambda parts: (), lambda parts: parts[1:], lambda parts: (*parts, parts[0])])
def test_a_place_that_is_missing_or_twice_in_a_window_is_found(
    part: str, problem: str, change: Callable[[Any], Any]
) -> None:
    (found, *_) = judged(**{part: change(getattr(true_window(PLAN), part))}).problems

    assert found.startswith(problem)


def test_a_window_without_any_checkpoint_is_wrong_and_can_be_judged() -> None:
    assert any(problem.startswith("messages at checkpoints") for problem in judged(checkpoints=()).problems)


@pytest.mark.parametrize(("ms", "count"), [(-0.6, 0), (-1.1, 3)])
def test_a_duration_can_be_below_nothing_by_the_rounding_of_a_timestamp(ms: float, count: int) -> None:
    first, *others = true_window(PLAN).nodes
    durations = Percentiles(ms, ms, ms)

    problems = judged(nodes=(structs.replace(first, process_duration_ms=durations), *others)).problems

    assert len(problems) == count


def test_a_loss_that_is_not_named_is_found() -> None:
    result = true_result(PLAN)
    unnamed, *others = result.missing

    judgement = judge(PLAN, replace(result, missing=tuple(others)), true_breaches(PLAN), true_notices(PLAN))

    assert judgement.named == judgement.shown - 1
    assert judgement.problems == (
        f"1 of {judgement.shown} lost messages not named: {unnamed.id} at {unnamed.places[0]}",
    )


@pytest.mark.parametrize(
    "change",
    [{"kind": "perhaps"}, {"kind": "pending"}, {"places": ("node nowhere",)}, {"places": LOSING}, {"id": None}],
)
def test_a_loss_that_is_named_otherwise_is_not_named(change: dict[str, Any]) -> None:
    result = true_result(PLAN)
    first, *others = result.missing
    named = replace(first, **change)

    judgement = judge(PLAN, replace(result, missing=(named, *others)), true_breaches(PLAN), true_notices(PLAN))

    assert judgement.named == judgement.shown - 1
    assert not judgement.is_right


@pytest.mark.parametrize("fate", ["late", "doubled", "corrupted", "dead", "delivered"])
def test_a_message_that_is_lost_only_by_name_is_invented(fate: Any) -> None:
    result = true_result(PLAN)
    victim = PLAN.of_fate(fate)[0].id
    missing = (*result.missing, MissingName(victim, "lost", (ALERTING_PLACES[0],), "app.out"))

    judgement = judge(PLAN, replace(result, missing=missing), true_breaches(PLAN), true_notices(PLAN))

    assert (judgement.named, judgement.invented) == (judgement.shown, 1)
    assert judgement.problems == (f"1 messages named that are not lost: {victim}",)


def test_a_certain_loss_without_a_name_is_invented() -> None:
    judgement = judged(lost=Interval(len(PLAN.lost) + 2, len(PLAN.lost) + 2))

    assert judgement.invented == 2


def test_an_incident_that_is_missing_or_of_the_other_rule_is_found() -> None:
    expected, (other,) = (
        alerting_rule(PLAN.breaching_place),
        set(map(alerting_rule, ALERTING_PLACES)) - {alerting_rule(PLAN.breaching_place)},
    )
    wrong = [Breaches(other, ((PLAN.start_s, PLAN.start_s),))]

    assert judge(PLAN, true_result(PLAN), [], true_notices(PLAN)).problems == (f"no incident of {expected}",)
    problems = judge(PLAN, true_result(PLAN), [*true_breaches(PLAN), *wrong], true_notices(PLAN)).problems
    assert problems == (f"an incident of {other} without a breach",)


def test_a_minute_is_notified_by_a_later_one_within_minutes() -> None:
    (notice,) = true_notices(PLAN).values()

    def problems(start_s: int) -> tuple[str, ...]:
        return judge(PLAN, true_result(PLAN), true_breaches(PLAN), {start_s: notice}).problems

    assert problems(PLAN.start_s + 2 * MINUTE_S) == ()
    assert problems(PLAN.start_s - MINUTE_S) == problems(PLAN.start_s + 6 * MINUTE_S) == ("no notification",)


def test_a_minute_that_need_not_be_notified_is_compared_with_its_notification_if_it_has_one() -> None:
    notices = {start_s: replace(notice, messages=59) for start_s, notice in true_notices(PLAN).items()}

    def problems(notices: dict[int, Notice]) -> tuple[str, ...]:
        return judge(PLAN, true_result(PLAN), true_breaches(PLAN), notices, is_notified=False).problems

    assert problems({}) == ()
    assert problems(notices) == ("notified messages: 59 reported, 60 in truth",)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"rule": "loss"}, "notified rule: loss reported"),
        ({"messages": 59}, "notified messages: 59 reported"),
        ({"lost": None}, "notified losses: nothing reported"),
        ({"examples": ("m-1",)}, "notified of messages that are not lost: m-1"),
    ],
)
def test_a_notification_that_says_something_else_is_found(change: dict[str, Any], problem: str) -> None:
    notices = {start_s: replace(notice, **change) for start_s, notice in true_notices(PLAN).items()}

    (found,) = judge(PLAN, true_result(PLAN), true_breaches(PLAN), notices).problems

    assert found.startswith(problem)


def test_a_notice_is_read_from_a_webhooks_body() -> None:
    body = {
        "incident": {"rule": "loss/node/store", "pipeline": CANARY, "state": "open"},
        "breach": {"window_start": rfc3339(START_S), "messages": 60, "lost": {"min": 4, "max": 5}},
        "examples": [{"message_id": "m-1", "kind": "lost"}, {"message_id": "m-2", "kind": "perhaps"}],
    }

    notice = Notice.of_body(body)

    assert notice == Notice("loss/node/store", 60, 4, ("m-1",)) == Notice.of_document(notice.document())
    assert window_start_of(body) == START_S
    for broken in ({}, {**body, "breach": None}, {**body, "examples": [None]}):
        with pytest.raises((KeyError, TypeError, AttributeError)):
            Notice.of_body(broken)
