"""The loss rule, without a database."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from alerting.rules import Change, JudgedWindow, OpenIncident, judge

ID = uuid.UUID(int=7)


def at(minute: int, verdict: str, ratio: float = 0.0, history: bool = False) -> JudgedWindow:
    return JudgedWindow(minute * 60, verdict, ratio, history)


def incident(breaches: dict[int, float]) -> OpenIncident:
    by_start = {minute * 60: ratio for minute, ratio in breaches.items()}
    return OpenIncident(ID, max(by_start.values()), by_start)


def test_a_lossy_window_opens_an_incident() -> None:
    assert judge([at(1, "ok"), at(2, "loss", 0.3)], None) == Change("opened", {120: 0.3}, 0.3)


def test_nothing_lossy_opens_nothing() -> None:
    assert judge([at(1, "ok"), at(2, "unknown"), at(3, "idle")], None) is None


def test_a_second_lossy_window_updates_the_open_incident_with_the_worst_of_both() -> None:
    change = judge([at(2, "loss", 0.3), at(3, "loss", 0.1)], incident({2: 0.3}))
    assert change == Change("updated", {120: 0.3, 180: 0.1}, 0.3)


def test_an_incident_that_is_up_to_date_is_left_alone() -> None:
    assert judge([at(2, "loss", 0.3), at(3, "unknown")], incident({2: 0.3})) is None


def test_a_good_window_after_the_last_lossy_one_resolves() -> None:
    for verdict in ("ok", "idle"):
        change = judge([at(2, "loss", 0.3), at(3, "unknown"), at(4, verdict)], incident({2: 0.3}))
        assert change == Change("resolved", {120: 0.3}, 0.3, "recovered")


def test_a_good_window_before_the_last_lossy_one_does_not_resolve() -> None:
    windows = [at(2, "loss", 0.3), at(3, "ok"), at(4, "loss", 0.2)]
    assert judge(windows, incident({2: 0.3, 4: 0.2})) is None


def test_a_window_revised_from_loss_to_ok_resolves_when_none_is_left() -> None:
    change = judge([at(2, "ok")], incident({2: 0.3}))
    assert change == Change("resolved", {120: 0.3}, 0.3, "revised")


def test_a_window_revised_from_loss_to_unknown_leaves_no_breach_either() -> None:
    change = judge([at(2, "unknown")], incident({2: 0.3}))
    assert change is not None
    assert change.why == "revised"


def test_a_revision_of_one_of_two_lossy_windows_updates() -> None:
    change = judge([at(2, "ok"), at(3, "loss", 0.1)], incident({2: 0.3, 3: 0.1}))
    assert change == Change("updated", {180: 0.1}, 0.1)


def test_a_breach_older_than_the_windows_looked_at_stays() -> None:
    assert judge([at(5, "unknown")], incident({2: 0.3})) is None
    change = judge([at(5, "ok")], incident({2: 0.3}))
    assert change == Change("resolved", {120: 0.3}, 0.3, "recovered")


def test_history_windows_neither_open_nor_resolve() -> None:
    assert judge([at(1, "loss", 0.9, history=True)], None) is None
    assert judge([at(2, "loss", 0.3), at(3, "ok", history=True)], incident({2: 0.3})) is None


def test_a_breach_of_a_resolved_incident_opens_nothing_again_but_a_late_one_does() -> None:
    assert judge([at(2, "loss", 0.3), at(4, "ok")], None, handled={120}) is None
    change = judge([at(2, "loss", 0.3), at(3, "loss", 0.2), at(4, "ok")], None, handled={120})
    assert change == Change("opened", {180: 0.2}, 0.2)


def test_a_breach_that_is_over_before_anybody_looked_opens_and_then_resolves() -> None:
    windows = [at(2, "loss", 0.3), at(3, "ok")]
    opened = judge(windows, None)
    assert opened is not None
    assert opened.kind == "opened"
    resolved = judge(windows, OpenIncident(ID, opened.worst_ratio, opened.breaches))
    assert resolved is not None
    assert resolved.kind == "resolved"


@given(
    verdicts=st.lists(st.sampled_from(["ok", "loss", "unknown", "idle"]), max_size=12),
    history=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_it_comes_to_rest_open_exactly_if_nothing_good_follows_the_last_loss(
    verdicts: list[str], history: list[bool]
) -> None:
    windows = [
        at(minute, verdict, 0.2 if verdict == "loss" else 0.0, past)
        for minute, (verdict, past) in enumerate(zip(verdicts, history, strict=False))
    ]
    current: OpenIncident | None = None
    handled: set[int] = set()
    for _ in range(3):
        change = judge(windows, current, handled)
        if change is None:
            break
        if change.kind == "resolved":
            current, handled = None, set(change.breaches)
        else:
            current = OpenIncident(ID, change.worst_ratio, change.breaches)
    assert judge(windows, current, handled) is None
    after_last_loss = False
    for window in windows:
        if not window.history and window.verdict == "loss":
            after_last_loss = True
        elif not window.history and window.verdict in ("ok", "idle"):
            after_last_loss = False
    assert (current is not None) == after_last_loss
