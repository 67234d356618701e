"""One producer for all taps of a process."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Final

from lagloss.sdk.outlets.kafka import Done, Outgoing, Outlet

ASK_S: Final = 1.0
"""Between two questions for the partitions, which can take seconds while the broker is away."""
MIN_WAIT_S: Final = 0.002
MAX_WAIT_S: Final = 0.05


class SharedOutlet:
    """Lets threads share an outlet, each through a `TapOutlet`.

    Records of a tap that has left are sent all the same: their blocks and reports have the numbers of its plans, and
    count once.
    """

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self.using = threading.Lock()
        self._partitions: int | None = None
        self._ask_at = 0.0

    def partitions(self) -> int | None:
        """Return the number of partitions for blocks, as it was known `ASK_S` ago."""
        with self.using:
            if time.monotonic() >= self._ask_at:
                self._partitions = self.outlet.partitions()
                self._ask_at = time.monotonic() + ASK_S
            return self._partitions

    def close(self) -> None:
        with self.using:
            self.outlet.close()


class TapOutlet:
    """The outlet of one tap: its callbacks run inside its own `poll`, whichever thread receives the
    acknowledgements."""

    def __init__(self, shared: SharedOutlet) -> None:
        self._shared = shared
        self._acknowledged: SimpleQueue[tuple[Done, int | None, int]] = SimpleQueue()

    @property
    def last_error(self) -> str | None:
        return self._shared.outlet.last_error

    def partitions(self) -> int | None:
        return self._shared.partitions()

    def sample(self, pipeline: str) -> int:
        with self._shared.using:
            return self._shared.outlet.sample(pipeline)

    def send(self, record: Outgoing) -> None:
        done = record.done

        def acknowledged(partition: int | None, offset: int) -> None:
            self._acknowledged.put((done, partition, offset))

        with self._shared.using:
            self._shared.outlet.send(replace(record, done=acknowledged))

    def poll(self, timeout_s: float) -> None:
        deadline, wait_s = time.monotonic() + timeout_s, MIN_WAIT_S
        while True:
            with self._shared.using:
                self._shared.outlet.poll(0)
            if self._take(0.0):
                return
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or self._take(min(wait_s, remaining_s)):
                return
            wait_s = min(2 * wait_s, MAX_WAIT_S)

    def _take(self, wait_s: float) -> bool:
        """Run the callbacks of what was acknowledged; return whether there was anything within this time."""
        is_any = False
        with suppress(Empty):
            while True:
                done, partition, offset = self._acknowledged.get(timeout=0 if is_any else wait_s)
                is_any = True
                done(partition, offset)
        return is_any

    def abandon(self) -> None:
        """Give nothing up: the records of other taps would be given up with it."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave the producer open for the other taps."""

    def detach_after_fork(self) -> None:
        self._shared.outlet.detach_after_fork()
