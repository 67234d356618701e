"""What several experiments need: brokers and a folder, gone when it is over; figures of a scenario's verdict."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline_under_test.experiments import NotMeasured
from pipeline_under_test.harness.brokers import own_brokers
from pipeline_under_test.stream.outcome import ScenarioOutcome
from pipeline_under_test.stream.settings import ReferenceSettings


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Kafka at `bootstrap`, with lagloss's topics; `folder` is empty."""

    bootstrap: str
    folder: Path


@contextmanager
def sandbox(brokers: int = 1) -> Iterator[Sandbox]:
    """Start embedded brokers, and end them."""
    with (
        tempfile.TemporaryDirectory(prefix="pipeline-experiment-") as folder,
        own_brokers(Path(folder), ReferenceSettings(data_dir=Path(folder)).injections(), brokers) as (bootstrap, _),
    ):
        yield Sandbox(bootstrap, Path(folder) / "pipelines")


def verdict_of(outcome: ScenarioOutcome) -> Mapping[str, Any]:
    """Return the document of a scenario's verdict: ledger beside windows.

    Raises:
        NotMeasured: if the run did not get that far.
    """
    if outcome.verdict is None:
        raise NotMeasured(f"{outcome.scenario}: {outcome.problems[0]}")
    return outcome.verdict


def lag_s(window: Mapping[str, Any], percentile: str) -> float:
    """Return a percentile of a window's E2E lag in seconds; 0 where there is none."""
    return (window["e2e_lag_ms"][percentile] or 0.0) / 1000
