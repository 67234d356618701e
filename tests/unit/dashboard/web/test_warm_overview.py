"""The overview is read before a reader asks for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy.exc import OperationalError

from dashboard.queries.services import Services
from dashboard.web import server


def test_it_is_read_once_changes_are_heard_of_and_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_WARM_S", 0.0)
    changes, read_while = SimpleNamespace(is_listening=False), list[bool]()
    enough = asyncio.Event()

    def overview() -> Any:
        read_while.append(changes.is_listening)
        if len(read_while) == 1:
            raise OperationalError("SELECT", {}, Exception("PostgreSQL is away"))
        loop.call_soon_threadsafe(enough.set)

    async def run() -> None:
        warming = asyncio.create_task(
            server._keep_warm(cast("Services", SimpleNamespace(changes=changes, overview=overview)))
        )
        await asyncio.sleep(2 * server._LISTENING_S)
        assert not read_while
        changes.is_listening = True
        await asyncio.wait_for(enough.wait(), 20)
        warming.cancel()

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
    assert all(read_while)
