"""conn-ga and conn-fb: batches of events to a vendor over HTTP."""

from __future__ import annotations

import json
import logging
import random
import time
from collections import deque
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import httpx

from pipeline_under_test.decision import Dead, Decision, Pass
from pipeline_under_test.event import Event
from pipeline_under_test.loop import Loop, Parcel
from pipeline_under_test.settings import Settings
from pipeline_under_test.topology import VENDORS

log = logging.getLogger(__name__)

BATCH: Final = 100
LINGER_S: Final = 0.1
"""How long an event waits for others to fill its batch."""
MAX_QUEUED: Final = 10 * BATCH
TIMEOUT_S: Final = 10.0
FIRST_BACKOFF_S: Final = 0.2
MAX_BACKOFF_S: Final = 10.0
RECOVERABLE: Final = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
"""The 4xx that may pass; so may every 5xx."""


def deliver(event: Event) -> Decision:
    """A connector delivers everything that can be put into a request."""
    try:
        event.content()
    except ValueError as error:
        return Dead(f"unreadable: {type(error).__name__}")
    return Pass(event)


@dataclass(slots=True)
class Batch:
    """Parcels sent in one request; `not_before` is on the monotonic clock, in seconds."""

    parcels: list[Parcel]
    failures: int = 0
    not_before: float = 0.0


class VendorOutlet:
    """Posts batches; a 2xx is the acknowledgement.

    What may pass (no answer, 408, 425, 429, 5xx) is tried again with growing pauses, for as long as it takes. Another
    4xx will never pass: a batch is then taken apart to find the event that is to blame, and that one is dead.
    """

    def __init__(self, url: str, loop: Loop) -> None:
        self._url = url
        self._loop = loop
        self._client = httpx.Client(timeout=TIMEOUT_S)
        self._fresh: deque[tuple[float, Parcel]] = deque()
        self._batches: deque[Batch] = deque()
        self._queued = 0

    @property
    def ready(self) -> bool:
        return self._queued < MAX_QUEUED

    def send(self, parcel: Parcel) -> None:
        self._fresh.append((time.monotonic(), parcel))
        self._queued += 1

    def step(self) -> None:
        """Posts at most one batch."""
        now = time.monotonic()
        if len(self._fresh) >= BATCH or (self._fresh and now - self._fresh[0][0] >= LINGER_S):
            size = min(BATCH, len(self._fresh))
            self._batches.append(Batch([self._fresh.popleft()[1] for _ in range(size)]))
        if self._batches and self._batches[0].not_before <= now:
            self._post(self._batches.popleft())

    def _post(self, batch: Batch) -> None:
        body = {"events": [_vendor_event(parcel.event) for parcel in batch.parcels]}
        try:
            status = self._client.post(self._url, json=body).status_code
        except httpx.TransportError as error:
            self._again(batch, repr(error))
            return
        if 200 <= status < 300:
            self._leave(batch, None)
        elif status in RECOVERABLE or status >= 500:
            self._again(batch, f"HTTP {status}")
        elif len(batch.parcels) > 1:
            self._batches.extendleft(Batch([parcel]) for parcel in reversed(batch.parcels))
        else:
            self._leave(batch, f"HTTP {status}")

    def _again(self, batch: Batch, why: str) -> None:
        pause_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2**batch.failures) * random.uniform(0.5, 1.0)
        batch.failures += 1
        batch.not_before = time.monotonic() + pause_s
        self._batches.appendleft(batch)
        log.warning("%s: %s, attempt %d, again in %.1f s", self._url, why, batch.failures, pause_s)

    def _leave(self, batch: Batch, rejected: str | None) -> None:
        self._queued -= len(batch.parcels)
        for parcel in batch.parcels:
            if rejected is None:
                self._loop.sent_out(parcel)
            else:
                self._loop.rejected(parcel, rejected)


def _vendor_event(event: Event) -> dict[str, object]:
    return {"event_id": event.id, "event_time": event.event_time_ms, "content": json.loads(event.body)}


def connector(node: str, settings: Settings) -> tuple[Loop, VendorOutlet]:
    """The loop of a delivering node, with the outlet to run it with."""
    vendor = next(name for name, delivers in VENDORS.items() if delivers == node)
    loop = Loop(node, settings, deliver)
    return loop, VendorOutlet(f"{settings.receiver_url}/v1/{vendor}/events", loop)
