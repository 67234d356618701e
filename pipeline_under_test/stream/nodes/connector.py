"""conn-ga and conn-fb: batches of events to a vendor over HTTP, several requests at a time.

A request is answered for each event that it held: delivered (ACK), or one of three kinds of failure.

- The vendor may take it later: no answer, 408, 425, 429, 5xx. It is tried again here, a few times within seconds, with
  growing pauses and jitter, or as late as Retry-After says. Then, or at once where that is too late to wait for, it
  goes to the global retrier (`retry: global`), which brings it back later while others go on; or it is refused
  (`retry: local`, NACK): read again and again, with all that stands behind it.
- The vendor will never take it: any other 4xx. It goes to the dead-letter queue at once. A batch that is refused so is
  taken apart first, to find the event that is to blame. (`retry: everything` treats these as the first kind, to show
  what that costs.)
- It cannot be put into a request at all: that was decided before.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import httpx2

from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.events.schema import SchemaReader, Unreadable, reader_of
from pipeline_under_test.stream.nodes.decision import Dead, Decision, Pass
from pipeline_under_test.stream.nodes.loop import Loop
from pipeline_under_test.stream.nodes.worker import OutboundEvent
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import VENDORS

log = logging.getLogger(__name__)

LINGER_S: Final = 0.1
"""How long an event waits for others to fill its batch."""
BATCHES_QUEUED: Final = 2
"""Batches that wait for each one under way, at most; a vendor slower than that raises lag, not memory."""
TIMEOUT_S: Final = 10.0
LOCAL_TRIES: Final = 4
FIRST_PAUSE_S: Final = 0.2
MAX_PAUSE_S: Final = 10.0
RECOVERABLE: Final = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
"""The 4xx that may pass; so may every 5xx."""


class Deliverer:
    """Decision of a connector: all that can be read can be put into a request."""

    def __init__(self, reader: SchemaReader) -> None:
        self._reader = reader

    def __call__(self, event: Event) -> Decision:
        try:
            self._reader.decode(event.body)
        except Unreadable as error:
            return Dead(f"unreadable: {error}")
        return Pass(event)


@dataclass(slots=True)
class ConnectorBatch:
    """Events sent in one request; `not_before` is on the monotonic clock, in seconds."""

    outbounds: list[OutboundEvent]
    tries: int = 0
    not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class VendorAnswer:
    """Vendor's answer to one request.

    `taken` holds the places in the batch of the events it took. `failure` says what became of the others, and
    `may_pass` whether another try may end otherwise; `pause_s` is what the vendor asked for.
    """

    taken: frozenset[int] = frozenset()
    failure: str = ""
    may_pass: bool = False
    pause_s: float = 0.0


@dataclass(slots=True)
class Vendor:
    """The vendor's endpoint. Its methods are called from several threads."""

    url: str
    reader: SchemaReader
    client: httpx2.Client = field(default_factory=lambda: httpx2.Client(timeout=TIMEOUT_S))

    def post(self, events: Sequence[Event]) -> VendorAnswer:
        """Post these events in one request."""
        try:
            response = self.client.post(self.url, json={"events": [self._document(event) for event in events]})
        except httpx2.RequestError as error:
            return VendorAnswer(failure=type(error).__name__, may_pass=True)
        status = response.status_code
        if status == HTTPStatus.MULTI_STATUS:
            return VendorAnswer(_taken(response, len(events)), "HTTP 207, not accepted", may_pass=True)
        if 200 <= status < 300:
            return VendorAnswer(frozenset(range(len(events))))
        may_pass = status in RECOVERABLE or status >= 500
        return VendorAnswer(failure=f"HTTP {status}", may_pass=may_pass, pause_s=_retry_after(response))

    def _document(self, event: Event) -> dict[str, Any]:
        return {"event_id": event.id, "event_time": event.event_time_ms, "content": self.reader.decode(event.body)}


def _taken(response: httpx2.Response, sent: int) -> frozenset[int]:
    """Return the places of the events that a vendor says it took; none where that is unknown: a vendor gets an event
    twice rather than never."""
    try:
        return frozenset(response.json()["accepted"]).intersection(range(sent))
    except (ValueError, LookupError, TypeError):
        return frozenset()


def _retry_after(response: httpx2.Response) -> float:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else 0.0


