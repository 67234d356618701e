"""Threads for what takes longer than the event loop may wait: parsing, checking and packing of large bodies.

A caller has one at a time. Those that wait for a thread therefore take turns, however much each of them has sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")

THREADS: Final = 2
"""More would only compete for the interpreter. Two, so that one caller's work does not hold up another's."""
INLINE_BYTES: Final = 16 * 1024
"""Work on so few bytes takes some 5 ms at most; for most of it, the turn of a thread would take as long."""
ITEM_BYTES: Final = 64
"""Each item of a body, such as a span, is as much work as so many bytes at least."""


class Workers:
    """Runs work on bodies, of which each caller has some."""

    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="lagloss-bodies")
        self._free = asyncio.Semaphore(threads)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, caller: str, size: int | None, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise what it raises.

        Args:
            caller: takes turns with the other callers.
            size: bytes that the work is about; None for work that takes long on any number of them.
        """
        if size is not None and size <= INLINE_BYTES:
            return work()
        turn = self._turns.setdefault(caller, asyncio.Lock())
        # Both are first come, first served, and only one request of a caller gets from the lock to the semaphore.
        async with turn, self._free:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """End the threads once their work is done."""
        self._pool.shutdown(wait=False, cancel_futures=True)
