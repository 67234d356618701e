"""Threads of the dashboard, shared by the users who ask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.request import threads as threads_module
from dashboard.request.current_user import LOCAL, Person, answer_for
from dashboard.request.threads import MAX_LOCAL_WAITING, MAX_WAITING, Threads
from lagloss_server.base.errors import TooManyRequests

READS = threads_module._READS


class Slow:
    """Work that lasts until it is let go, by who asked for it."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.running: list[str] = []

    def work(self, name: str) -> str:
        self.running.append(name)
        assert self.go_on.wait(20)
        return name


async def as_person(name: str, call: Callable[[], Awaitable[str]]) -> str:
    answer_for(Person(name, "viewer"))
    return await call()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def test_what_one_user_asks_for_leaves_threads_to_the_others() -> None:
    async def go() -> None:
        pool, slow = Threads(), Slow()
        loud = [asyncio.create_task(as_person("loud", lambda: pool.read(slow.work, "loud"))) for _ in range(40)]
        await until(lambda: len(slow.running) == READS // 2)
        assert await as_person("quiet", lambda: pool.read(lambda: "answer")) == "answer"
        assert slow.running == ["loud"] * (READS // 2)
        slow.go_on.set()
        assert await asyncio.gather(*loud) == ["loud"] * 40
        pool.close()

    asyncio.run(go())


def test_a_user_waits_for_so_many_answers_and_others_are_answered() -> None:
    async def go() -> None:
        pool, slow = Threads(), Slow()
        loud = [
            asyncio.create_task(as_person("loud", lambda: pool.read(slow.work, "loud"))) for _ in range(MAX_WAITING)
        ]
        await until(lambda: len(slow.running) == READS // 2)
        with pytest.raises(TooManyRequests, match=f"loud waits for {MAX_WAITING} answers"):
            await asyncio.create_task(as_person("loud", lambda: pool.read(lambda: "one more")))
        assert await asyncio.create_task(as_person("quiet", lambda: pool.read(lambda: "answer"))) == "answer"
        slow.go_on.set()
        await asyncio.gather(*loud)
        await until(lambda: not pool._reads._waiting)
        assert await asyncio.create_task(as_person("loud", lambda: pool.read(lambda: "again"))) == "again"
        pool.close()

    asyncio.run(go())


def test_a_client_that_leaves_frees_its_users_turn_only_once_the_thread_is_free() -> None:
    async def go() -> None:
        pool, slow = Threads(), Slow()
        for _ in range(30):
            reading = asyncio.create_task(as_person("loud", lambda: pool.read(slow.work, "loud")))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reading, 0.01)
        assert len(slow.running) == READS // 2
        assert await as_person("quiet", lambda: pool.read(lambda: "answer")) == "answer"
        slow.go_on.set()
        await until(lambda: not pool._reads._waiting)
        pool.close()

    asyncio.run(go())


def test_without_a_login_all_threads_are_used_and_there_are_so_many_requests_at_most() -> None:
    async def go() -> None:
        pool, slow = Threads(), Slow()
        answer_for(LOCAL)
        asked = [asyncio.create_task(pool.read(slow.work, "local")) for _ in range(MAX_LOCAL_WAITING)]
        await until(lambda: len(slow.running) == READS)
        with pytest.raises(TooManyRequests, match=f"local waits for {MAX_LOCAL_WAITING} answers"):
            await pool.read(lambda: "one more")
        slow.go_on.set()
        await asyncio.gather(*asked)
        pool.close()

    asyncio.run(go())


@given(names=st.lists(st.sampled_from("abc"), min_size=1, max_size=60))
@settings(max_examples=20, deadline=None)
def test_nobody_holds_more_than_their_share_and_all_are_answered(names: list[str]) -> None:
    async def go() -> None:
        pool, running, most, lock = Threads(), dict.fromkeys("abc", 0), dict.fromkeys("abc", 0), threading.Lock()

        def work(name: str) -> str:
            with lock:
                running[name] += 1
                most[name] = max(most[name], running[name])
            try:
                return name
            finally:
                with lock:
                    running[name] -= 1

        def asked(name: str) -> asyncio.Task[str]:
            return asyncio.create_task(as_person(name, lambda: pool.read(work, name)))

        assert await asyncio.gather(*map(asked, names)) == names
        assert max(most.values()) <= READS // 2
        pool.close()

    asyncio.run(go())
