"""Commands that break a running pipeline: what they ask its processes for, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline_under_test.__main__ import app
from pipeline_under_test.stream.settings import ReferenceSettings


@pytest.fixture
def settings(tmp_path: Path) -> ReferenceSettings:
    settings = ReferenceSettings(data_dir=tmp_path)
    settings.save()
    return settings


def test_play_asks_for_all_faults_of_a_scenario_at_their_times(settings: ReferenceSettings) -> None:
    done = CliRunner().invoke(app, ["play", "retry-storm", "--data-dir", str(settings.data_dir)])
    assert done.exit_code == 0, done.output
    asked = settings.injections().known()
    assert [injection.fault.text for injection in asked] == ["receiver:ga:503:1", "receiver:fb:503:1"]
    assert all(injection.until_ms - injection.from_ms == 40_000 for injection in asked)
    assert '"description":"both vendors answer 503 for 40 seconds"' in done.output


def test_play_reads_any_file(settings: ReferenceSettings, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "name: mine\ndescription: one crash\nload: {rate: 1, minutes: 1}\nfaults: [{at: 5s, fault: 'crash:conn-ga'}]\n"
    )
    done = CliRunner().invoke(app, ["play", str(mine), "--data-dir", str(settings.data_dir)])
    assert done.exit_code == 0, done.output
    assert [injection.fault.text for injection in settings.injections().known()] == ["crash:conn-ga"]


def test_play_refuses_faults_of_brokers_and_asks_for_none(settings: ReferenceSettings) -> None:
    done = CliRunner().invoke(app, ["play", "broker-loss", "--data-dir", str(settings.data_dir)])
    assert done.exit_code == 2
    assert "broker:kill:2" in done.output
    assert settings.injections().known() == ()
