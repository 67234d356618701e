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
from canary.witness import Breaches, Judgement, Missing, Notice, Result, judge, window_start_of
from lagloss_server.model.canary import ALERTING_PLACES, APP, CANARY, RELAY, STORE, alerting_rule
from lagloss_server.model.window import (
    NO_LAGS,
    NO_PERCENTILES,
    CheckpointCounts,
    Interval,
    LinkCounts,
    LossRatio,
    NodeCounts,
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
    lost, total = len(plan.lost), MESSAGES - plan.dead
    node = {place: Interval(plan.lost_at[place], plan.lost_at[place]) for place in LOSING}
    none = Interval(0, 0)
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
        lost=Interval(lost, lost),
        loss_ratio=LossRatio(lost / MESSAGES, lost / MESSAGES),
        on_time_share=plan.on_time_share,
        on_time_of=total,
        e2e_lag_ms=NO_LAGS,
        checkpoints=tuple(
            CheckpointCounts(name, MESSAGES, MESSAGES, plan.doubled_at[name], 0, NO_PERCENTILES)
            for name in (f"{APP}.in", f"{RELAY}.in", f"{RELAY}.out", f"{STORE}.in", f"{STORE}.out")
        ),
        nodes=tuple(
            NodeCounts(name, None, None, None, NO_PERCENTILES, node.get(f"node {name}", none), True)
            for name in (APP, RELAY, STORE)
        ),
        links=tuple(
            LinkCounts(
                source,
                target,
                None,
                NO_PERCENTILES,
                node[f"link {source}->{target}"],
                plan.corrupted if f"link {source}->{target}" == CORRUPTING else None,
                None,
            )
            for source, target in ((APP, RELAY), (RELAY, STORE))
        ),
        destinations=(),
        reasons_by_node=None,
        staleness_ms={},
        crashes=(),
        unknown_checkpoints=(),
    )


def true_result(plan: MinutePlan) -> Result:
    return Result(1, true_window(plan), tuple(Missing(name, "lost", (place,)) for name, place in plan.lost.items()))


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
        ("links", lambda part: structs.replace(part, corrupted=PLAN.corrupted + 1), "corrupted:"),
    ],
)
def test_a_wrong_number_of_a_place_is_found(part: str, change: Callable[[Any], Any], problem: str) -> None:
    first, *others = getattr(true_window(PLAN), part)

    (found,) = judged(**{part: (change(first), *others)}).problems

    assert found.startswith(problem)


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
    missing = (*result.missing, Missing(victim, "lost", (ALERTING_PLACES[0],)))

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
    assert problems == (f"an incident of {other} that is none",)


def test_a_minute_is_notified_by_a_later_one_within_minutes() -> None:
    (notice,) = true_notices(PLAN).values()

    def problems(start_s: int) -> tuple[str, ...]:
        return judge(PLAN, true_result(PLAN), true_breaches(PLAN), {start_s: notice}).problems

    assert problems(PLAN.start_s + 2 * MINUTE_S) == ()
    assert problems(PLAN.start_s - MINUTE_S) == problems(PLAN.start_s + 6 * MINUTE_S) == ("no notification",)


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
