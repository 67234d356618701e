"""The agenda: when a window is closed, and closed again."""

from __future__ import annotations

from aggregator.agenda import SETTLE_MS, Agenda

W = 1_780_000_020
END_MS = (W + 60) * 1000
DUE_MS = END_MS + 60_000


def agenda(*, closed_at: int | None = None, settle_ms: int = SETTLE_MS) -> Agenda:
    found = Agenda(grace_ms=60_000)
    found.tally_changed(W, basis=1, changed_at=END_MS)
    if closed_at is not None:
        found.closed(W, basis=1, settle_ms=settle_ms, deadline=None)
    return found


def test_a_window_is_due_once_its_grace_has_passed_for_the_reports() -> None:
    assert list(agenda().to_close(DUE_MS - 1, DUE_MS + 10_000)) == []
    assert list(agenda().to_close(DUE_MS, DUE_MS)) == [W]


def test_every_minute_between_first_tally_and_newest_due_has_its_window() -> None:
    assert list(agenda().to_close(DUE_MS + 180_000, DUE_MS)) == [W, W + 60, W + 120, W + 180]


def test_minutes_before_an_older_tally_are_listed_too() -> None:
    found = agenda()
    list(found.to_close(DUE_MS, DUE_MS))
    found.tally_changed(W - 180, basis=2, changed_at=DUE_MS)
    assert list(found.to_close(DUE_MS, DUE_MS + SETTLE_MS)) == [W - 180, W - 120, W - 60, W]


def test_a_window_filled_in_after_it_was_due_waits_until_its_tallies_stand_still() -> None:
    found = Agenda(grace_ms=60_000)
    found.tally_changed(W, basis=1, changed_at=DUE_MS + 600_000)
    assert list(found.to_close(DUE_MS + 600_000, DUE_MS + 604_999)) == [W + 60 * at for at in range(1, 11)]
    assert W in list(found.to_close(DUE_MS + 600_000, DUE_MS + 605_000))


def test_a_dirty_window_waits_until_its_tallies_stand_still() -> None:
    found = agenda(closed_at=DUE_MS)
    found.tally_changed(W, basis=2, changed_at=DUE_MS + 1_000)
    assert list(found.to_close(DUE_MS, DUE_MS + 5_999)) == []
    assert list(found.to_close(DUE_MS, DUE_MS + 6_000)) == [W]


def test_a_window_that_never_stands_still_is_closed_after_thirty_seconds() -> None:
    found = agenda(closed_at=DUE_MS)
    for second in range(30):
        found.tally_changed(W, basis=2 + second, changed_at=DUE_MS + 1_000 * second)
        assert list(found.to_close(DUE_MS, DUE_MS + 1_000 * second)) == []
    assert list(found.to_close(DUE_MS, DUE_MS + 30_000)) == [W]


def test_waiting_doubles_while_changes_go_on_and_starts_again_after_a_calm_minute() -> None:
    found = agenda(closed_at=DUE_MS)
    found.tally_changed(W, basis=2, changed_at=DUE_MS)
    assert found.entry(W).next_settle_ms() == SETTLE_MS
    found.closed(W, basis=2, settle_ms=SETTLE_MS, deadline=None)
    found.tally_changed(W, basis=3, changed_at=DUE_MS + 20_000)
    assert found.entry(W).next_settle_ms() == 2 * SETTLE_MS
    found.closed(W, basis=3, settle_ms=2 * SETTLE_MS, deadline=None)
    found.tally_changed(W, basis=4, changed_at=DUE_MS + 90_000)
    assert found.entry(W).next_settle_ms() == SETTLE_MS


def test_a_tally_known_to_the_closing_does_not_make_it_dirty() -> None:
    found = agenda(closed_at=DUE_MS)
    found.tally_changed(W, basis=1, changed_at=DUE_MS)
    assert list(found.to_close(DUE_MS, DUE_MS + 60_000)) == []


def test_a_sealed_window_is_never_closed_again() -> None:
    found = agenda(closed_at=DUE_MS)
    found.sealed(W)
    found.tally_changed(W, basis=2, changed_at=DUE_MS)
    assert list(found.to_close(DUE_MS, DUE_MS + 60_000)) == []


def test_a_deadline_brings_a_window_back_to_be_judged() -> None:
    found = agenda()
    found.closed(W, basis=1, settle_ms=SETTLE_MS, deadline=DUE_MS + 5_000)
    assert list(found.to_judge(DUE_MS + 4_999)) == []
    assert list(found.to_judge(DUE_MS + 5_000)) == [W]


def test_a_window_that_is_over_may_be_closed_early() -> None:
    assert list(agenda().maybe_early(END_MS, END_MS - 1)) == []
    assert list(agenda().maybe_early(END_MS, END_MS)) == [W]
