"""What a rule tells of windows that breach and are too few for an incident."""

from __future__ import annotations

import pytest

from alerting.rules.assessment import PendingBreach
from tests.support.alert_views import defined, minute, rule_of, view_of, window

LAGS = {"l": {"snk.out": 9_000.0}, "o": {"snk.out": 10.0}, "u": {}}


def begun(letters: str, alerts: str = "lag: {breaches: 3, of: 5}", **more: float) -> PendingBreach | None:
    """Of windows by letters: l for late, o for ok, u for unknown."""
    definition = defined(alerts)
    documents = {at: window(definition, at, lags_ms=LAGS[letter]) for at, letter in enumerate(letters)}
    return rule_of(definition, "lag").assess(view_of(definition, documents, **more)).begun


@pytest.mark.parametrize("verdicts", ["", "o", "oooo", "lll", "llool", "lllooo", "looooo"])
def test_nothing_is_pending_where_nothing_breaches_or_enough_does(verdicts: str) -> None:
    assert begun(verdicts) is None


@pytest.mark.parametrize(
    ("verdicts", "breaches", "first", "last"),
    [("l", 1, 0, 0), ("olo", 1, 1, 1), ("oluol", 2, 1, 4), ("loooool", 1, 6, 6)],
)
def test_breaching_windows_among_the_newest_are_pending(verdicts: str, breaches: int, first: int, last: int) -> None:
    assert begun(verdicts) == PendingBreach(breaches, 3, 5, minute(first), minute(last), 9_000.0)


def test_a_lossy_window_is_an_incident_at_once_and_never_pending() -> None:
    definition = defined("loss: {page: {breaches: 3, of: 5}}")
    lossy = view_of(definition, {0: window(definition, 0, "loss", lost=40)})
    found = rule_of(definition, "loss").assess(lossy)
    assert (found.begun, dict(found.breaches), set(found.tickets)) == (None, {minute(0): 0.04}, {minute(0)})


def test_windows_of_the_day_before_are_not_pending_any_more() -> None:
    assert begun("ol", now_at=1_500, seen_from_s=minute(60)) is None