class VendorOutlet:
    """Fills batches and posts them, `parallel` at a time; see the top of this page for what becomes of the answers."""

    def __init__(self, settings: ReferenceSettings, loop: Loop, vendor: Vendor) -> None:
        self._loop = loop
        self._vendor = vendor
        self._batch = settings.batch
        self._parallel = settings.parallel
        self._retry = settings.retry
        self._max_queued = settings.batch * settings.parallel * (1 + BATCHES_QUEUED)
        self._pool = ThreadPoolExecutor(settings.parallel, thread_name_prefix="vendor")
        self._fresh: deque[tuple[float, OutboundEvent]] = deque()
        self._waiting: list[ConnectorBatch] = []
        self._posted: list[tuple[ConnectorBatch, Future[VendorAnswer]]] = []
        self._queued = 0

    @property
    def ready(self) -> bool:
        return self._queued < self._max_queued

    def send(self, outbound: OutboundEvent) -> None:
        self._fresh.append((time.monotonic(), outbound))
        self._queued += 1

    def step(self) -> None:
        """Take the answers that have come, and post what is due."""
        under_way, self._posted = self._posted, []
        for batch, future in under_way:
            if future.done():  # asked once: it may become so at any moment
                self._answered(batch, future.result())
            else:
                self._posted.append((batch, future))
        now = time.monotonic()
        while len(self._posted) < self._parallel and (fresh := self._next(now)) is not None:
            fresh.tries += 1
            events = [outbound.event for outbound in fresh.outbounds]
            self._posted.append((fresh, self._pool.submit(self._vendor.post, events)))

    def close(self) -> None:
        """Abandon requests under way: their events are read again."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _next(self, now: float) -> ConnectorBatch | None:
        """Return the batch to post now: one that is due again, else a fresh one that is full or has waited."""
        due = next((batch for batch in self._waiting if batch.not_before <= now), None)
        if due is not None:
            self._waiting.remove(due)
            return due
        if len(self._fresh) >= self._batch or (self._fresh and now - self._fresh[0][0] >= LINGER_S):
            return ConnectorBatch([self._fresh.popleft()[1] for _ in range(min(self._batch, len(self._fresh)))])
        return None

    def _answered(self, batch: ConnectorBatch, answer: VendorAnswer) -> None:
        unanswered = [outbound for place, outbound in enumerate(batch.outbounds) if place not in answer.taken]
        for place in answer.taken:
            self._queued -= 1
            self._loop.delivered(batch.outbounds[place])
        if not unanswered:
            return
        if answer.may_pass or self._retry == "everything":
            self._again(ConnectorBatch(unanswered, batch.tries), answer)
        elif len(unanswered) > 1:
            self._waiting.extend(ConnectorBatch([outbound]) for outbound in unanswered)
        else:
            self._leave(unanswered, answer.failure)

    def _again(self, batch: ConnectorBatch, answer: VendorAnswer) -> None:
        if batch.tries >= LOCAL_TRIES or answer.pause_s > MAX_PAUSE_S:
            self._give_up(batch, answer.failure)
            return
        pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**batch.tries) * random.uniform(0.5, 1.0)
        batch.not_before = time.monotonic() + max(pause_s, answer.pause_s)
        self._waiting.append(batch)
        log.info("%s: %s, attempt %d, retrying in %.1f s", self._vendor.url, answer.failure, batch.tries, pause_s)

    def _give_up(self, batch: ConnectorBatch, failure: str) -> None:
        log.warning(
            "%s: giving up: %s after %d attempts, %d events",
            self._vendor.url,
            failure,
            batch.tries,
            len(batch.outbounds),
        )
        self._queued -= len(batch.outbounds)
        for outbound in batch.outbounds:
            if self._retry == "local":
                self._loop.refused(outbound)
            else:
                self._loop.retry_later(outbound, failure)

    def _leave(self, outbounds: Sequence[OutboundEvent], failure: str) -> None:
        self._queued -= len(outbounds)
        for outbound in outbounds:
            self._loop.rejected(outbound, failure)


def connector(node: str, settings: ReferenceSettings) -> tuple[Loop, VendorOutlet]:
    """Return the loop of a delivering node, with the outlet to run it with."""
    name = next(name for name, delivers in VENDORS.items() if delivers == node)
    reader = reader_of(settings.bootstrap, settings.pipeline)
    loop = Loop(node, settings, Deliverer(reader))
    vendor = Vendor(f"{settings.receiver_url}/v1/{name}/events", reader)
    return loop, VendorOutlet(settings, loop, vendor)
