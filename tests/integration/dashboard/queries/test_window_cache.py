"""Windows that the dashboard reads from the log: how often, and how large ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from dashboard.queries import window_cache as logged
from dashboard.queries.window_cache import LoggedWindows
from lagloss.errors import KafkaUnreachable
from lagloss.wire.format import SAMPLE_ALL, OffsetRange
from lagloss_server.base.errors import WindowTooLarge
from lagloss_server.queries.window_blocks import WindowBlocks
from lagloss_server.store.store import Store
from tests.support.dashboards import until
from tests.support.logged_blocks import Logged
from tests.support.window_documents import chain

START_S = 1_795_250_400
READERS = 4


@contextmanager
def no_log() -> Iterator[Any]:
    yield None


class Reading:
    """Stands in for the read of the log: it ends when it may, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.may_end = threading.Event()
        self.count = 0
        self._error = error
        monkeypatch.setattr(logged, "read_window", self._read)

    def _read(self, *_: object) -> WindowBlocks:
        self.count += 1
        assert self.may_end.wait(20)
        if self._error is not None:
            raise self._error
        return WindowBlocks(chain().graph, START_S, {}, SAMPLE_ALL)


@pytest.fixture
def told(store: Store) -> Store:
    """A window whose tallies tell of 11 beacons."""
    store.apply(chain(), 0)
    Logged("chain", START_S, "", "", store).tell("src.in", [OffsetRange(0, 0, 0)], beacons=11)
    return store


def at_once(windows: LoggedWindows, store: Store, reading: Reading, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What readers get who all ask while the first one reads."""
    asked: list[str] = []
    is_sealed = store.is_sealed
    monkeypatch.setattr(store, "is_sealed", lambda *of: asked.append("last before the read") or is_sealed(*of))

    def ask() -> object:
        try:
            return windows.read(store, no_log, "chain", START_S)
        except KafkaUnreachable as error:
            return error

    with ThreadPoolExecutor(READERS) as pool:
        answers = [pool.submit(ask) for _ in range(READERS)]
        until(lambda: len(asked) == READERS and reading.count, "all to ask")
        reading.may_end.set()
        return [answer.result(20) for answer in answers]


def test_whoever_asks_for_a_window_that_is_being_read_gets_that_one(
    told: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows, reading = LoggedWindows(), Reading(monkeypatch)
    answers = at_once(windows, told, reading, monkeypatch)
    assert (reading.count, len({id(answer) for answer in answers})) == (1, 1)
    assert windows.read(told, no_log, "chain", START_S) is answers[0]
    Logged("chain", START_S, "", "", told).tell("src.out", [OffsetRange(0, 1, 1)], beacons=11)
    assert windows.read(told, no_log, "chain", START_S) is not answers[0]


def test_a_read_that_fails_fails_those_who_wait_and_nobody_after_them(
    told: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows, trouble = LoggedWindows(), KafkaUnreachable(bootstrap="nowhere:1", detail="gone")
    reading = Reading(monkeypatch, trouble)
    answers = at_once(windows, told, reading, monkeypatch)
    assert trouble in answers
    Reading(monkeypatch).may_end.set()
    assert windows.read(told, no_log, "chain", START_S) not in answers


def test_a_window_of_too_many_beacons_is_refused_before_the_log_is_opened(told: Store) -> None:
    @contextmanager
    def never() -> Iterator[Any]:
        raise AssertionError("the log was opened")
        yield

    with pytest.raises(WindowTooLarge, match="has 11 beacons"):
        LoggedWindows(max_beacons=10).read(told, never, "chain", START_S)
