"""Taps of pipelines that wait for their definition stop where they are, those that none wants are closed, others run;
and no error ends the looking after them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from lagloss_server.model.tables import TableSpec, TableTap
from lagloss_server.model.taps import Tap
from lagloss_server.store.definition_feed import DefinitionFeed
from lagloss_server.store.unreadable import ReadRows
from taps import service
from taps.pool import TurnPool
from taps.service import TapService
from taps.wanted import LINGER_MS, RunningTap
from tests.unit.taps.test_wanted import version

TAP: Tap = version(1, "x").definition.taps[0]


class Runner:
    """A tap that reads nothing, until it is stopped."""

    is_troubled = False

    def __init__(self, running: RunningTap) -> None:
        self.running = running
        self.stopped, self.closed = threading.Event(), False

    def go_on_as(self, running: RunningTap) -> None:
        self.running = running

    def step(self) -> float | None:
        return None if self.stopped.is_set() else 3_600.0

    def stop(self, *, close: bool = False) -> None:
        self.closed |= close
        self.stopped.set()


class Recheck(Runner):
    """One that ends when it is told to, after it was stopped."""

    def __init__(self, running: RunningTap) -> None:
        super().__init__(running)
        self.ends = threading.Event()

    def step(self) -> float | None:
        return None if self.ends.is_set() else 0.01

    def stop(self) -> None:  # type: ignore[override]
        self.stopped.set()


class Service(TapService):
    """Starts runners that read nothing."""

    def __init__(self) -> None:
        super().__init__("", "")
        self.runners: list[Runner] = []
        self.rechecks: list[Recheck] = []
        self.pool: TurnPool[Any] = TurnPool("taps")

    def _cluster(self, name: str, taps: Any) -> Any:
        return SimpleNamespace(pool=self.pool)

    def _runner(self, running: RunningTap, tap: Tap, taps: Any, shared: Any) -> Any:
        self.runners.append(Runner(running))
        return self.runners[-1]

    def _table_runner(self, running: RunningTap, tap: TableTap, taps: Any) -> Any:
        self.runners.append(Runner(running))
        return self.runners[-1]

    def _recheck_runner(self, running: RunningTap, tap: TableTap, taps: Any) -> Any:
        self.rechecks.append(Recheck(running))
        return self.rechecks[-1]

    def follow(self, known: dict[bytes, RunningTap], waiting: set[str], stored: list[RunningTap]) -> None:
        taps: Any = SimpleNamespace(stored=lambda: ReadRows(stored))
        self._follow(known, waiting, taps)


def test_a_tap_whose_pipeline_waits_stops_and_is_not_closed_and_goes_on_afterwards() -> None:
    running = RunningTap(TAP, b"1" * 16, 0)
    taps = Service()
    taps.follow({running.emitter: running}, set(), [])
    taps.follow({}, {"orders"}, [running])
    assert [(runner.stopped.is_set(), runner.closed) for runner in taps.runners] == [(True, False)]
    taps.pool.await_ends([taps.runners[0]], 10)
    taps.follow({}, {"orders"}, [running])
    assert len(taps.runners) == 1
    taps.follow({running.emitter: running}, set(), [running])
    assert (len(taps.runners), taps.runners[1].stopped.is_set()) == (2, False)
    taps.follow({}, set(), [running])
    assert taps.runners[1].closed
    assert taps.pool.close(10)


def test_a_tap_that_was_replaced_goes_on_for_an_hour_and_is_closed_then() -> None:
    running = RunningTap(TAP, b"1" * 16, 0)
    now_ms = time.time_ns() // 1_000_000
    replaced = replace(running, until_ms=now_ms - LINGER_MS + 60_000)
    over = replace(running, until_ms=now_ms - LINGER_MS)
    taps = Service()
    taps.follow({running.emitter: running}, set(), [])
    taps.follow({running.emitter: replaced}, set(), [running])
    assert [(runner.running, runner.stopped.is_set()) for runner in taps.runners] == [(replaced, False)]
    assert not taps._has_ended()
    taps._running[running.emitter].running = over  # an hour later
    assert taps._has_ended()
    taps.follow({running.emitter: over}, set(), [running])
    assert [(runner.stopped.is_set(), runner.closed) for runner in taps.runners] == [(True, True)]
    taps.pool.await_ends([taps.runners[0]], 10)
    taps.follow({running.emitter: over}, set(), [])
    assert len(taps.runners) == 1
    taps.follow({running.emitter: replaced}, set(), [running])  # by a service that was started anew
    assert (taps.runners[1].running, taps.runners[1].closed) == (replaced, False)
    assert taps.pool.close(10)


def test_a_tap_that_was_replaced_before_it_began_never_begins() -> None:
    taps = Service()
    taps.follow({b"1" * 16: RunningTap(TAP, b"1" * 16, 0, until_ms=time.time_ns() // 1_000_000)}, set(), [])
    assert taps.runners == []


@pytest.mark.parametrize("recheck", [None, "7d"])
def test_rows_of_a_table_are_compared_in_turns_of_their_own_until_the_tap_stops(recheck: str | None) -> None:
    spec = TableSpec(database="shop", table="a.b", id="id", event_time="at", cursor="n", recheck=recheck)
    running = RunningTap(TableTap("orders", "sink", spec, ("out",), first=False), b"1" * 16, 0)
    taps = Service()
    taps.follow({running.emitter: running}, set(), [])
    assert len(taps.rechecks) == (0 if recheck is None else 1)
    (started,) = taps._running.values()
    taps.follow({}, set(), [running])
    (runner,) = taps.runners
    assert runner.closed
    started.pool.await_ends([runner], 10)
    for compared in taps.rechecks:
        assert compared.stopped.is_set()
        assert not started.has_ended
        compared.ends.set()
        started.pool.await_ends([compared], 10)
    assert started.has_ended
    taps.follow({}, set(), [running])  # another process left it unclosed
    assert len(taps.rechecks) == (0 if recheck is None else 1)
    assert started.pool.close(10)


@pytest.mark.parametrize("error", [ValueError("a row"), RecursionError()], ids=lambda error: type(error).__name__)
def test_no_error_ends_the_looking_after_taps(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    stop, taps, looks = threading.Event(), TapService("", ""), []

    def look(_feed: object) -> bool:
        looks.append(taps.trouble)
        if len(looks) == 3:
            stop.set()
        raise error

    nothing: Callable[..., Any] = lambda *_, **_settings: SimpleNamespace(engine=None, close=lambda: None)  # noqa: E731
    monkeypatch.setattr(service, "Store", nothing)
    monkeypatch.setattr(service, "watching", lambda *_: nullcontext())
    monkeypatch.setattr(service, "demand_newest", lambda _engine: None)
    monkeypatch.setattr(service, "LOOK_S", 0.0)
    monkeypatch.setattr(DefinitionFeed, "look", look)
    taps.run(stop)
    assert looks[0] == "starting"
    assert all(type(error).__name__ in (trouble or "") for trouble in looks[1:])
