"""The goal of the defaults, by a ledger: every injected breach is found, and nothing pages without one."""

from __future__ import annotations

import pytest

from benchmarks.backtest.__main__ import generated_days, played
from benchmarks.backtest.score import is_page
from pipeline_under_test.scenarios.scenario import DIRECTORY, load_scenario

SCENARIOS = sorted(path.stem for path in DIRECTORY.glob("*.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_in_every_scenario_what_it_injects_is_found_and_nothing_else_pages(name: str) -> None:
    found = played(load_scenario(DIRECTORY / f"{name}.yaml"))
    assert [fault.name for fault in found.missed()] == []
    assert [incident.rule.name for incident in found.wrong() if is_page(incident)] == []


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_on_generated_days_every_fault_is_found_and_no_page_is_without_one() -> None:
    """The first week has none; of 30 days: `make backtest`."""
    found = generated_days(12)
    assert {fault.name for fault in found.faults if fault.found_by}, "there are faults to find"
    assert [(fault.name, fault.from_s) for fault in found.missed()] == []
    assert [(each.rule.name, each.first_s) for each in found.wrong() if is_page(each)] == []
