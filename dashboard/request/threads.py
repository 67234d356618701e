"""Threads for what blocks: a pool for each kind of work, so that slow work of one kind does not hold up another.

A user gets half of a pool's threads at most, and waits for a limited number of answers: what one of them asks for, a
year of many pipelines say, holds up only their own requests. Without a login, one user has all of them.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from dashboard.request.current_user import LOCAL, asking
from lagloss_server.base.errors import TooManyRequests

_P = ParamSpec("_P")
_T = TypeVar("_T")

_READS: Final = 8
"""PostgreSQL answers these in milliseconds; more than a few at a time only wait for each other on its cores."""
_LOG_READS: Final = 2
"""Reads of beacons from Kafka: seconds, and memory for a window's ids each."""
_DOCUMENTS: Final = 1
"""A PDF keeps one core busy for seconds."""
_ACTS: Final = 4
"""Actions of people, which are written in milliseconds."""
_TRIALS: Final = 2
"""Tests of receivers, which wait half a minute for the alerter, and backtests, which take longer."""
_GLANCES: Final = 2
"""Questions to the broker with a short time limit."""
_SESSIONS: Final = 4
"""Looks for sessions, which anyone can cause by a cookie: those of an address get half, as those of a user."""
MAX_WAITING: Final = 64
"""Answers of one kind that a user waits for: a page asks for a dozen."""
MAX_LOCAL_WAITING: Final = 10 * MAX_WAITING
"""Where there is no login: all pages and scripts of this machine are one user's."""


class Threads:
    """The pools of one process. What runs there sees who is asking (`dashboard.request.current_user`)."""

    def __init__(self) -> None:
        self._reads = _Pool(_READS, "read")
        self._log_reads = _Pool(_LOG_READS, "log")
        self._documents = _Pool(_DOCUMENTS, "document")
        self._acts = _Pool(_ACTS, "act")
        self._trials = _Pool(_TRIALS, "trial")
        self._glances = _Pool(_GLANCES, "glance")
        self._sessions = _Pool(_SESSIONS, "session")

    async def read(self, work: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Return a read of PostgreSQL, and drawing what was read."""
        return await self._reads.run(work, *args, **named)

    async def read_log(self, work: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Return a read of beacons from Kafka."""
        return await self._log_reads.run(work, *args, **named)

    async def document(self, work: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Run the making of a document for download."""
        return await self._documents.run(work, *args, **named)

    async def act(self, work: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Something that a person does."""
        return await self._acts.run(work, *args, **named)

    async def trial(self, work: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Something that a person tries out and waits for."""
        return await self._trials.run(work, *args, **named)

    async def glance(self, work: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Return a look at what the broker says of itself."""
        return await self._glances.run(work, *args, **named)

    async def session(self, address: str, work: Callable[[str], _T], token: str) -> _T:
        """Return what is done with the session that a client at this address names."""
        return await self._sessions.run_for(address, work, token)

    def close(self) -> None:
        """Lets go of what has not begun yet."""
        pools = (
            self._reads,
            self._log_reads,
            self._documents,
            self._acts,
            self._trials,
            self._glances,
            self._sessions,
        )
        for pool in pools:
            pool.close()


class _Pool:
    """The threads of one kind of work, shared fairly by the users who ask."""

    def __init__(self, threads: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(threads, name)
        self._threads = threads
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._waiting: Counter[str] = Counter()

    async def run(self, work: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Return what the work returns, once it is the turn of the user who asks.

        Raises:
            TooManyRequests: they wait for `MAX_WAITING` answers already.
        """
        return await self.run_for(asking().name, work, *args, **named)

    async def run_for(self, whose: str, work: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Return what the work returns, once it is this one's turn; see `run`."""
        call = partial(contextvars.copy_context().run, partial(work, *args, **named))
        share, most = max(1, self._threads // 2), MAX_WAITING
        if asking() is LOCAL:  # without a login no one else asks
            share, most = self._threads, MAX_LOCAL_WAITING
        if self._waiting[whose] >= most:
            raise TooManyRequests(name=whose, number=most)
        turn = self._turns.setdefault(whose, asyncio.Semaphore(share))
        self._waiting[whose] += 1
        try:
            await turn.acquire()
        except asyncio.CancelledError:
            self._leave(whose)
            raise

        def leave() -> None:
            turn.release()
            self._leave(whose)

        future = self._executor.submit(call)
        # Not when it has been waited for: of a client that has gone, or has not the time, the thread works on.
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: _soon(loop, leave))
        return await asyncio.wrap_future(future)

    def _leave(self, name: str) -> None:
        self._waiting[name] -= 1
        if not self._waiting[name]:
            del self._waiting[name]

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: the server ends
        loop.call_soon_threadsafe(call)
