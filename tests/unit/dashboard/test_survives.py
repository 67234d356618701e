"""The dashboard's threads outlive any error of a round."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dashboard.queries import window_changes
from dashboard.queries.window_changes import WindowChanges
from dashboard.reports.schedule import scheduler
from dashboard.reports.schedule.scheduler import Scheduler
from lagloss_server.base.settings import Settings

ERRORS = [ValueError("a row"), RecursionError(), AssertionError()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_no_error_ends_the_schedule_of_reports(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    third, rounds = threading.Event(), []

    def look(_self: Scheduler, now_s: float) -> None:
        rounds.append(now_s)
        if len(rounds) == 3:
            third.set()
        raise error

    monkeypatch.setattr(scheduler, "LOOK_S", 0.0)
    monkeypatch.setattr(Scheduler, "look", look)
    store: Any = SimpleNamespace(engine=None)
    file: Any = SimpleNamespace(mail=None, reports=())
    running = Scheduler(store, Settings(), file)
    running.start()
    assert third.wait(10)
    running.stop()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_no_error_ends_the_listening_to_closings(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    third, rounds = threading.Event(), []

    def listen(_self: WindowChanges, store: object) -> None:
        rounds.append(store)
        if len(rounds) == 3:
            third.set()
        raise error

    monkeypatch.setattr(window_changes, "_WAIT_S", 0.0)
    monkeypatch.setattr(WindowChanges, "_listen", listen)
    changes = WindowChanges()
    store: Any = SimpleNamespace(unscoped=None)
    changes.start(store)
    assert third.wait(10)
    changes.stop()
    assert not changes.is_listening
