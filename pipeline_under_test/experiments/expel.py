"""Cost of a round trip to a vendor, and how batches and requests at a time make up for it.

The vendor takes 50 ms to answer. One connector delivers to it, alone, with each size of a batch and each number of
requests at a time: first a queue that it empties as fast as it can (a replay by its header, so that lagloss leaves it
out of lags), then events that arrive at a fixed rate. lagloss runs beside it and measures their lag and loss: a rate
above what the connector can do shows as lag that grows for as long as the events come.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

import httpx2

from lagloss.wire.format import WINDOW_S
from lagloss_server.model.definition import Definition
from lagloss_server.model.window import ListedWindow
from lagloss_server.store.store import Store
from pipeline_under_test.experiments import NotMeasured
from pipeline_under_test.experiments.chart import Chart, ChartLine, ChartPanel
from pipeline_under_test.harness.stack import ScenarioStack
from pipeline_under_test.harness.verdict import LATEST_S
from pipeline_under_test.stream.faults import parse
from pipeline_under_test.stream.rating.load_test import SEND_EVERY_S, Bench, apart, attempt, ready_bench
from pipeline_under_test.stream.rating.traffic import TopicTraffic
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import CONN_GA

ROUND_TRIP_S: Final = 0.05
SLOW: Final = f"receiver:ga:slow={ROUND_TRIP_S * 1000:g}ms:1"
BATCHES: Final = (1, 10, 50)
PARALLEL: Final = (1, 4, 16)
RATE: Final = 100.0
"""Rate of arrivals, events per second."""
QUEUE_S: Final = 5.0
"""The queue is what takes so long if nothing but the round trip does."""
MAX_QUEUE: Final = 5000
QUEUE_TIMEOUT_S: Final = 60.0
GRACE_S: Final = 5
LOOK_EVERY_S: Final = 1.0
Way = tuple[int, int]
"""Events in a request, and requests at a time."""


@dataclass(frozen=True, slots=True)
class ExpelRun:
    """Result of a connector: `events_per_s` is what it can do, lag and loss are those of arrivals at RATE, by
    lagloss; the lag is that of the worst of its windows."""

    events_per_s: float
    lag_p95_s: float
    lost: tuple[int, int]


Runs = Mapping[Way, ExpelRun]


def measure(seconds: float, say: Callable[[str], None]) -> dict[Way, ExpelRun]:
    """Run a connector in each way, with arrivals for `seconds`; `say` is called with each result."""
    able = {}
    with ScenarioStack() as stack, closing(Store(stack.settings.require_database())) as store:
        for way in [(batch, parallel) for batch in BATCHES for parallel in PARALLEL]:
            store.apply(definition(name_of(way)))
            able[way] = _delivered(stack, way, seconds)
            say(f"{way[0]} per request, {way[1]} in parallel: {able[way]:.0f} events/s")
        say("waiting for lagloss to close the last windows")
        return {way: run_of(per_s, _windows(store, name_of(way))) for way, per_s in able.items()}


def name_of(way: Way) -> str:
    """Return the pipeline's name for this run."""
    return f"expel-{way[0]}-by-{way[1]}"


def definition(name: str) -> Definition:
    """Return the definition for lagloss: a pipeline that is the connector alone."""
    return Definition.model_validate(
        {
            "apiVersion": "lagloss/v1",
            "kind": "Pipeline",
            "metadata": {"name": name},
            "spec": {"nodes": [{"name": CONN_GA}], "grace": f"{GRACE_S}s", "maxWait": "5m"},
        }
    )


def queue_for(way: Way) -> int:
    """Return the length of the queue to empty, enough for some seconds."""
    batch, parallel = way
    return min(MAX_QUEUE, int(QUEUE_S / ROUND_TRIP_S) * batch * parallel)


def _delivered(stack: ScenarioStack, way: Way, seconds: float) -> float:
    """Let a connector deliver a queue, then arrivals; return the queue's events per second."""
    with _connector(stack, way) as (settings, bench):
        per_s = _emptied(settings, bench, queue_for(way))
        with closing(TopicTraffic(settings, CONN_GA)) as arrivals:
            attempt(bench, arrivals, RATE, seconds, math.inf)
    return per_s


