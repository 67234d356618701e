"""A beacon beside an OpenTelemetry span: what the caller pays for one, and what all threads together pay.

Both sides do all of their work but the network's: beacons are hashed, packed, encoded and accounted for and end in an
outlet that acknowledges them; spans go through a BatchSpanProcessor, are encoded as OTLP and end in an HTTP session
that answers 200. A span has no attributes, so it says less than a beacon; one that says the same is shown, too.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from requests.adapters import BaseAdapter

from lagloss import Emitter
from lagloss.checksums import Checksums
from lagloss.sdk.emitter import MAX_BUFFERED
from lagloss.sdk.flusher import wait_s
from lagloss.sdk.outlets.kafka import MemoryOutlet

ROUNDS = 5
ITEMS = 10_000
A_FLUSH = (100, 500, 5_000)
"""Items between two flushes."""
PER_SECOND = 100
"""A service's messages."""
SPANS_EVERY_S = 5.0
"""The default of OTEL_BSP_SCHEDULE_DELAY: how long a BatchSpanProcessor waits while it has fewer than 512 spans."""
ASKED_CALLER, ASKED_ALL = 1 / 20, 1 / 10
PAYLOAD_BYTES = (100, 1_000, 10_000)
SPAN = "span"
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

Observe = Callable[[Sequence[str], int], None]
"""Takes the ids of one flush, and their event time in epoch ms."""


@dataclass(frozen=True)
class Subject:
    """Something to be measured: what the caller does, and how what it left behind is sent."""

    observe: Observe
    flush: Callable[[], object]


@dataclass(frozen=True)
class Price:
    """CPU time of one item, in µs."""

    caller: float
    everything: float


def run() -> None:
    """Print the price of each kind of item, and of each beacon in spans."""
    for a_flush in A_FLUSH:
        _show(f"{a_flush:,} items a flush", _measure(a_flush, a_flush))
    interval_s = _flush_interval_s(PER_SECOND)
    beacons, spans = round(PER_SECOND * interval_s), round(PER_SECOND * SPANS_EVERY_S)
    title = f"at {PER_SECOND} a second and process: {beacons} beacons a flush ({interval_s:g} s)"
    _show(f"{title}, {spans} spans a batch ({SPANS_EVERY_S:g} s)", _measure(beacons, spans))
    print(f"asked for: caller 1/{1 / ASKED_CALLER:.0f}, all CPU 1/{1 / ASKED_ALL:.0f}")


def _show(title: str, prices: Mapping[str, Sequence[Price]]) -> None:
    print(f"{title}; {ROUNDS} rounds of {ITEMS:,} items, in turn; µs of CPU an item")
    print(f"{'':32}{'caller min':>11}{'median':>8}{'all min':>9}{'median':>8}   medians in spans: caller, all")
    span = _summary(prices[SPAN], statistics.median)
    for name, price in prices.items():
        least, median = _summary(price, min), _summary(price, statistics.median)
        shares = f"1/{span.caller / median.caller:.0f}, 1/{span.everything / median.everything:.0f}"
        line = f"{name:32}{least.caller:11.2f}{median.caller:8.2f}{least.everything:9.2f}{median.everything:8.2f}"
        print(f"{line}   {shares}")


def _flush_interval_s(per_second: int) -> float:
    """Return the seconds from one flush to the next that the emitter chooses at a steady rate."""
    waited_s = 0.0
    while (left_s := wait_s(waited_s, int(per_second * waited_s), MAX_BUFFERED, is_awaited=False)) > 0:
        waited_s += left_s
    return waited_s


def _summary(prices: Sequence[Price], function: Callable[[Iterator[float]], float]) -> Price:
    return Price(function(price.caller for price in prices), function(price.everything for price in prices))


def _measure(beacons_a_flush: int, spans_a_flush: int) -> dict[str, list[Price]]:
    prices: dict[str, list[Price]] = defaultdict(list)
    with _subjects() as subjects:
        for round_ in range(-1, ROUNDS):  # the first warms up
            for name, subject in subjects.items():
                price = _price(subject, spans_a_flush if name.startswith(SPAN) else beacons_a_flush)
                if round_ >= 0:
                    prices[name].append(price)
    return prices


