"""The collector's knowledge of tokens and definitions: its refresh outlives any error, and says how old it is."""

from __future__ import annotations

import asyncio
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
