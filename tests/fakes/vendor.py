"""A vendor that answers as a test says, and keeps every request with its times."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.fakes.http_receiver import HttpReceiver, Reply, Request

Script = Callable[[Sequence[str]], Reply]
"""From the ids in a request to its answer; may take its time."""


@dataclass(frozen=True)
class Delivery:
    """One request; times are monotonic, in seconds."""

    ids: tuple[str, ...]
    status: int
    began_s: float
    ended_s: float


def taken(_ids: Sequence[str]) -> Reply:
    """All is well."""
    return Reply()


class Vendor(HttpReceiver):
    """`script` may be changed at any time."""

    def __init__(self, script: Script = taken) -> None:
        super().__init__()
        self.script = script
        self.deliveries: list[Delivery] = []
        self.most_at_a_time = 0
        self._at_a_time = 0
        self._lock = threading.Lock()

    def answer(self, request: Request) -> Reply:
        began = time.monotonic()
        with self._lock:
            self._at_a_time += 1
            self.most_at_a_time = max(self.most_at_a_time, self._at_a_time)
        ids = tuple(event["event_id"] for event in request.json()["events"])
        reply = self.script(ids)
        with self._lock:
            self._at_a_time -= 1
            self.deliveries.append(Delivery(ids, reply.status, began, time.monotonic()))
        return reply

    @property
    def delivered(self) -> list[str]:
        """The ids it took, in the order it took them, as often as it did."""
        return [name for delivery in self.deliveries if delivery.status < 300 for name in delivery.ids]

    def tries(self, name: str) -> list[Delivery]:
        """The requests that held this event."""
        return [delivery for delivery in self.deliveries if name in delivery.ids]
