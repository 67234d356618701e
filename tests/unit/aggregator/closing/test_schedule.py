"""The agenda: when a window is closed, and closed again."""

from __future__ import annotations

from aggregator.closing.schedule import SETTLE_MS, WindowEntry, WindowSchedule

W = 1_780_000_020
END_MS = (W + 60) * 1000
DUE_MS = END_MS + 60_000


def agenda(*, closed: bool = False) -> WindowSchedule:
    found = WindowSchedule(grace_ms=60_000)
    found.tally_changed(W, basis=1, changed_at=END_MS)
    if closed:
        found.closed(W, basis=1, deadline=None)
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
    found = WindowSchedule(grace_ms=60_000)
    found.tally_changed(W, basis=1, changed_at=DUE_MS + 600_000)
    assert list(found.to_close(DUE_MS + 600_000, DUE_MS + 604_999)) == [W + 60 * at for at in range(1, 11)]
    assert W in list(found.to_close(DUE_MS + 600_000, DUE_MS + 605_000))


def test_a_dirty_window_waits_until_its_tallies_stand_still() -> None:
    found = agenda(closed=True)
    found.tally_changed(W, basis=2, changed_at=DUE_MS + 1_000)
    assert list(found.to_close(DUE_MS, DUE_MS + 5_999)) == []
    assert list(found.to_close(DUE_MS, DUE_MS + 6_000)) == [W]


def test_a_window_that_never_stands_still_is_closed_after_thirty_seconds() -> None:
    found = agenda(closed=True)
    for second in range(30):
        found.tally_changed(W, basis=2 + second, changed_at=DUE_MS + 1_000 * second)
        assert list(found.to_close(DUE_MS, DUE_MS + 1_000 * second)) == []
    assert list(found.to_close(DUE_MS, DUE_MS + 30_000)) == [W]


def waits(found: WindowSchedule, changed_at: int) -> int:
    """After how long (ms) a window is closed again that changes now, and then no more."""
    found.tally_changed(W, basis=changed_at, changed_at=changed_at)
    wait = next(wait for wait in range(0, 1_000_000, 1_000) if list(found.to_close(DUE_MS, changed_at + wait)))
    found.closed(W, basis=changed_at, deadline=None)
    return wait


def test_waiting_doubles_while_changes_go_on_and_starts_again_after_a_calm_minute() -> None:
    found, at = agenda(closed=True), DUE_MS
    for expected in (5, 10, 20, 40):
        assert waits(found, at) == expected * 1_000
        at += expected * 1_000 + 10_000
    assert waits(found, at + 60_000) == SETTLE_MS


def test_a_tally_known_to_the_closing_does_not_make_it_dirty() -> None:
    found = agenda(closed=True)
    found.tally_changed(W, basis=1, changed_at=DUE_MS)
    assert list(found.to_close(DUE_MS, DUE_MS + 60_000)) == []


def test_a_sealed_window_is_never_closed_again() -> None:
    found = agenda(closed=True)
    found.tally_changed(W, basis=2, changed_at=DUE_MS)
    found.sealed(W)
    assert list(found.to_close(DUE_MS, DUE_MS + 60_000)) == []


def test_what_is_done_is_forgotten_and_known_again_from_the_database() -> None:
    found = WindowSchedule(grace_ms=60_000)
    for minute in range(100):
        found.tally_changed(W + 60 * minute, basis=1, changed_at=END_MS)
        found.closed(W + 60 * minute, basis=1, deadline=None)
    all_due_ms = DUE_MS + 99 * 60_000
    assert list(found.to_close(all_due_ms, all_due_ms)) == []
    assert found.size == 0
    found.tally_changed(W, basis=7, changed_at=DUE_MS, known=WindowEntry(basis=9))
    assert list(found.to_close(DUE_MS, DUE_MS + 60_000)) == []
    found.tally_changed(W, basis=10, changed_at=DUE_MS, known=WindowEntry(basis=9))
    assert list(found.to_close(DUE_MS, DUE_MS + 60_000)) == [W]


def test_after_a_restart_only_what_was_left_to_do_is_on_the_agenda() -> None:
    found = WindowSchedule(grace_ms=60_000)
    found.resume(W - 6_000, W + 60)
    found.put(W - 120, WindowEntry())
    assert list(found.to_close(DUE_MS + 60_000, DUE_MS + 60_000)) == [W - 120, W + 60]


def test_a_deadline_brings_a_window_back_to_be_judged() -> None:
    found = agenda()
    found.closed(W, basis=1, deadline=DUE_MS + 5_000)
    assert list(found.to_judge(DUE_MS + 4_999)) == []
    assert list(found.to_judge(DUE_MS + 5_000)) == [W]


def test_a_dirty_window_is_closed_again_and_not_judged_before() -> None:
    found = agenda()
    found.closed(W, basis=1, deadline=DUE_MS)
    found.tally_changed(W, basis=2, changed_at=DUE_MS)
    assert list(found.to_judge(DUE_MS + 1_000)) == []
    assert list(found.to_close(DUE_MS, DUE_MS + SETTLE_MS)) == [W]


def test_a_window_that_is_over_may_be_closed_early_and_is_tried_less_and_less_often() -> None:
    found = agenda()
    assert list(found.maybe_early(END_MS - 1, END_MS - 1)) == []
    tries = []
    for now_ms in range(END_MS, DUE_MS, 250):
        for start in found.maybe_early(now_ms, now_ms):
            tries.append(now_ms)
            found.tried_early(start, now_ms, read=False)
    assert tries[0] == END_MS
    assert 10 < len(tries) < 40


def test_a_window_that_was_closed_early_is_not_closed_again_when_it_is_due() -> None:
    found = agenda()
    list(found.to_close(END_MS, END_MS))
    found.closed(W, basis=2, deadline=None)
    for now_ms in range(END_MS, DUE_MS + 5_000, 1_000):
        assert list(found.to_close(now_ms, now_ms)) == []
    assert found.size == 0
