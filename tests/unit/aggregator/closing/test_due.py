"""What is due in a turn, why, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.closing import due
from aggregator.closing.closer import Closer, Turn
from aggregator.closing.due import Due, DueWindows, item_of
from aggregator.closing.schedule import WindowSchedule

W = 1_780_000_020
GRACE_MS = 60_000
DUE_MS = (W + 60) * 1_000 + GRACE_MS


class Failures(set[Any]):
    """What is set aside, all of it to be tried again."""

    def due(self, _kind: str, _now_ms: int) -> list[Any]:
        return sorted(self)


def schedule(*starts: int) -> WindowSchedule:
    """A schedule with a tally in each of these windows."""
    made = WindowSchedule(GRACE_MS)
    for start in starts:
        made.tally_changed(start, basis=1, changed_at=(start + 60) * 1_000)
    return made


class Sources:
    """Schedules, emitters that fall silent, and what was set aside, without servers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **schedules: WindowSchedule) -> None:
        self.failures = Failures()
        self.heavy: set[str] = set()
        self.silent: set[tuple[str, int]] = set()
        self.waiting: set[tuple[str, int]] = set()
        self.watch = SimpleNamespace(schedules=schedules, deferred=())
        monkeypatch.setattr(due, "crowded", lambda _connection, names, _most: self.heavy & names)
        monkeypatch.setattr(due.SilenceWatch, "touched", lambda *_: self.take_silent())
        engine: Any = SimpleNamespace(connect=nullcontext)
        watch: Any = self.watch
        failures: Any = self.failures
        self.windows = DueWindows(engine, watch, failures, lambda window: window in self.waiting)

    def take_silent(self) -> set[tuple[str, int]]:
        taken, self.silent = self.silent, set()
        return taken

    def batches(self, now_ms: int = DUE_MS) -> list[Sequence[Due]]:
        return [batch for batch in self.windows.by_urgency(now_ms, now_ms) if batch]


def windows_of(batches: Iterable[Sequence[Due]]) -> list[tuple[str, int]]:
    return [item.window for batch in batches for item in batch]


def test_each_pipeline_has_its_first_window_before_any_has_its_second(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = Sources(monkeypatch, busy=schedule(W, W - 60, W - 120), small=schedule(W))
    assert windows_of(sources.batches()) == [("busy", W - 120), ("small", W), ("busy", W - 60), ("busy", W)]
    monkeypatch.setattr(due, "WINDOWS_AT_ONCE", 2)
    assert windows_of(sources.batches()) == [("busy", W - 120), ("small", W)]


def test_pipelines_with_many_emitters_come_after_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = Sources(monkeypatch, heavy=schedule(W), light=schedule(W))
    sources.heavy = {"heavy"}
    assert sources.batches() == [[Due("light", W, "due")], [Due("heavy", W, "due")]]


def test_kinds_have_their_turn_by_urgency(monkeypatch: pytest.MonkeyPatch) -> None:
    changed, deadline = schedule(W), schedule(W)
    for agenda in (changed, deadline):
        agenda.closed(W, basis=1, deadline=DUE_MS)
    changed.tally_changed(W, basis=2, changed_at=DUE_MS - 30_000)
    late = {"deadline": deadline, "changed": changed, "due": schedule(W), "early": schedule(W + 60)}
    sources = Sources(monkeypatch, **late, quiet=schedule(), broken=schedule())
    sources.silent = {("quiet", W), ("deadline", W), ("gone", W)}
    sources.failures.add(item_of(("broken", W)))
    assert sources.batches() == [
        [Due("changed", W, "changed"), Due("due", W, "due")],
        [Due("early", W + 60, "early")],
        [Due("broken", W, "retry")],
        [Due("deadline", W, "silent"), Due("quiet", W, "silent")],
    ]


def test_what_one_batch_makes_due_is_in_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    agenda = schedule(W)
    sources = Sources(monkeypatch, p=agenda)
    seen = []
    for batch in sources.windows.by_urgency(DUE_MS, DUE_MS):
        seen += batch
        for item in batch:
            agenda.closed(item.start_s, basis=1, deadline=DUE_MS if item.why == "due" else None)
    assert seen == [Due("p", W, "due"), Due("p", W, "deadline")]


def test_windows_that_silence_touched_are_left_for_a_later_turn_and_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = Sources(monkeypatch, p=schedule())
    sources.silent = {("p", W), ("p", W + 60), ("p", W + 120)}
    monkeypatch.setattr(due, "WINDOWS_AT_ONCE", 2)
    assert windows_of(sources.batches()) == [("p", W), ("p", W + 60)]
    assert windows_of(sources.batches()) == [("p", W + 120)]
    assert sources.batches() == []


def test_windows_that_silence_touched_and_a_turn_did_not_get_to_are_due_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agenda = schedule(W)
    sources = Sources(monkeypatch, p=agenda)
    sources.silent = {("p", W - 60), ("p", W - 120), ("p", W - 180)}
    taken: list[list[Due]] = []

    def close_one(items: Sequence[Due], turn: Turn) -> None:
        """Close one window, as if the time of the turn were over then."""
        if items:
            taken.append(list(items))
            turn.remaining.update(item.window for item in items[1:])

    closer: Any = object.__new__(Closer)
    closer._watch, closer.reads = SimpleNamespace(refresh=lambda: None), SimpleNamespace(read_on=lambda: None)
    closer._due, closer._close = sources.windows, close_one
    agenda.closed(W, basis=1, deadline=None)
    for _ in range(5):
        closer.tick(DUE_MS, DUE_MS)
    starts = [W - 180, W - 120, W - 60]
    assert [[item.start_s for item in batch] for batch in taken] == [starts, starts[1:], starts[2:]]


def test_windows_that_silence_touched_wait_while_their_pipeline_is_deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = Sources(monkeypatch)
    sources.watch.deferred = ("p",)
    sources.silent = {("p", W), ("gone", W)}
    assert sources.batches() == []
    sources.watch.deferred, sources.watch.schedules = (), {"p": schedule()}
    assert sources.batches() == [[Due("p", W, "silent")]]


def test_windows_that_are_set_aside_are_only_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    agenda = schedule(W)
    agenda.closed(W, basis=1, deadline=DUE_MS)
    sources = Sources(monkeypatch, p=agenda)
    sources.failures.add(item_of(("p", W)))
    assert sources.batches() == [[Due("p", W, "retry")]]
    sources.watch.deferred = ("p",)
    assert sources.batches() == []


def test_wide_windows_that_are_still_read_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = Sources(monkeypatch, p=schedule(W - 60, W))
    sources.waiting = {("p", W - 60)}
    assert windows_of(sources.batches()) == [("p", W)]
