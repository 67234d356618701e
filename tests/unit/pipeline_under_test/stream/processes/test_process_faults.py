"""Which processes the faults of processes hit."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline_under_test.harness.faults import Injections
from pipeline_under_test.harness.group import Group
from pipeline_under_test.stream.commands.running import app
from pipeline_under_test.stream.faults import parse
from pipeline_under_test.stream.processes.process_faults import ProcessFaults
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import CONN_GA, SHADOW


class NoProcesses(Group):
    """A group whose signals are only written down."""

    def __init__(self, node: str) -> None:
        super().__init__(node, (), Path("nowhere"), Path("nowhere"))
        self.signals: list[signal.Signals] = []

    def signal(self, how: signal.Signals) -> None:
        self.signals.append(how)


@pytest.fixture
def injections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Injections:
    monkeypatch.setattr("pipeline_under_test.harness.faults.LOOK_EVERY_S", 0)
    return ReferenceSettings(data_dir=tmp_path).injections()


def test_a_stalled_shadow_goes_on_at_the_end_and_production_is_not_touched(injections: Injections) -> None:
    groups = {node: NoProcesses(node) for node in (CONN_GA, SHADOW)}
    faults = ProcessFaults(injections, groups)
    injections.add(parse(f"stall:{SHADOW}"), in_s=0)
    faults.step()
    assert groups[SHADOW].signals == [signal.SIGSTOP]
    injections.end_all()
    faults.step()
    faults.step()
    assert groups[SHADOW].signals == [signal.SIGSTOP, signal.SIGCONT]
    assert groups[CONN_GA].signals == []


def test_a_fault_of_a_shadow_that_does_not_run_hits_nobody(injections: Injections) -> None:
    groups = {CONN_GA: NoProcesses(CONN_GA)}
    faults = ProcessFaults(injections, groups)
    injections.add(parse(f"crash:{SHADOW}"), in_s=0)
    injections.add(parse(f"crash:{CONN_GA}"), in_s=0)
    faults.step()
    assert groups[CONN_GA].signals == [signal.SIGKILL]


@pytest.mark.parametrize("shadow", [True, False])
def test_a_fault_of_the_shadow_is_taken_only_where_there_is_one(tmp_path: Path, shadow: bool) -> None:
    settings = ReferenceSettings(data_dir=tmp_path, shadow=shadow)
    settings.save()
    done = CliRunner().invoke(app, ["fault", f"crash:{SHADOW}", "--data-dir", str(tmp_path)])
    assert (done.exit_code, len(settings.injections().known())) == ((0, 1) if shadow else (2, 0))
    assert shadow or "--shadow" in done.output
