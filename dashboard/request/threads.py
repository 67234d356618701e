"""Threads for what blocks: a pool for each kind of work, so that slow work of one kind does not hold up another."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

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


class Threads:
    """The pools of one process. What runs there sees who is asking (`dashboard.request.current_user`)."""

    def __init__(self) -> None:
        self._reads = ThreadPoolExecutor(_READS, "read")
        self._log_reads = ThreadPoolExecutor(_LOG_READS, "log")
        self._documents = ThreadPoolExecutor(_DOCUMENTS, "document")
        self._acts = ThreadPoolExecutor(_ACTS, "act")
        self._trials = ThreadPoolExecutor(_TRIALS, "trial")
        self._glances = ThreadPoolExecutor(_GLANCES, "glance")

    async def read(self, work: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Return a read of PostgreSQL, and drawing what was read."""
        return await _run(self._reads, work, *args, **named)

    async def read_log(self, work: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Return a read of beacons from Kafka."""
        return await _run(self._log_reads, work, *args, **named)

    async def document(self, work: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Run the making of a document for download."""
        return await _run(self._documents, work, *args, **named)

    async def act(self, work: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Something that a person does."""
        return await _run(self._acts, work, *args, **named)

    async def trial(self, work: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Something that a person tries out and waits for."""
        return await _run(self._trials, work, *args, **named)

    async def glance(self, work: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Return a look at what the broker says of itself."""
        return await _run(self._glances, work, *args, **named)

    def close(self) -> None:
        """Lets go of what has not begun yet."""
        pools = (self._reads, self._log_reads, self._documents, self._acts, self._trials, self._glances)
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)


async def _run(pool: ThreadPoolExecutor, work: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(pool, lambda: context.run(work, *args, **named))
