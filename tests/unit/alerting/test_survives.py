"""The alerter outlives any error of its loop, says so in /healthz, and leads again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from alerting import service
from alerting.delivery.sender import HeldLead
from alerting.metrics import AlertingMetrics
from alerting.service import Alerter

ERRORS = [ValueError("a row"), RecursionError(), KeyError("labels"), psycopg.OperationalError("away")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_no_error_ends_the_alerter(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    evaluator: Any = SimpleNamespace(store=None)
    alerter = Alerter("", evaluator, [], HeldLead(), [], AlertingMetrics())
    troubles: list[str | None] = []

    @contextmanager
    def leading(*_: object) -> Iterator[None]:
        troubles.append(alerter.trouble)
        if len(troubles) == 3:
            alerter.stop()
            yield None
        raise error

    monkeypatch.setattr(service, "leading", leading)
    monkeypatch.setattr(service, "watching", lambda *_: nullcontext())
    monkeypatch.setattr(service, "pause_s", lambda _failures: 0.0)
    alerter.run()
    assert troubles[0] == "starting"
    assert all(type(error).__name__ in (trouble or "") for trouble in troubles[1:])
