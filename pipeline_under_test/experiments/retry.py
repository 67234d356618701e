"""Cost of retries: on the spot, by way of the global retrier, and what can never succeed.

Both vendors refuse most of their requests for a while (503), and one event in a hundred for ever (400). The same load
runs three times. `local` tries on the spot, then reads again, and all that stands behind it waits and is sent again.
`global` tries on the spot, then hands over to the tiers of the global retrier. Both put what gets a 400 into the
dead-letter queue at once. `everything` is the bad example: it tries a 400 again like a 503, and with it the innocent
events of the same request.

Each run is a scenario: lagloss runs beside it, and its windows are compared with the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2

from lagloss.wire.format import WINDOW_S
from lagloss_server.base.times import parse_time_s
from pipeline_under_test.experiments.chart import Chart, ChartLine, ChartPanel
from pipeline_under_test.experiments.sandbox import lag_s, verdict_of
from pipeline_under_test.stream.outcome import windows_of
from pipeline_under_test.stream.run import run_all
from pipeline_under_test.stream.scenario import Scenario
from pipeline_under_test.stream.settings import Retry
from pipeline_under_test.stream.topology import VENDORS

POLICIES: Final[tuple[Retry, ...]] = ("local", "global", "everything")
RATE: Final = 40.0
BATCH: Final = 20
TIERS: Final = ("4s", "8s", "16s")
REFUSED: Final = 0.7
"""Share of requests refused while vendors are in trouble: with four tries on the spot, one in four fails for good."""
HOPELESS: Final = 0.01
"""Share of the events to each vendor."""
TROUBLE: Final = (1 / 5, 2 / 5)
"""When the trouble begins and how long it lasts, as shares of the load's time."""
RUNNING: Final = frozenset({"load", "draining", "settling"})
"""The phases in which there is a receiver to ask."""


@dataclass(frozen=True, slots=True)
class RetrySample:
    """All so far, `at_s` seconds after the load began. An event for both vendors counts at each; what is delivered
    or set aside again counts again."""

    at_s: float
    requests: int
    deliveries: int
    dead_letters: int


@dataclass(slots=True)
class RetryRun:
    """One policy's; `began_s` is the load's first second (epoch)."""

    began_s: float = 0.0
    samples: list[RetrySample] = field(default_factory=list)
    verdict: Mapping[str, Any] = field(default_factory=dict)
    """`pipeline verdict`'s document."""


Runs = Mapping[Retry, RetryRun]


def measure(seconds: float, say: Callable[[str], None]) -> dict[Retry, RetryRun]:
    """Run the pipeline under the same load and trouble, once with each policy; `say` is called with progress.

    Raises:
        NotMeasured: if a run does not get to its end.
    """
    runs: dict[Retry, RetryRun] = {policy: RetryRun() for policy in POLICIES}
    with httpx2.Client() as vendors:

        def observe(scenario: Scenario, progress: Mapping[str, Any]) -> None:
            if progress["phase"] in RUNNING:
                _sample(runs[scenario.run.retry], progress, vendors)

        outcomes = run_all([scenario(policy, seconds) for policy in POLICIES], say, observe)
        for policy, outcome in zip(POLICIES, outcomes, strict=True):
            runs[policy].verdict = verdict_of(outcome)
    return runs


def scenario(policy: Retry, seconds: float) -> Scenario:
    """Return the run with this policy."""
    begins_s, lasts_s = (share * seconds for share in TROUBLE)
    during = {"at": f"{1000 * begins_s:.0f}ms", "for": f"{1000 * lasts_s:.0f}ms"}
    faults = [{**during, "fault": f"receiver:{vendor}:503:{REFUSED}"} for vendor in VENDORS]
    faults += [{"at": "0s", "fault": f"refuse:{vendor}:{HOPELESS}"} for vendor in VENDORS]
    return Scenario.model_validate(
        {
            "name": f"retry-{policy}",
            "description": f"vendors reject requests for {lasts_s:.0f} s; retry policy: {policy}",
            "load": {"rate": RATE, "minutes": seconds / 60},
            "run": {"retry": policy, "batch": BATCH, "tiers": TIERS, "grace": "5s", "maxWait": "3m"},
            "faults": faults,
        }
    )


def _sample(run: RetryRun, progress: Mapping[str, Any], vendors: httpx2.Client) -> None:
    if not run.samples:
        run.began_s = time.time()
    counts = vendors.get(f"{progress['receiver_url']}/counts").json()
    requests = sum(number_by_kind["requests"] for number_by_kind in counts.values())
    run.samples.append(RetrySample(time.time() - run.began_s, requests, progress["delivered"], progress["dead"]))


def figures(runs: Runs) -> dict[str, dict[str, float]]:
    """Return the experiment's figures, by policy."""
    return {policy: _figures(run) for policy, run in runs.items()}


def _figures(run: RetryRun) -> dict[str, float]:
    injected, measured, windows = run.verdict["injected"], run.verdict["measured"], windows_of(run.verdict)
    last = run.samples[-1]
    return {
        "events": injected["messages"],
        "delivered": injected["delivered"],
        "dead_letters": last.dead_letters,
        "deliveries_too_many": measured["duplicates"],
        "requests": last.requests,
        "deliveries_a_request": round(last.deliveries / last.requests, 1),
        "lag_p50_s_highest": round(max(lag_s(window, "p50") for window in windows), 1),
        "lag_p95_s_highest": round(max(lag_s(window, "p95") for window in windows), 1),
        "lost_min": measured["lost"]["min"],
        "lost_max": measured["lost"]["max"],
        "ledger_agrees": run.verdict["agree"],
    }


def chart(runs: Runs) -> Chart:
    """Draw the policies, one panel for each kind of cost."""

    def lines(what: str) -> list[ChartLine]:
        return [
            ChartLine(f"retry: {policy}", [(sample.at_s, getattr(sample, what)) for sample in run.samples])
            for policy, run in runs.items()
        ]

    return Chart(
        f"Vendors reject {REFUSED:.0%} of the requests for a while, and {HOPELESS:.0%} of the events permanently",
        "seconds",
        (
            ChartPanel("requests to vendors", lines("requests")),
            ChartPanel("deliveries, including repeated ones", lines("deliveries")),
            ChartPanel("dead letters, including repeated ones", lines("dead_letters")),
            ChartPanel(
                "p95 of E2E lag by minute of event time, s (lagloss)",
                [ChartLine(f"retry: {policy}", lag_steps(run)) for policy, run in runs.items()],
            ),
        ),
    )


def lag_steps(run: RetryRun) -> Sequence[tuple[float, float]]:
    """Return each window's p95, in s, from the window's start to its end, or the load's."""
    points = []
    for window in windows_of(run.verdict):
        start_s = parse_time_s(window["window_start"]) - run.began_s
        points += [(max(0.0, start_s), lag_s(window, "p95")), (start_s + WINDOW_S, lag_s(window, "p95"))]
    last_s = run.samples[-1].at_s
    return [(min(at_s, last_s), lag_s) for at_s, lag_s in points]
