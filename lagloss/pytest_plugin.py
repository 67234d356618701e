"""pytest's plugin: the fixture `lagloss_pipeline`. pytest loads it wherever the package is installed; no other part of
lagloss imports it."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any, Final

import pytest

from lagloss.broker.connection import BOOTSTRAP_VARIABLE
from lagloss.testing import RecordedPipeline, recorded

NO_BROKER: Final = "lagloss-pytest.invalid:9092"
"""An address that no resolver knows, for code that reads the variable itself, and for processes that a test starts."""


@pytest.fixture
def lagloss_pipeline(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedPipeline]:
    """Record what all emitters of the code under test observe; no message may be lost when the test has passed.

    Environment variables of lagloss are not set meanwhile, except for an address of Kafka at which there is no broker.
    """
    for name in [name for name in os.environ if name.startswith("LAGLOSS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, NO_BROKER)
    with recorded() as pipeline:
        yield pipeline


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Check for loss once a test with the fixture has passed, as a part of the test."""
    result = yield
    pipeline = getattr(item, "funcargs", {}).get("lagloss_pipeline")
    if isinstance(pipeline, RecordedPipeline):
        pipeline.check_at_end()
    return result
