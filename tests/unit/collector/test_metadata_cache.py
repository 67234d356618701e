"""The collector's knowledge of tokens and definitions: its refresh outlives any error, says how old it is, and piles up
neither requests nor threads while the database hangs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from sqlalchemy.exc import OperationalError

from collector import metadata_cache
from collector.metadata_cache import MetadataCache, Snapshot
from lagloss_server.store.store import Store

ERRORS = [ValueError("a row"), OperationalError("SELECT", {}, Exception("away")), RecursionError(), KeyError("labels")]


class Cache(MetadataCache):
    """Reads whatever `answers` says next; the last one for ever."""

    def __init__(self, *answers: Callable[[], Snapshot], trusted_s: float = 600.0) -> None:
        self._definitions = None
        super().__init__(None, trusted_s)
        self.store = cast("Store", object())
        self.answers = list(answers)
        self.reads = 0

    def _read(self, store: Store) -> Snapshot:
        self.reads += 1
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])()


def fails(error: Exception) -> Callable[[], Snapshot]:
    def read() -> Snapshot:
        raise error

    return read


def fresh(age_s: float = 0.0) -> Callable[[], Snapshot]:
    return lambda: Snapshot(time.monotonic() - age_s)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_no_error_ends_the_refresh_and_after_it_all_is_known_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(metadata_cache, "REFRESH_S", 0.0)
    cache = Cache(fails(error), fails(error), fresh())

    async def run() -> list[Any]:
        keeping = asyncio.create_task(cache.keep_fresh())
        while cache.reads < 2:
            await asyncio.sleep(0)
        troubles: list[Any] = [cache.error, cache.snapshot()]
        while cache.snapshot() is None:
            await asyncio.sleep(0)
        keeping.cancel()
        await asyncio.wait([keeping])
        return troubles

    trouble, nothing = asyncio.run(run())
    assert trouble
    assert nothing is None
    assert cache.error is None
    assert not cache.is_stale


def test_knowledge_that_is_old_fails_the_health_and_then_lets_no_caller_in() -> None:
    async def aged(age_s: float) -> tuple[bool, bool]:
        cache = Cache(fresh(age_s))
        await cache.refresh()
        return cache.is_stale, cache.is_trusted

    assert asyncio.run(aged(9)) == (False, True)
    assert asyncio.run(aged(11)) == (True, True)
    assert asyncio.run(aged(601)) == (True, False)
    never_read = MetadataCache(cast("Store", object()))
    assert (never_read.is_stale, never_read.is_trusted) == (True, False)
    without = MetadataCache(None)
    assert (without.is_stale, without.is_trusted) == (False, True)


class HangingDatabase:
    """Lets each question wait until `goes` is set, and then fails it."""

    def __init__(self) -> None:
        self.goes = threading.Event()
        self.questions = 0
        self.engine = self

    def connect(self) -> Any:
        self.questions += 1
        self.goes.wait(20)
        raise OperationalError("SELECT 1", {}, Exception("the server has gone"))


def test_a_database_that_hangs_is_asked_once_and_keeps_no_request_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_cache, "ANSWER_S", 0.2)
    database: Any = HangingDatabase()
    cache = MetadataCache(database)

    async def story() -> None:
        await cache.refresh()
        assert (cache.hangs, cache.error) == (True, "no response within 0 s")
        began = time.monotonic()
        for _ in range(20):
            await cache.refresh()
        assert time.monotonic() - began < 2
        assert database.questions == 1
        database.goes.set()
        while cache.hangs:
            await asyncio.sleep(0.01)
            await cache.refresh()
        assert (cache.hangs, cache.error) == (False, "the server has gone")

    asyncio.run(story())
