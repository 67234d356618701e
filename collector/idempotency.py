"""Idempotency-Key: a request that comes again within an hour is answered as it was the first time, and puts nothing.

Kept in this process's memory, of bounded size: another collector, or this one after a restart, knows nothing of it.
What is exact over all that is a batch with emitter and seq, whose answers are therefore not kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from fastapi import Response

from lagloss_server.net.problem_details import Problem, busy

R = TypeVar("R", bound=Response)

KEPT_S: Final = 3_600.0
MAX_KEPT_BYTES: Final = 20 * 1024 * 1024
"""Memory of the answers kept: some 16,000. The oldest go first, of the caller that has the most bytes."""
ANSWER_BYTES: Final = 1_200
"""Memory of an answer besides its key and its body."""
MAX_KEY_CHARS: Final = 255


@dataclass(slots=True)
class _Answer:
    digest: bytes
    response: asyncio.Future[Response | None]
    asked_at: float
    size: int


@dataclass(slots=True)
class _Caller:
    """Answers to one caller, oldest first, and their size in bytes."""

    answers: OrderedDict[str, _Answer] = field(default_factory=OrderedDict)
    size: int = 0

    def oldest(self) -> str | None:
        """Return the key of the oldest answer that is not in progress, if there is one."""
        return next((key for key, answer in self.answers.items() if answer.response.done()), None)


class Repeats:
    """Remembers answers of 2xx by caller and key."""

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES, kept_s: float = KEPT_S) -> None:
        self._max_bytes = max_bytes
        self._kept_s = kept_s
        self._callers: dict[str, _Caller] = {}

    def __len__(self) -> int:
        return sum(len(caller.answers) for caller in self._callers.values())

    @property
    def size(self) -> int:
        """Memory of all that is kept, in bytes."""
        return sum(caller.size for caller in self._callers.values())

    async def answer(self, caller: str, key: str | None, request: bytes, respond: Callable[[], Awaitable[R]]) -> R:
        """Return what `respond` answers, or its first answer to the same request. A repetition that arrives while the
        first is being answered waits for it. A request not answered 2xx was not done, and is tried again.

        Args:
            request: all that makes it the same: route, type and body.

        Raises:
            Problem: 422 for the key of another request, 400 for an invalid one; and those of `respond`.
        """
        if key is None:
            return await respond()
        if not 1 <= len(key) <= MAX_KEY_CHARS:
            raise Problem(400, "Bad key", f"expected 1 to {MAX_KEY_CHARS} characters", field="Idempotency-Key")
        digest = hashlib.sha256(request).digest()
        self._forget_old(caller)
        answer = self._callers[caller].answers.get(key) if caller in self._callers else None
        if answer is not None and answer.digest != digest:
            raise Problem(
                422,
                "Idempotency key reused",
                "this key was already used with a different request; use a new one",
                field="Idempotency-Key",
            )
        if answer is not None:
            response = await asyncio.shield(answer.response)
            if response is None:
                raise busy("the first request with this key failed; send it again later")
            return cast("R", response)  # the digest is of the route, too
        return await self._first(caller, key, digest, respond)

    async def _first(self, caller: str, key: str, digest: bytes, respond: Callable[[], Awaitable[R]]) -> R:
        answer = _Answer(digest, asyncio.get_running_loop().create_future(), time.monotonic(), 0)
        self._callers.setdefault(caller, _Caller()).answers[key] = answer
        self._grow(caller, answer, ANSWER_BYTES + len(key))
        response: R | None = None
        try:
            response = await respond()
            return response
        finally:
            answer.response.set_result(response)
            if response is None:
                self._drop(caller, key)
            else:
                self._grow(caller, answer, len(response.body))
            self._make_room()

    def _grow(self, caller: str, answer: _Answer, size: int) -> None:
        answer.size += size
        self._callers[caller].size += size

    def _forget_old(self, caller: str) -> None:
        """Forget what this caller asked too long ago; requests in progress stay."""
        horizon = time.monotonic() - self._kept_s
        while caller in self._callers:
            key = self._callers[caller].oldest()
            if key is None or self._callers[caller].answers[key].asked_at > horizon:
                return
            self._drop(caller, key)

    def _make_room(self) -> None:
        """Forget the oldest answers of the callers that have the most, while there is too much of them. Requests in
        progress stay: what bounds those is the room for their bodies."""
        while self.size > self._max_bytes:
            oldest = {name: key for name, caller in self._callers.items() if (key := caller.oldest()) is not None}
            if not oldest:
                return
            caller = max(oldest, key=lambda name: self._callers[name].size)
            self._drop(caller, oldest[caller])

    def _drop(self, caller: str, key: str) -> None:
        entry = self._callers[caller]
        entry.size -= entry.answers.pop(key).size
        if not entry.answers:
            del self._callers[caller]
