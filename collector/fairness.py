"""Fairness between callers: each gets its share of room and of threads, whatever the others send."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from lagloss_server.net.problem_details import busy

T = TypeVar("T")

THREADS: Final = 2
"""More would only compete for the interpreter. Two, so that one caller's work does not hold up another's."""
TURN_S: Final = 10.0
"""How long work waits for its turn. Exporters of spans wait 10 s for an answer, the SDK 15 s, and then send again."""
INLINE_BYTES: Final = 16 * 1024
"""Work on so few bytes takes some 5 ms at most; for most of it, the turn of a thread would take as long."""
ITEM_BYTES: Final = 64
"""Each item of a body, such as a span, is as much work as so many bytes at least."""


async def stays() -> bool:
    """Return False: there is no client that could have gone."""
    return False


class SharedRoom:
    """Room of a size, in whatever unit; its users call it one at a time.

    What all callers hold together is limited, and none gets more than it leaves for the others: one that is alone gets
    half of it, two that want all get a third each, and so on. So a caller that comes later finds some left.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._held: Counter[str] = Counter()

    @property
    def used(self) -> int:
        return self._held.total()

    def take(self, owner: str, amount: int) -> bool:
        """Return whether there is room for more of this owner's, and take it if so."""
        if self._held[owner] + amount > self.size - self.used - amount:
            return False
        self._held[owner] += amount
        return True

    def give_back(self, owner: str, amount: int) -> None:
        """Make room again."""
        self._held[owner] -= amount
        if not self._held[owner]:
            del self._held[owner]


class Workers:
    """Threads for work that takes longer than the event loop may wait: parsing, checking and packing of large bodies.

    A caller has one at a time. Those that wait for a thread therefore take turns, however much each of them has sent.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="lagloss-bodies")
        self._free = asyncio.Semaphore(threads)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(
        self,
        caller: str,
        size: int | None,
        work: Callable[[], T],
        has_gone: Callable[[], Awaitable[bool]] = stays,
    ) -> T:
        """Return what `work` returns, or raise what it raises.

        Args:
            caller: takes turns with the other callers.
            size: bytes that the work is about; None for work that takes long on any number of them.
            has_gone: whether the client has disconnected, asked when it is the work's turn.

        Raises:
            Problem: 503 if its turn does not come within `TURN_S`, or the client has gone by then.
        """
        if size is not None and size <= INLINE_BYTES:
            return work()
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(TURN_S):
                    # First come, first served, both; and only one request of a caller gets from lock to semaphore.
                    await stack.enter_async_context(self._turns.setdefault(caller, asyncio.Lock()))
                    await stack.enter_async_context(self._free)
            except TimeoutError:
                raise busy("earlier requests take too long; send again later") from None
            if await has_gone():
                raise busy("the client disconnected before it was its turn")
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """End the threads once their work is done."""
        self._pool.shutdown(wait=False, cancel_futures=True)
