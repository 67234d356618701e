"""Faults of processes begin and end at their times, on real processes that a real health check looks after."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from pipeline_under_test.__main__ import app
from pipeline_under_test.harness import faults
from pipeline_under_test.harness.faults import Injections
from pipeline_under_test.harness.group import Group
from pipeline_under_test.stream.faults import parse
from pipeline_under_test.stream.processes import process_faults
from pipeline_under_test.stream.processes.process_faults import ProcessFaults
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import CONN_GA
from tests.support.closers import wait_until

NO_BEAT_S = 2.0


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """One stand-in for a process of conn-ga."""
    beats = tmp_path / "beats"
    made = Group(
        CONN_GA, (str(beats),), tmp_path / "logs", beats, module="tests.fakes.beating", hung_s=NO_BEAT_S, least=1
    )
    yield made
    made.abort()


@pytest.fixture
def injections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Injections:
    monkeypatch.setattr(faults, "LOOK_EVERY_S", 0)
    return Injections(tmp_path / "faults.jsonl", parse)


@pytest.fixture
def until(group: Group, injections: Injections) -> Callable[[Callable[[], bool], str], None]:
    """Goes on as the runner does until a condition holds; the group is ready."""
    faults = ProcessFaults(injections, {CONN_GA: group})

    def goes_on(condition: Callable[[], bool], what: str) -> None:
        def tended() -> bool:
            faults.step()
            group.tend()
            return condition()

        wait_until(tended, 20, what)

    goes_on(lambda: group.is_ready, "for the group")
    return goes_on


def is_stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def test_a_stalled_process_goes_on_when_its_fault_ends_in_time(
    group: Group, injections: Injections, until: Callable[..., None]
) -> None:
    [pid] = group.pids
    injections.add(parse(f"stall:{CONN_GA}"), in_s=0)
    until(lambda: is_stopped(pid), "for it to be stopped")
    injections.end_all()
    until(lambda: not is_stopped(pid), "for it to go on")
    assert group.pids == [pid]
    assert group.restarts == 0


@pytest.mark.slow
def test_a_process_that_is_stalled_for_longer_is_replaced_by_one_that_is_not(
    group: Group, injections: Injections, until: Callable[..., None]
) -> None:
    [pid] = group.pids
    injections.add(parse(f"stall:{CONN_GA}"), for_s=600, in_s=0)
    until(lambda: group.restarts == 1 and group.is_ready and len(group.pids) == 1, "for another one")
    [successor] = group.pids
    assert successor != pid
    assert not is_stopped(successor)
    injections.end_all()
    until(lambda: not injections.holding("stall", injections.known()[0].until_ms), "for the end")
    assert group.pids == [successor]


@pytest.fixture
def no_faketime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_faults, "LIBRARIES", (str(tmp_path),))


@pytest.mark.usefixtures("no_faketime")
def test_without_libfaketime_the_clock_stays_and_all_else_goes_on(
    group: Group, injections: Injections, until: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    pids = group.pids
    injections.add(parse(f"skew:{CONN_GA}:+5m"), in_s=0)
    with caplog.at_level(logging.WARNING):
        until(lambda: "leaving the clock of" in caplog.text, "for what is wrong")
    assert "apt-get install faketime" in caplog.text
    injections.end_all()
    injections.add(parse(f"stop:{CONN_GA}"), in_s=0)
    until(lambda: not group.pids, "for the next fault")
    assert not group.is_rolling
    assert not any(map(psutil.pid_exists, pids))


@pytest.mark.usefixtures("no_faketime")
@pytest.mark.parametrize("words", [("fault",), ("run", "--bootstrap", "nowhere:1", "--fault")], ids=["fault", "run"])
def test_a_skewed_clock_is_refused_where_there_is_no_libfaketime(tmp_path: Path, words: tuple[str, ...]) -> None:
    settings = ReferenceSettings(data_dir=tmp_path)
    settings.save()
    done = CliRunner().invoke(app, [*words, f"skew:{CONN_GA}:+5m", "--data-dir", str(tmp_path)])
    assert done.exit_code == 2
    assert "apt-get install faketime" in " ".join(done.output.replace("│", "").split())
    assert settings.injections().known() == ()
