"""The goal of the defaults, by a ledger: every injected breach is found, and nothing pages without one."""

from __future__ import annotations

import pytest

from alerting.rules.habits import LEAST_DAYS
from benchmarks.backtest.__main__ import generated_days, played
from benchmarks.backtest.score import Backtested, is_page
from pipeline_under_test.harness.scenario import DIRECTORY
from pipeline_under_test.stream.scenario import load_scenario, shipped_scenarios

SCENARIOS = [path.stem for path in shipped_scenarios() if not load_scenario(path).run.warehouse]
"""A table is not simulated."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_in_every_scenario_what_it_injects_is_found_and_nothing_else_pages(name: str) -> None:
    assert_found(played(load_scenario(DIRECTORY / f"{name}.yaml")))


@pytest.mark.slow
def test_on_days_of_random_faults_each_is_found_and_nothing_else_pages() -> None:
    """Two days of them, after as few as make a habit; `make backtest` takes three weeks, after a week."""
    assert_found(generated_days(LEAST_DAYS + 2, quiet_days=LEAST_DAYS))


def assert_found(result: Backtested) -> None:
    assert [fault.name for fault in result.missed()] == []
    assert [incident.rule.name for incident in result.wrong() if is_page(incident)] == []
