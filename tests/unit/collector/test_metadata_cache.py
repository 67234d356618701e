"""The cache of tokens and definitions while its database hangs: neither requests nor threads pile up."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from collector import metadata_cache
from collector.metadata_cache import MetadataCache


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
        assert (cache.hangs, cache.error) == (True, "no answer within 0 s")
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
