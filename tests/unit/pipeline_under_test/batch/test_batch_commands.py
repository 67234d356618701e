"""Commands of the batch pipeline that need no server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lagloss.errors import EXIT_USAGE
from pipeline_under_test.batch.__main__ import app
from pipeline_under_test.batch.faults import injections
from pipeline_under_test.batch.settings import BatchSettings


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchSettings:
    monkeypatch.setenv("SCORES_DATA_DIR", str(tmp_path))
    return BatchSettings()


def test_a_fault_holds_from_soon_on_until_it_ends(settings: BatchSettings) -> None:
    done = CliRunner().invoke(app, ["fault", "fail:db-import:0.5", "--for", "10s"])
    assert done.exit_code == 0
    said = json.loads(done.stdout)
    assert said["until_ms"] - said["from_ms"] == 10_000
    [made] = injections(settings).known()
    assert made.fault.text == "fail:db-import:0.5"
    assert CliRunner().invoke(app, ["end-faults"]).exit_code == 0
    assert not injections(settings).known()[0].holds(said["until_ms"] - 1)


def test_a_fault_that_is_none_is_refused_in_one_sentence(settings: BatchSettings) -> None:
    done = CliRunner().invoke(app, ["fault", "explode:0.5"])
    assert done.exit_code == EXIT_USAGE
    assert "found none in 'explode:0.5'" in done.stderr
    assert not settings.faults_path.exists()


@pytest.mark.parametrize("command", ["importer", "redrive"])
def test_only_importers_are_importers(command: str, settings: BatchSettings) -> None:
    done = CliRunner().invoke(app, [command, "landing"])
    assert done.exit_code == EXIT_USAGE
    assert "expected one of db-import, index-import, found 'landing'" in done.stderr
