"""The watch of consumer lag outlives any error of a round."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from aggregator.consumer_lag import watch
from aggregator.consumer_lag.watch import ConsumerLagWatch
from aggregator.metrics import AggregatorMetrics


@pytest.mark.parametrize("error", [ValueError("a row"), OSError("away")], ids=lambda error: type(error).__name__)
def test_no_error_ends_the_watch(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    third = threading.Event()
    rounds: list[None] = []

    class Failing(ConsumerLagWatch):
        def round(self, lags_in: Any) -> None:
            rounds.append(None)
            if len(rounds) == 3:
                third.set()
            raise error

    monkeypatch.setattr(watch, "EVERY_S", 0.0)
    engine: Any = None
    failing = Failing("", engine, list, AggregatorMetrics(), engine)
    failing._thread.start()
    assert third.wait(10)
    failing.close()
