"""The demo agrees only where ledger and lagloss say the same, count by count and name by name."""

from __future__ import annotations

from typing import Any

import pytest

from lagloss.demo.compare import differences, is_settled, totals
from lagloss.store import MissingMessage

LINK = "link a->b"


def truth(**changes: Any) -> dict[str, Any]:
    found = {"window_start_s": 60, "messages": 4, "delivered": 2, "filtered": 1, "dead": 0, "lost": 1}
    return {**found, "lost_at": {LINK: ["m1"]}, "unanswered": 0, "unaccounted": [], **changes}


def window(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"window_start_s": 60, "state": "closed", "verdict": "loss", "pending": 0}
    found |= {"messages": 4, "delivered": 2, "filtered": 1, "dead": 0, "lost": {"min": 1, "max": 1}}
    found["nodes"] = [{"name": "b", "lost": {"min": 0, "max": 0}}]
    found["links"] = [{"from": "a", "to": "b", "lost": {"min": 1, "max": 1}}]
    return {**found, **changes}


def missing(message_id: str | None = "m1", kind: str = "lost", place: str = LINK) -> MissingMessage:
    return MissingMessage(7, message_id, kind, [place], "a.out", 0.0)


def test_equal_accounts_do_not_differ() -> None:
    assert differences(truth(), window(), [missing()]) == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"delivered": 3}, "delivered"),
        ({"dead": 1}, "dead"),
        ({"lost": {"min": 0, "max": 1}}, "lost"),
        ({"pending": 1}, "pending"),
        ({"links": []}, f"lost at {LINK}"),
        ({"nodes": [{"name": "b", "lost": {"min": 1, "max": 1}}]}, "lost at node b"),
        ({"state": "open"}, "state"),
    ],
)
def test_a_window_that_says_otherwise_differs_there(changes: dict[str, Any], what: str) -> None:
    assert [found.what for found in differences(truth(), window(**changes), [missing()])] == [what]


@pytest.mark.parametrize(
    "names", [[], [missing("m2")], [missing(None)], [missing(place="node b")], [missing(kind="perhaps")]]
)
def test_the_right_count_with_the_wrong_names_differs(names: list[MissingMessage]) -> None:
    assert differences(truth(), window(), names)


def test_what_the_pipeline_itself_lost_is_a_difference() -> None:
    found = differences(truth(unaccounted=["m9"]), window(), [missing()])
    assert [difference.what for difference in found] == ["unaccounted"]


def test_events_nobody_answered_for_may_or_may_not_have_come_in() -> None:
    assert differences(truth(unanswered=1), window(messages=5), [missing()]) == []
    assert differences(truth(unanswered=1), window(messages=6), [missing()])


def test_a_window_only_one_of_them_knows_differs() -> None:
    assert differences(truth(), None, [])
    assert differences(None, window(), [])
    assert differences(None, window(messages=0), []) == []


def test_a_window_with_something_pending_or_unknown_is_not_settled() -> None:
    assert is_settled(window())
    assert not is_settled(window(state="open", pending=None, verdict=None))
    assert not is_settled(window(pending=1))
    assert not is_settled(window(verdict="unknown"))


def test_totals_add_up_over_windows() -> None:
    found = totals([truth(), truth()], [window(), window(), window(state="open", lost=None)])
    assert found["injected"] == {"lost": 2, "lost_at": {LINK: 2}}
    assert found["measured"] == {"lost": {"min": 2, "max": 2}, "lost_at": {LINK: {"min": 2, "max": 2}}}