@contextmanager
def _connector(stack: ScenarioStack, way: Way) -> Iterator[tuple[ReferenceSettings, Bench]]:
    batch, parallel = way
    shared = ReferenceSettings(
        data_dir=stack.directory, bootstrap=stack.settings.require_kafka(), batch=batch, parallel=parallel
    )
    settings = apart(shared, stack.directory / "pipelines" / name_of(way), name_of(way))
    settings.injections().begin_anew([parse(SLOW)])
    with ready_bench(settings, CONN_GA) as bench:
        yield settings, bench


def _emptied(settings: ReferenceSettings, bench: Bench, count: int) -> float:
    """Let the connector empty a queue; return how many events per second the vendor took."""
    with (
        closing(TopicTraffic(settings, CONN_GA, replay="queue")) as queue,
        httpx2.Client(base_url=settings.receiver_url) as vendor,
    ):
        deadline, counts = time.monotonic() + QUEUE_TIMEOUT_S, [(time.monotonic(), 0)]
        queue.send(count)
        while queue.oldest_s() is not None or counts[-1][1] < count:
            if time.monotonic() > deadline:
                raise NotMeasured(f"expected {count} events to be delivered in {QUEUE_TIMEOUT_S:.0f} s, found {counts}")
            counts.append((time.monotonic(), vendor.get("/counts").json()["ga"]["events"]))
            queue.look()
            bench.tend()
            time.sleep(SEND_EVERY_S)
    return rate_of(counts)


def rate_of(counts: Sequence[tuple[float, int]]) -> float:
    """Return events per second from the last look that found none to the first that found all; looks: (s, events)."""
    began_s = max(at_s for at_s, count in counts if not count)
    ended_s, count = next(look for look in counts if look[1] == counts[-1][1])
    return count / (ended_s - began_s)


def _windows(store: Store, pipeline: str) -> list[ListedWindow]:
    """Return all windows with messages, once each is settled."""
    deadline = time.monotonic() + WINDOW_S + GRACE_S + LATEST_S
    while True:
        windows = [window for window in store.windows(pipeline, 0, int(time.time()) + WINDOW_S) if window.messages]
        if windows and all(window.is_settled for window in windows):
            return list(windows)
        if time.monotonic() > deadline:
            raise NotMeasured(f"expected all windows of {pipeline} to be settled, found {windows}")
        time.sleep(LOOK_EVERY_S)


def run_of(events_per_s: float, windows: Sequence[ListedWindow]) -> ExpelRun:
    """Return the measured run, with lagloss's lags of arrivals."""
    lag_ms = max(window.e2e_lag_ms.p95 or 0.0 for window in windows)
    lost = (sum(window.lost_min for window in windows), sum(window.lost_max for window in windows))
    return ExpelRun(events_per_s, lag_ms / 1000, lost)


def figures(runs: Runs) -> dict[str, dict[str, float]]:
    """Return the experiment's figures, by events in a request and requests at a time."""
    return {
        f"{batch} per request, {parallel} in parallel": {
            "events_per_s": round(run.events_per_s),
            "lag_p95_s": round(run.lag_p95_s, 2),
            "lost_min": run.lost[0],
            "lost_max": run.lost[1],
        }
        for (batch, parallel), run in runs.items()
    }


def chart(runs: Runs) -> Chart:
    """Draw one panel for the throughput of a connector, one for the resulting lag."""

    def lines(what: str) -> list[ChartLine]:
        return [
            ChartLine(
                f"{parallel} parallel request{'s' if parallel > 1 else ''}",
                [(index, getattr(runs[batch, parallel], what)) for index, batch in enumerate(BATCHES)],
            )
            for parallel in PARALLEL
        ]

    return Chart(
        f"A round trip of {ROUND_TRIP_S * 1000:g} ms to the vendor: batch size and parallel requests",
        "maximum events per request",
        (
            ChartPanel("delivered from a queue, events/s", lines("events_per_s")),
            ChartPanel(f"p95 lag at {RATE:g} events/s, s (lagloss)", lines("lag_p95_s")),
        ),
        tuple(map(str, BATCHES)),
    )
