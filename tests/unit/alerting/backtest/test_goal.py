"""The goal of the defaults, by a ledger: every injected breach is found, and nothing pages without one."""

from __future__ import annotations

import pytest

from benchmarks.backtest.__main__ import played
from benchmarks.backtest.score import is_page
from pipeline_under_test.scenarios.scenario import DIRECTORY, load_scenario, shipped_scenarios

SCENARIOS = [path.stem for path in shipped_scenarios()]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_in_every_scenario_what_it_injects_is_found_and_nothing_else_pages(name: str) -> None:
    found = played(load_scenario(DIRECTORY / f"{name}.yaml"))
    assert [fault.name for fault in found.missed()] == []
    assert [incident.rule.name for incident in found.wrong() if is_page(incident)] == []
