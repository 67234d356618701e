"""Attainment and error budgets: what is certain, what cannot be ruled out, and what is not known."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import cache
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from lagloss_server.model.definition import Definition, StoredPipeline, parse_definition
from lagloss_server.model.window import Interval, LossRatio
from lagloss_server.sums.error_budget import (
    FOREVER_S,
    Budget,
    BudgetShare,
    Target,
    budget_of,
    judge,
    overall,
    target_at,
    targets_of,
    targets_within,
)
from lagloss_server.sums.rollup import Rollup
from tests.support.window_documents import CHAIN

HOUR_S = 3_600


@cache
def definition(loss: float = 0.01, percentile: float = 95) -> Definition:
    return parse_definition(CHAIN.replace("max: 0.01", f"max: {loss}").replace("95", str(percentile)))


def target(loss: float = 0.01, percentile: float = 95) -> Target:
    return Target.of(1, definition(loss, percentile), 0, HOUR_S)


def status(total: Rollup, of: Target, missing: int = 0) -> str:
    return judge("loss", [(total, of)], missing).status


def loss(low: int, high: int, messages: int = 1_000, unknown: int = 0, pending: int = 0) -> Rollup:
    verdicts = {"ok": 60 - unknown, "unknown": unknown}
    return Rollup(windows=60, verdicts=verdicts, messages=messages, lost=Interval(low, high), pending=pending)


def timed(*, late: int = 0, lost: tuple[int, int] = (0, 0), pending: int = 0) -> Rollup:
    """1,000 messages that had to be on time."""
    delivered = 1_000 - lost[1] - pending
    return structs.replace(
        loss(*lost, pending=pending), delivered=delivered, on_time=delivered - late, on_time_of=1_000
    )


def test_what_is_lost_for_certain_misses_a_target_and_what_may_be_lost_leaves_it_unproven() -> None:
    assert status(loss(11, 11), target()) == "missed"
    assert status(loss(10, 10), target()) == "met"
    assert status(loss(3, 11), target()) == "unproven"
    assert status(loss(3, 5, pending=6), target()) == "unproven"
    assert status(loss(3, 5, pending=5), target()) == "met"
    assert status(Rollup(windows=60, verdicts={"idle": 60}), target()) == "none"


def test_minutes_that_are_not_known_never_count_as_good() -> None:
    # 1,000 messages in 60 minutes: a minute has 17 in the mean, the budget has 20
    assert status(loss(0, 0), target(0.02)) == "met"
    assert status(loss(0, 0, unknown=1), target(0.02)) == "met"
    assert status(loss(0, 0, unknown=2), target(0.02)) == "unproven"
    assert status(loss(0, 0), target(0.02), missing=2) == "unproven"
    assert status(loss(21, 21, unknown=30), target(0.02)) == "missed"


def test_no_messages_are_nothing_to_judge_only_where_all_minutes_are_known() -> None:
    blind = Rollup(windows=60, verdicts={"unknown": 60})
    assert status(blind, target()) == "unproven"
    assert status(Rollup(), target(), missing=60) == "unproven"
    assert status(Rollup(windows=60, verdicts={"idle": 60}), target(), missing=1) == "unproven"


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 3), st.integers(0, 3))
def test_what_is_spent_of_a_budget_says_the_same_as_the_status(
    certain: int, perhaps: int, unknown: int, missing: int
) -> None:
    total = loss(certain, certain + perhaps, unknown=unknown)
    one = judge("loss", [(total, target(0.02))], missing)
    assert one.budget is not None
    spent, left = one.budget.spent, one.budget.left
    assert spent is not None
    assert left == BudgetShare(1 - spent.max, 1 - spent.min)
    assert one.status == ("missed" if spent.min > 1 else "met" if spent.max <= 1 else "unproven")
    assert one.budget.used.max - one.bad.max == -(-1_000 * (unknown + missing) // 60)


@pytest.mark.parametrize(("share", "messages"), [(0.29, 100), (0.07, 100), (0.001, 3_000)])
def test_a_budget_is_exact_however_floats_round(share: float, messages: int) -> None:
    allowed = round(share * messages)
    assert status(loss(allowed, allowed, messages), target(share)) == "met"
    assert status(loss(allowed + 1, allowed + 1, messages), target(share)) == "missed"


def test_a_target_of_all_messages_leaves_no_budget() -> None:
    one = judge("loss", [(loss(1, 1), target(0))], 0)
    assert (one.status, one.budget) == ("missed", Budget(0, Interval(1, 1)))
    nothing = {"min": None, "max": None}
    assert one.document()["budget"] == {"messages": 0, "spent": nothing, "left": nothing}


def test_what_is_late_spends_the_budget_of_the_lag() -> None:
    total = timed(late=40)
    one = judge("on-time", [(total, target())], 0)
    assert one.budget is not None
    assert (one.status, one.bad.min, one.allowed, one.budget.spent) == ("met", 40, 50, BudgetShare(0.8, 0.8))
    assert one.good == LossRatio(0.96, 0.96)
    assert one.target == 0.95


def test_what_may_have_been_on_time_all_the_same_is_not_late_for_certain() -> None:
    def fared(total: Rollup) -> tuple[str, Interval]:
        one = judge("on-time", [(total, target())], 0)
        return one.status, one.bad

    assert fared(timed(late=51)) == ("missed", Interval(51, 51))
    assert fared(timed(lost=(51, 51))) == ("missed", Interval(51, 51))
    assert fared(timed(lost=(0, 51))) == ("unproven", Interval(0, 51))
    assert fared(timed(pending=51)) == ("unproven", Interval(0, 51))
    assert fared(timed(late=20, lost=(10, 15), pending=15)) == ("met", Interval(30, 50))
    assert fared(timed(late=20, lost=(10, 15), pending=16)) == ("unproven", Interval(30, 51))
    assert fared(timed(late=45, lost=(6, 9))) == ("missed", Interval(51, 54))


FATES = ("on time", "late", "lost", "perhaps", "pending", "filtered", "dead")


@given(st.lists(st.sampled_from(FATES), max_size=40), st.sampled_from([90, 95, 99]), st.randoms(use_true_random=False))
def test_whatever_became_of_what_is_not_certain_the_status_was_right(
    fates: list[str], percentile: float, luck: Random
) -> None:
    counted = Counter(fates)
    total = Rollup(
        windows=1,
        verdicts={"ok": 1},
        messages=len(fates),
        delivered=counted["on time"] + counted["late"],
        filtered=counted["filtered"],
        dead=counted["dead"],
        pending=counted["pending"],
        lost=Interval(counted["lost"], counted["lost"] + counted["perhaps"]),
        on_time=counted["on time"],
        on_time_of=len(fates) - counted["filtered"] - counted["dead"],
    )
    one = judge("on-time", [(total, target(percentile=percentile))], 0)
    ends = [luck.choice(FATES) if fate in ("perhaps", "pending") else fate for fate in fates]
    kept = [fate for fate in ends if fate not in ("filtered", "dead")]
    bad = sum(fate != "on time" for fate in kept)
    was_kept = 100 * bad <= (100 - percentile) * len(kept)
    if one.status in ("met", "missed"):
        assert was_kept == (one.status == "met")
    assert one.bad.max - one.bad.min == counted["perhaps"] + counted["pending"]


def test_each_version_is_judged_by_its_own_target() -> None:
    parts = [
        (loss(10, 10), target(0.01)),
        (loss(90, 90), target(0.1)),
    ]
    one = judge("loss", parts, 0)
    assert (one.status, one.allowed, one.target) == ("met", 110, 1 - 110 / 2_000)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 5_000)), min_size=1, max_size=8))
def test_a_whole_spends_what_its_parts_spend(found: list[tuple[int, int, int]]) -> None:
    parts = [(loss(low, low + more, of), target(0.03)) for low, more, of in found]
    whole = judge("loss", parts, 0)
    each = [judge("loss", [part], 0) for part in parts]
    assert whole.bad.min == sum(one.bad.min for one in each)
    assert whole.bad.max == sum(one.bad.max for one in each)
    assert whole.allowed == pytest.approx(sum(one.allowed for one in each))
    assert whole.allowed == float(sum(Fraction(3, 100) * of for _, _, of in found))


def test_the_worst_objective_says_how_all_fared() -> None:
    def of(*statuses: str) -> str:
        made = [judge("loss", [(loss(*_BY_STATUS[name]), target())], 0) for name in statuses]
        return overall(made)

    assert of("met", "missed") == "missed"
    assert of("unproven", "met") == "unproven"
    assert of("none", "met") == "met"
    assert of("none", "none") == "none"


_BY_STATUS = {"met": (0, 0), "missed": (50, 50), "unproven": (0, 50), "none": (0, 0, 0)}


def test_versions_hold_from_the_first_window_that_begins_after_them_and_the_first_before_it_too() -> None:
    versions = [
        StoredPipeline("chain", number, at_ms, definition(loss=share))
        for number, at_ms, share in [
            (1, 600_000, 0.01),
            (2, 1_000_001, 0.01),
            (3, 3_000_000, 0.02),
            (4, 3_000_500, 0.05),
        ]
    ]
    targets = targets_of(versions)
    assert [(one.version, one.loss_max) for one in targets] == [(1, 0.01), (3, 0.02), (4, 0.05)]
    assert target_at(targets, 0).loss_max == 0.01
    assert target_at(targets, 2_940).loss_max == 0.01
    assert target_at(targets, 3_060).loss_max == 0.05
    within = targets_within(targets, 600, 7_200)
    assert (within[0].from_s, within[-1].to_s) == (600, 7_200)
    assert all(early.to_s == late.from_s for early, late in pairwise(within))


def test_a_version_that_no_window_began_in_leaves_no_trace() -> None:
    versions = [
        StoredPipeline("chain", number, at_ms, definition(loss=share))
        for number, at_ms, share in [(1, 0, 0.01), (2, 100_000, 0.5), (3, 110_000, 0.01)]
    ]
    [only] = targets_of(versions)
    assert (only.version, only.to_s) == (1, FOREVER_S)


def test_alerts_and_reports_speak_of_one_budget() -> None:
    own = parse_definition(CHAIN + "  alerts: {onTime: {target: 0.9}}\n")
    assert budget_of(own, "on-time") == pytest.approx(0.1)
    assert Target.of(1, own, 0, 60).budget("on-time") == Fraction(1, 10)
    assert budget_of(definition(percentile=99), "on-time") == pytest.approx(0.01)
