"""How often passwords may be guessed: by name, and by the address that guesses."""

from __future__ import annotations

import math
import time
from typing import Final

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import MovingWindowRateLimiter

from dashboard.login.addresses import guesser
from lagloss_server.net.problem_details import Problem

WINDOW_MINUTES: Final = 15
PER_ADDRESS: Final = 20
PER_NAME: Final = 100
"""Well above what one address may guess, so that no user can lock another out from one place."""

_KEPT_OF_NAME: Final = 64
"""No user's is longer; what strangers send is not kept at any length."""


class Throttle:
    """Counts wrong guesses, in this process. Right ones cost nothing."""

    def __init__(self) -> None:
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._per_address = RateLimitItemPerMinute(PER_ADDRESS, WINDOW_MINUTES, "address")
        self._per_name = RateLimitItemPerMinute(PER_NAME, WINDOW_MINUTES, "name")

    async def check(self, name: str, address: str) -> None:
        """Return whether another guess may be made.

        Raises:
            Problem: 429 with the time to wait.
        """
        for item, key in self._counters(name, address):
            if not await self._limiter.test(item, key):
                resets_at = (await self._limiter.get_window_stats(item, key)).reset_time
                wait_s = max(1, math.ceil(resets_at - time.time()))
                detail = f"too many wrong passwords; try again in {math.ceil(wait_s / 60)} min"
                raise Problem(429, "Too many guesses", detail, headers={"Retry-After": str(wait_s)})

    async def count(self, name: str, address: str) -> None:
        """Note a wrong guess."""
        for item, key in self._counters(name, address):
            await self._limiter.hit(item, key)

    def _counters(self, name: str, address: str) -> tuple[tuple[RateLimitItem, str], ...]:
        return (self._per_address, guesser(address)), (self._per_name, name.lower()[:_KEPT_OF_NAME])
