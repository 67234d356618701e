"""`pipeline verdict` says by its exit code what keeps it from comparing; the demo knows what that means."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lagloss.errors import EXIT_NOT_ENOUGH_DATA, EXIT_UNREACHABLE, EXIT_USAGE
from lagloss_server.base.errors import ServerNotReady
from lagloss_server.ops.demo.pipeline import verdict
from pipeline_under_test.__main__ import main
from pipeline_under_test.harness.ledger import LedgerEntry
from pipeline_under_test.stream.settings import ReferenceSettings

NOBODY = "postgresql://nobody@127.0.0.1:9/none"
Run = Callable[[], tuple[int | str | None, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command on a directory of the test's own, where no lagloss is: its exit code and what it says."""
    monkeypatch.setenv("LAGLOSS_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("LAGLOSS_DATABASE_URL", "")
    monkeypatch.setattr(sys, "argv", ["pipeline", "verdict", "--data-dir", str(tmp_path)])

    def run() -> tuple[int | str | None, str]:
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr().err

    return run


def test_a_directory_without_a_pipeline_is_a_usage_error(run: Run) -> None:
    code, said = run()
    assert code == EXIT_USAGE
    assert "start one with `pipeline run`" in said


def test_an_empty_ledger_is_nothing_to_compare_yet(run: Run, tmp_path: Path) -> None:
    ReferenceSettings(data_dir=tmp_path).save()
    code, said = run()
    assert code == EXIT_NOT_ENOUGH_DATA
    assert "is empty" in said


def test_a_lagloss_that_is_not_there_cannot_be_reached(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ReferenceSettings(data_dir=tmp_path)
    settings.save()
    with settings.ledger_of("load") as ledger:
        ledger.write([LedgerEntry("answered", "a", 1_795_250_400_000)])
    code, said = run()
    assert code == EXIT_UNREACHABLE
    assert "Start `lagloss up`" in said
    monkeypatch.setenv("LAGLOSS_DATABASE_URL", NOBODY)
    code, said = run()
    assert code == EXIT_UNREACHABLE
    assert "Cannot reach PostgreSQL" in said


def test_the_demo_waits_where_it_is_too_early_and_says_what_else_is_wrong(tmp_path: Path) -> None:
    ReferenceSettings(data_dir=tmp_path).save()
    assert verdict(tmp_path, tmp_path) is None
    with pytest.raises(ServerNotReady, match="start one with"):
        verdict(tmp_path / "other", tmp_path)
