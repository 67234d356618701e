"""At most once, at least once, exactly once: what a node that is killed again and again loses, doubles and reorders.

event-norm takes some time with each event and is killed every few seconds, so that it always has something in hand. It
commits before it does the work (at most once), after it (at least once), or both in one transaction (exactly once). No
node sends a beacon: lagloss reads the topics and commits. What is written behind a later record is counted in the
topics themselves, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from confluent_kafka import Message

from pipeline_under_test.experiments.chart import Chart, ChartLine, ChartPanel
from pipeline_under_test.experiments.sandbox import lag_s, verdict_of
from pipeline_under_test.stream.events.event import Event, NoIdentity
from pipeline_under_test.stream.kafka.offset_range_reader import OffsetRangeReader
from pipeline_under_test.stream.outcome import windows_of
from pipeline_under_test.stream.run import run_all
from pipeline_under_test.stream.scenario import Scenario
from pipeline_under_test.stream.topology import COL_SERVICE, EVENT_NORM, EVENT_ROUTER, topic_of

Mode = Literal["at-most-once", "at-least-once", "exactly-once"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
OPTIONS: Final[Mapping[Mode, Mapping[str, bool]]] = {
    "at-most-once": {"atMostOnce": True},
    "at-least-once": {},
    "exactly-once": {"exactlyOnce": True},
}
BEFORE: Final = f"{COL_SERVICE}.out"
OUT: Final = f"{EVENT_NORM}.out"
RATE: Final = 60.0
WORK: Final = "8ms"
"""With each event: at this rate half of the node's time."""
KILLED_EACH: Final = "10s"
KILLING: Final = (1 / 6, 1 / 2)
"""When the killing begins and how long it lasts, as shares of the load's time."""


@dataclass(slots=True)
class DeliveryRun:
    """One mode's. `reordered`: events that stand in event-router's topic behind a later one of their partition."""

    verdict: Mapping[str, Any]
    reordered: int


Runs = Mapping[Mode, DeliveryRun]


def measure(seconds: float, say: Callable[[str], None]) -> dict[Mode, DeliveryRun]:
    """Run the pipeline under the same load and kills, once in each mode; `say` is called with progress.

    Raises:
        NotMeasured: if a run does not get to its end.
    """
    reordered: dict[str, int] = {}

    def observe(scenario: Scenario, progress: Mapping[str, Any]) -> None:
        if progress["phase"] == "ended":
            reordered[scenario.name] = count_reordered(progress["bootstrap"], scenario.name)

    outcomes = run_all([scenario(mode, seconds) for mode in MODES], say, observe)
    return {
        mode: DeliveryRun(verdict_of(outcome), reordered[outcome.scenario])
        for mode, outcome in zip(MODES, outcomes, strict=True)
    }


def scenario(mode: Mode, seconds: float) -> Scenario:
    """Return the run in this mode."""
    begins_s, lasts_s = (share * seconds for share in KILLING)
    during = {"at": f"{1000 * begins_s:.0f}ms", "for": f"{1000 * lasts_s:.0f}ms"}
    return Scenario.model_validate(
        {
            "name": mode,
            "description": f"killing event-norm every {KILLED_EACH} for {lasts_s:.0f} s; delivery mode: {mode}",
            "load": {"rate": RATE, "minutes": seconds / 60},
            "run": {**OPTIONS[mode], "taps": True, "order": "partition", "grace": "5s", "maxWait": "1m"},
            "faults": [
                {"at": "0s", "fault": f"wait:{EVENT_NORM}:{WORK}:1"},
                {**during, "fault": f"crash:{EVENT_NORM}:{KILLED_EACH}"},
            ],
        }
    )


def count_reordered(bootstrap: str, pipeline: str) -> int:
    """Count events that event-norm wrote behind one that it had taken in later, of the same partition.

    Keys are ids, so both topics have an event in the same partition.
    """
    places = {
        message_id: (partition, offset)
        for message_id, partition, offset in _read(bootstrap, topic_of(pipeline, EVENT_NORM))
    }
    written = (places[message_id] for message_id, _, _ in _read(bootstrap, topic_of(pipeline, EVENT_ROUTER)))
    return behind_a_later_one(written)


def behind_a_later_one(written: Iterable[tuple[int, int]]) -> int:
    """Count the places (partition, offset), each once, that come after one of a higher offset in their partition."""
    highest: Counter[int] = Counter()
    passed: set[tuple[int, int]] = set()
    for partition, offset in written:
        if offset < highest[partition]:
            passed.add((partition, offset))
        highest[partition] = max(highest[partition], offset)
    return len(passed)


def _read(bootstrap: str, topic: str) -> Iterable[tuple[str, int, int]]:
    with closing(OffsetRangeReader(bootstrap, topic, f"{topic}.order")) as stretch:
        ends = stretch.ends()
        for records in stretch.read(dict.fromkeys(ends, 0), ends):
            yield from (place for record in records if (place := _place(record)) is not None)


def _place(record: Message) -> tuple[str, int, int] | None:
    try:
        return Event.from_record(record).id, record.partition() or 0, record.offset() or 0
    except NoIdentity:
        return None


def figures(runs: Runs) -> dict[str, dict[str, float]]:
    """Return the experiment's figures, by mode. `delivered_twice` and `unaccounted` are the ledger's, which knows
    nothing of what a killed process forgot."""
    return {mode: _figures(run) for mode, run in runs.items()}


def _figures(run: DeliveryRun) -> dict[str, float]:
    injected, measured, windows = run.verdict["injected"], run.verdict["measured"], windows_of(run.verdict)
    checkpoints = _at(windows, OUT)
    return {
        "events": measured["messages"],
        "lost_min": measured["lost"]["min"],
        "lost_max": measured["lost"]["max"],
        "unaccounted": injected["pending"],
        "doubled": sum(checkpoint["duplicates"] or 0 for checkpoint in checkpoints),
        "reordered": run.reordered,
        "out_of_order": sum(checkpoint.get("out_of_order", 0) for checkpoint in checkpoints),
        "out_of_order_before": sum(checkpoint.get("out_of_order", 0) for checkpoint in _at(windows, BEFORE)),
        "lag_p50_s_highest": round(max(lag_s(window, "p50") for window in windows), 1),
        "lag_p95_s_highest": round(max(lag_s(window, "p95") for window in windows), 1),
    }


def _at(windows: Iterable[Mapping[str, Any]], checkpoint: str) -> list[Mapping[str, Any]]:
    return [row for window in windows for row in window["checkpoints"] if row["name"] == checkpoint]


def chart(runs: Runs) -> Chart:
    """Draw the modes side by side, one panel for each cost."""
    figures_ = figures(runs)

    def panel(title: str, what: str) -> ChartPanel:
        return ChartPanel(
            title, [ChartLine("event-norm", [(index, figures_[mode][what]) for index, mode in enumerate(figures_)])]
        )

    return Chart(
        f"event-norm is killed every {KILLED_EACH} while events are in flight",
        "delivery",
        (
            panel("lost at event-norm (lagloss)", "lost_min"),
            panel("written more than once (lagloss)", "doubled"),
            panel("written out of order", "reordered"),
            panel("highest p95 E2E lag of any minute, s (lagloss)", "lag_p95_s_highest"),
        ),
        tuple(figures_),
    )
