"""Calls that hang, and who waits for them: a probe, a scrape."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from lagloss_server.net import exposition, shared_call
from lagloss_server.net.exposition import Recent
from lagloss_server.net.shared_call import SharedCall


class Hanging:
    """Counts its calls, and hangs in each until it is released."""

    def __init__(self) -> None:
        self.calls = 0
        self.released = threading.Event()

    def __call__(self) -> int:
        self.calls += 1
        number = self.calls
        self.released.wait(20)
        return number


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    found = Hanging()
    yield found
    found.released.set()


def test_however_many_ask_one_call_hangs_and_none_waits_longer_than_for_it(hanging: Hanging) -> None:
    call = SharedCall(hanging, "test")

    async def ask() -> list[BaseException | int]:
        asking = (call.result_of(0.3) for _ in range(200))
        return list(await asyncio.gather(*asking, return_exceptions=True))

    threads = threading.active_count()
    began = time.monotonic()
    assert {type(each) for each in asyncio.run(ask())} == {TimeoutError}
    with pytest.raises(TimeoutError):  # its time has passed: nobody else waits
        call.result(0.3)
    assert time.monotonic() < began + 5
    assert hanging.calls == 1
    assert threading.active_count() <= threads + 1


def test_it_answers_again_once_the_function_returns(hanging: Hanging) -> None:
    call = SharedCall(hanging, "test")
    with pytest.raises(TimeoutError):
        call.result(0.01)
    hanging.released.set()
    ends = time.monotonic() + 10
    while True:
        try:
            assert call.result(10) in (1, 2)
            break
        except TimeoutError:  # of the call that began so long ago
            assert time.monotonic() < ends
    assert call.result(10) > 1


def test_a_call_that_never_returns_is_given_up(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_call, "GIVEN_UP_S", 0.0)
    call = SharedCall(hanging, "test")
    for _ in range(3):
        with pytest.raises(TimeoutError):
            call.result(0.01)
    assert hanging.calls == 3


def test_an_error_is_that_of_all_who_ask() -> None:
    def fails() -> None:
        raise KeyError("x")

    call = SharedCall(fails, "test")
    for _ in range(2):
        with pytest.raises(KeyError):
            call.result(10)
        with pytest.raises(KeyError):
            asyncio.run(call.result_of(10))


def test_metrics_are_shown_without_what_is_not_said_in_time(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "WAIT_S", 0.05)
    recent = Recent(hanging, 0)
    assert recent.get() == 0
    hanging.released.set()
    ends = time.monotonic() + 10
    while (shown := recent.get()) == 0:
        assert time.monotonic() < ends
    assert recent.get() == shown  # and not read again at once
    hanging.released.clear()
    monkeypatch.setattr(exposition, "KEPT_S", 0.0)
    assert recent.get() == shown  # some seconds old
    monkeypatch.setattr(exposition, "TRUSTED_S", 0.0)
    assert recent.get() == 0  # it would look as if it were new


def test_a_reading_that_fails_hides_nothing_else() -> None:
    def fails() -> int:
        raise ValueError("a row that cannot be read")

    assert Recent(fails, -1).get() == -1
