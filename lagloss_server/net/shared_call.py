"""A call that may hang, for callers that must not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

_T = TypeVar("_T")
GIVEN_UP_S: Final = 30.0
"""A call that has not returned by then is left alone, and another one begun."""


class SharedCall(Generic[_T]):
    """Calls a function in a thread of its own, once at a time: all who ask meanwhile get the same result. However many
    ask while it hangs, none of them keeps a thread."""

    def __init__(self, function: Callable[[], _T], name: str) -> None:
        self._function = function
        self._name = name
        self._guard = threading.Lock()
        self._call: Future[_T] | None = None
        self._began = 0.0

    def result(self, wait_s: float) -> _T:
        """Return the function's result, or raise its error.

        Raises:
            TimeoutError: it has not returned `wait_s` after it was called.
        """
        call, left_s = self._begun(wait_s)
        return call.result(left_s)

    async def result_of(self, wait_s: float) -> _T:
        """Do the same in an event loop."""
        call, left_s = self._begun(wait_s)
        return await asyncio.wait_for(asyncio.wrap_future(call), left_s)

    def _begun(self, wait_s: float) -> tuple[Future[_T], float]:
        with self._guard:
            now = time.monotonic()
            if self._call is None or self._call.done() or now - self._began > GIVEN_UP_S:
                self._call, self._began = Future(), now
                self._call.set_running_or_notify_cancel()  # from now on, no caller that goes away can cancel it
                # not a pool's: those hold up the end of the process until the call returns
                threading.Thread(target=self._run, args=[self._call], name=self._name, daemon=True).start()
            return self._call, max(0.0, self._began + wait_s - now)

    def _run(self, call: Future[_T]) -> None:
        try:
            call.set_result(self._function())
        except BaseException as error:
            call.set_exception(error)
