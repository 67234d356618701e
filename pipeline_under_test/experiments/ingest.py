"""Cost of answering only for safe events: an acknowledgement of every copy, for each request.

A fixed number of clients post events to col-service, each its next request once the last one is answered (a closed
loop: so it measures what is sustained, and response times at that load, not those of a burst). col-service answers when
every in-sync copy of each event is acknowledged. A request of one event waits for that alone; a request of a
hundred shares the wait. Once with one broker, once with three: three copies of each event.

lagloss has no part in this: a response ends where its account begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import httpx2

from lagloss.wire.sketch import rank
from pipeline_under_test.experiments.chart import Chart, ChartLine, ChartPanel
from pipeline_under_test.experiments.sandbox import sandbox
from pipeline_under_test.stream.rating.load_test import apart, ready_bench
from pipeline_under_test.stream.rating.traffic import ALL_READABLE
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import COL_SERVICE
from pipeline_under_test.stream.traffic.load import EventMaker

BROKERS: Final = (1, 3)
BATCHES: Final = (1, 10, 100)
CLIENTS: Final = 8
WARM_UP_S: Final = 3.0
TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that was answered `at_s` (monotonic clock), after `took_s`."""

    at_s: float
    took_s: float


@dataclass(frozen=True, slots=True)
class IngestTrial:
    """Result of one number of events in a request."""

    events_per_s: float
    response_p50_ms: float
    response_p95_ms: float


Runs = Mapping[tuple[int, int], IngestTrial]
"""By brokers and events in a request."""


def measure(seconds: float, say: Callable[[str], None]) -> dict[tuple[int, int], IngestTrial]:
    """Load col-service with each number of brokers and of events in a request; `say` is called with each."""
    runs = {}
    for brokers in BROKERS:
        name = f"ingest-{brokers}"
        with sandbox(brokers) as box:
            settings = apart(ReferenceSettings(data_dir=box.folder, bootstrap=box.bootstrap), box.folder / name, name)
            with ready_bench(settings, COL_SERVICE) as bench:
                for batch in BATCHES:
                    say(f"{_copies(brokers)}: {seconds:.0f} s of requests with {batch} events")
                    answered = asyncio.run(_loaded(settings.collector_url, batch, WARM_UP_S + seconds))
                    bench.tend()
                    runs[brokers, batch] = trial(answered, batch)
    return runs


async def _loaded(url: str, batch: int, seconds: float) -> list[Answered]:
    answered: list[Answered] = []
    maker, end_s = EventMaker(0, ALL_READABLE), time.monotonic() + seconds

    async def post_on(client: httpx2.AsyncClient) -> None:
        while time.monotonic() < end_s:
            now_ms = time.time_ns() // 1_000_000
            events = [maker.make(now_ms) for _ in range(batch)]
            sent_s = time.monotonic()
            (await client.post(f"{url}/events", json=events)).raise_for_status()
            answered.append(Answered(time.monotonic(), time.monotonic() - sent_s))

    async with httpx2.AsyncClient(timeout=TIMEOUT_S) as client, asyncio.TaskGroup() as clients:
        for _ in range(CLIENTS):
            clients.create_task(post_on(client))
    return answered


def trial(answered: Sequence[Answered], batch: int) -> IngestTrial:
    """Return the trial of these answers to requests of `batch` events, without the warm-up."""
    first_s, last_s = answered[0].at_s, answered[-1].at_s
    counted = [answer for answer in answered if answer.at_s > first_s + WARM_UP_S]
    took_ms = sorted(1000 * answer.took_s for answer in counted)
    return IngestTrial(
        len(counted) * batch / (last_s - first_s - WARM_UP_S),
        *(took_ms[rank(q, len(took_ms)) - 1] for q in (0.5, 0.95)),
    )


def figures(runs: Runs) -> dict[str, dict[str, float]]:
    """Return the experiment's figures, by brokers and events in a request."""
    return {
        f"{_copies(brokers)}, {batch} per request": {
            "events_per_s": round(run.events_per_s),
            "response_p50_ms": round(run.response_p50_ms, 1),
            "response_p95_ms": round(run.response_p95_ms, 1),
        }
        for (brokers, batch), run in runs.items()
    }


def chart(runs: Runs) -> Chart:
    """Draw one panel for the sustained rate, one for the time of an answer."""

    def lines(what: str) -> list[ChartLine]:
        return [
            ChartLine(
                _copies(brokers), [(index, getattr(runs[brokers, batch], what)) for index, batch in enumerate(BATCHES)]
            )
            for brokers in BROKERS
        ]

    return Chart(
        f"Responding only after acknowledgement: {CLIENTS} clients, each waiting for every response",
        "events per request",
        (
            ChartPanel("received, events/s", lines("events_per_s")),
            ChartPanel("response time of a request, median, ms", lines("response_p50_ms")),
            ChartPanel("response time of a request, p95, ms", lines("response_p95_ms")),
        ),
        tuple(map(str, BATCHES)),
    )


def _copies(brokers: int) -> str:
    return "1 broker, 1 replica" if brokers == 1 else f"{brokers} brokers, {brokers} replicas"