def _price(subject: Subject, a_flush: int) -> Price:
    ids = [f"{at:032x}-{time.monotonic_ns() % 1000:03}" for at in range(ITEMS)]
    gc.collect()
    caller_ns, began_ns = 0, time.process_time_ns()
    for index in range(0, ITEMS, a_flush):
        batch, event_ms = ids[index : index + a_flush], time.time_ns() // 1_000_000
        before_ns = time.thread_time_ns()
        subject.observe(batch, event_ms)
        caller_ns += time.thread_time_ns() - before_ns
        subject.flush()
    return Price(caller_ns / ITEMS / 1000, (time.process_time_ns() - began_ns) / ITEMS / 1000)


@contextmanager
def _subjects() -> Iterator[dict[str, Subject]]:
    """Yield the spans and beacons to compare."""
    session = requests.Session()
    session.mount("http://", _Answers())
    checksums = Checksums()
    inner = Emitter("bench", "mid", outlet=_Acknowledges)
    first = Emitter("bench", "src", outlet=_Acknowledges, first=True)
    providers = [TracerProvider(), TracerProvider()]
    queue = ITEMS + 1  # none may be dropped: a dropped span costs next to nothing
    exporters: list[SpanExporter] = [OTLPSpanExporter("http://null/v1/traces", session=session), _Nowhere()]
    for provider, exporter in zip(providers, exporters, strict=True):
        provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=queue))
    otlp, nowhere = (provider.get_tracer("bench") for provider in providers)

    def span(ids: Sequence[str], event_ms: int) -> None:
        for _ in ids:
            otlp.start_span("in").end()

    def telling_span(ids: Sequence[str], event_ms: int) -> None:
        for message_id in ids:
            otlp.start_span("in", attributes={"messaging.message.id": message_id, "lagloss.event_time": event_ms}).end()

    def span_nowhere(ids: Sequence[str], event_ms: int) -> None:
        for _ in ids:
            nowhere.start_span("in").end()

    def received(ids: Sequence[str], event_ms: int) -> None:
        for message_id in ids:
            inner.received(message_id, event_ms)

    def sent(ids: Sequence[str], event_ms: int) -> None:
        for message_id in ids:
            inner.sent(message_id, event_ms)

    def received_at_once(emitter: Emitter) -> Subject:
        def observe(ids: Sequence[str], event_ms: int) -> None:
            emitter.observe_all("received", ids, np.full(len(ids), event_ms))

        return Subject(observe, emitter.flush)

    def sent_to(ids: Sequence[str], event_ms: int) -> None:
        for message_id in ids:
            inner.sent(message_id, event_ms, to="snk")

    def received_first(ids: Sequence[str], event_ms: int) -> None:
        for message_id in ids:
            first.received(message_id, event_ms)

    def received_traced(ids: Sequence[str], event_ms: int) -> None:
        for message_id in ids:
            first.received(message_id, event_ms, traceparent=TRACEPARENT)

    def received_checked(payload: bytes) -> Subject:
        def observe(ids: Sequence[str], event_ms: int) -> None:
            for message_id in ids:
                inner.received(message_id, event_ms, **checksums.of(payload))

        return Subject(observe, inner.flush)

    try:
        yield {
            SPAN: Subject(span, providers[0].force_flush),
            "span with id and event time": Subject(telling_span, providers[0].force_flush),
            "span to a no-op exporter": Subject(span_nowhere, providers[1].force_flush),
            "received": Subject(received, inner.flush),
            "sent": Subject(sent, inner.flush),
            "sent to a named node": Subject(sent_to, inner.flush),
            "received at the first node": Subject(received_first, first.flush),
            "received as columns": received_at_once(inner),
            "at the first node as columns": received_at_once(first),
            "received there with a trace": Subject(received_traced, first.flush),
            **{f"received with checksum of {size:,} B": received_checked(b"x" * size) for size in PAYLOAD_BYTES},
        }
    finally:
        for emitter in (inner, first):
            emitter.close()
        for provider in providers:
            provider.shutdown()


class _Acknowledges(MemoryOutlet):
    """Acknowledges every record and keeps none."""

    def poll(self, timeout_s: float) -> None:
        super().poll(timeout_s)
        self.records.clear()


class _Answers(BaseAdapter):
    """Answers every request with 200, without a network."""

    def send(self, request: requests.PreparedRequest, *args: object, **options: object) -> requests.Response:
        response = requests.Response()
        response.status_code, response.request, response._content = 200, request, b""
        return response

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class _Nowhere(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS
