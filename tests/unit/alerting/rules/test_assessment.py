"""What a rule tells of windows that breach and are too few for an incident."""

from __future__ import annotations

import pytest

from alerting.rules.assessment import PendingBreach
from tests.support.alert_views import defined, minute, rule_of, view_of, window

LOSSY = {"l": ("loss", 40), "o": ("ok", 0), "u": ("unknown", 0)}


def begun(
    verdicts: str, rule: str = "loss", alerts: str = "loss: {breaches: 3, of: 5}", **more: float
) -> PendingBreach | None:
    definition = defined(alerts)
    documents = {
        at: window(definition, at, LOSSY[letter][0], lost=LOSSY[letter][1]) for at, letter in enumerate(verdicts)
    }
    return rule_of(definition, rule).assess(view_of(definition, documents, **more)).begun


@pytest.mark.parametrize("verdicts", ["", "o", "oooo", "lll", "llool", "lllooo", "looooo"])
def test_nothing_is_pending_where_nothing_breaches_or_enough_does(verdicts: str) -> None:
    assert begun(verdicts) is None


@pytest.mark.parametrize(
    ("verdicts", "breaches", "first", "last"),
    [("l", 1, 0, 0), ("olo", 1, 1, 1), ("oluol", 2, 1, 4), ("loooool", 1, 6, 6)],
)
def test_breaching_windows_among_the_newest_are_pending(verdicts: str, breaches: int, first: int, last: int) -> None:
    assert begun(verdicts) == PendingBreach(breaches, 3, 5, minute(first), minute(last), 0.04)


def test_a_single_window_that_is_bad_enough_at_once_is_an_incident_and_not_pending() -> None:
    assert begun("l", alerts="loss: {breaches: 3, of: 5, atOnce: 0.03}") is None


def test_windows_of_the_day_before_are_not_pending_any_more() -> None:
    assert begun("ol", now_at=1_500, seen_from_s=minute(60)) is None


def test_the_lag_rule_counts_its_own_windows() -> None:
    definition = defined("lag: [{breaches: 2, of: 3}]")
    slow = window(definition, 0, lags_ms={"snk.out": 9_000.0})
    found = rule_of(definition, "lag").assess(view_of(definition, {0: slow})).begun
    assert found is not None
    assert (found.breaches, found.needed, found.of) == (1, 2, 3)
