"""The alert of the canary in the rules for Prometheus, by its promtool."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.programs import need

RULES = Path(__file__).parents[3] / "deploy" / "prometheus" / "rules.yaml"


@pytest.mark.parametrize(
    ("series", "is_firing"),
    [
        ({}, True),
        ({"owner": "1x20"}, False),
        ({"owner": "1x20", "stand-by": "0x20"}, False),
        ({"owner": "0x20", "stand-by": "0x20"}, True),
        ({"owner": " ".join(["NaN"] * 20)}, False),
    ],
    ids=["no process", "right", "with a stand-by", "not right", "off"],
)
def test_it_fires_unless_a_process_says_that_it_is_right(
    tmp_path: Path, series: dict[str, str], is_firing: bool
) -> None:
    (rule,) = (
        rule
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
        if rule.get("alert") == "LaglossCanary"
    )
    alert = {"exp_labels": rule["labels"], "exp_annotations": rule["annotations"]}
    case: dict[str, Any] = {
        "interval": "1m",
        "input_series": [
            {"series": f'lagloss_canary_ok{{instance="{name}"}}', "values": values} for name, values in series.items()
        ],
        "alert_rule_test": [
            {"eval_time": "15m", "alertname": "LaglossCanary", "exp_alerts": [alert] if is_firing else []}
        ],
    }
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "canary", "rules": [rule]}]}))
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [case]}))

    done = subprocess.run(
        [need("promtool"), "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
