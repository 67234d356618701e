"""A scenario on a lagloss of its own: what is injected is what is measured, and what is not expected is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCENARIO = """
name: a-little-of-everything
description: losses on a link and at a node, duplicates and a crash
load: {rate: 60, minutes: 0.4}
run: {maxWait: 20s, warehouse: true}
faults:
  - {at: 0s, fault: "lose:link:event-norm->event-router:0.05"}
  - {at: 0s, fault: "lose:node:conn-ga:0.05"}
  - {at: 0s, fault: "lose:node:warehouse:0.05"}
  - {at: 0s, fault: "duplicate:event-norm:0.05"}
  - {at: 8s, fault: "crash:conn-fb"}
  - {at: 8s, fault: "crash:warehouse"}
expect:
  lost:
    link event-norm->event-router: {count: {min: 10}}
    node conn-ga: {share: {min: 0.01}}
    node warehouse: {count: {min: 5}}
  verdicts: [loss]
  duplicates: {min: 10}
  restarts: {min: 99}
"""
"""All of it comes true but the number of restarts."""

TAPPED = """
name: seen-by-taps
description: losses, dead letters, refusals, duplicates and a crash, without a beacon of any node
load: {rate: 60, minutes: 0.5}
run: {maxWait: 90s, tiers: [4s, 8s], warehouse: true}
faults:
  - {at: 0s, fault: "lose:link:event-norm->event-router:0.05"}
  - {at: 0s, fault: "lose:link:event-router->conn-ga:0.05"}
  - {at: 0s, fault: "lose:node:event-norm:0.02"}
  - {at: 0s, fault: "lose:node:conn-ga:0.02"}
  - {at: 0s, fault: "lose:node:warehouse:0.05"}
  - {at: 0s, fault: "dead:warehouse:0.05"}
  - {at: 0s, fault: "filter:warehouse:0.05"}
  - {at: 0s, fault: "dead:event-router:0.02"}
  - {at: 0s, fault: "dead:conn-fb:0.02"}
  - {at: 0s, fault: "filter:event-router:0.02"}
  - {at: 0s, fault: "duplicate:event-norm:0.05"}
  - {at: 0s, fault: "poison:0.02"}
  - {at: 10s, for: 5s, fault: "receiver:fb:503:0.5"}
  - {at: 12s, fault: "crash:event-norm"}
expect:
  lost:
    link event-norm->event-router: {count: {min: 10}}
    link event-router->conn-ga: {count: {min: 5}}
    node warehouse: {count: {min: 5}}
  verdicts: [loss]
  dead: {min: 20}
  filtered: {min: 20}
  duplicates: {min: 10}
  restarts: {min: 1}
"""


def run(path: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    words = [sys.executable, "-m", "pipeline_under_test", "scenario", *options, "--json", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_what_is_injected_is_measured_and_what_is_not_expected_is_told(jars: None, tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(SCENARIO)
    code, (outcome,) = run(path)
    assert outcome["restarts"] > 0
    assert outcome["problems"] == [f"expected restarts: at least 99, found {outcome['restarts']}"]
    assert code == 1
    assert outcome["false_losses"] == 0
    injected, measured = outcome["injected"], outcome["measured"]
    assert measured["lost"] == {"min": injected["lost"], "max": injected["lost"]}
    assert {place: lost["min"] for place, lost in measured["lost_at"].items()} == injected["lost_at"]
    assert 0 < measured["duplicates"] <= injected["duplicates"]


@pytest.mark.slow
def test_taps_measure_what_the_ledger_says_as_far_as_topics_and_commits_show_it(jars: None, tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(TAPPED)
    code, (outcome,) = run(path, "--taps")
    assert outcome["problems"] == []
    assert code == 0
    assert set(outcome["injected"]["lost_at"]) == {"node event-norm", "node event-router", "node warehouse"}
