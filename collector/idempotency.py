"""Idempotency-Key: a request that comes again within an hour is answered as it was the first time, and puts nothing.

Kept in this process's memory: another collector, or this one started anew, knows nothing of it. What is exact over all
that is a batch with emitter and seq.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from fastapi import Response

from lagloss_server.net.problem_details import Problem, busy

KEPT_S: Final = 3_600.0
MAX_KEPT: Final = 20_000
"""Answers kept; some 20 MB. The oldest go first, of the caller that has the most."""
MAX_KEY_CHARS: Final = 255


@dataclass(slots=True)
class _Answer:
    digest: bytes
    response: asyncio.Future[Response | None]
    asked_at: float


class Repeats:
    """Remembers answers of 2xx by caller and key."""

    def __init__(self, max_kept: int = MAX_KEPT, kept_s: float = KEPT_S) -> None:
        self._max_kept = max_kept
        self._kept_s = kept_s
        self._answers: dict[str, OrderedDict[str, _Answer]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._answers.values()))

    async def answer(
        self, caller: str, key: str | None, request: bytes, respond: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Return what `respond` answers, or its first answer to the same request. A repetition that arrives while the
        first is being answered waits for it. A request not answered 2xx was not done, and is tried again.

        Args:
            request: all that makes it the same: route, type and body.

        Raises:
            Problem: 422 for the key of another request, 400 for one that is none; and those of `respond`.
        """
        if key is None:
            return await respond()
        if not 1 <= len(key) <= MAX_KEY_CHARS:
            raise Problem(400, "Bad key", f"expected 1 to {MAX_KEY_CHARS} characters", field="Idempotency-Key")
        digest = hashlib.sha256(request).digest()
        self._forget_old(caller)
        kept = self._answers[caller].get(key) if caller in self._answers else None
        if kept is not None and kept.digest != digest:
            raise Problem(422, "Key used before", "this key came with another request before", field="Idempotency-Key")
        if kept is not None:
            response = await asyncio.shield(kept.response)
            if response is None:
                raise busy("the first request with this key failed; send it again later")
            return response
        self._make_room()
        return await self._first(caller, key, digest, respond)

    async def _first(
        self, caller: str, key: str, digest: bytes, respond: Callable[[], Awaitable[Response]]
    ) -> Response:
        kept = _Answer(digest, asyncio.get_running_loop().create_future(), time.monotonic())
        self._answers.setdefault(caller, OrderedDict())[key] = kept
        response: Response | None = None
        try:
            response = await respond()
            return response
        finally:
            kept.response.set_result(response)
            if response is None:
                self._drop(caller, key)

    def _forget_old(self, caller: str) -> None:
        """Forget what this caller asked too long ago; requests in progress stay."""
        horizon = time.monotonic() - self._kept_s
        while caller in self._answers:
            key, oldest = next(iter(self._answers[caller].items()))
            if oldest.asked_at > horizon or not oldest.response.done():
                return
            self._drop(caller, key)

    def _make_room(self) -> None:
        """Forget the oldest answer of the caller that has the most, if there are too many; a request in progress stays.

        Raises:
            Problem: 503 if that is one.
        """
        while len(self) >= self._max_kept:
            caller = max(self._answers, key=lambda each: len(self._answers[each]))
            key, oldest = next(iter(self._answers[caller].items()))
            if not oldest.response.done():
                raise busy("too many requests with keys are being answered")
            self._drop(caller, key)

    def _drop(self, caller: str, key: str) -> None:
        del self._answers[caller][key]
        if not self._answers[caller]:
            del self._answers[caller]
