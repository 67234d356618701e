"""Faults of tasks: how they are written, and which tries they hit."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_under_test.batch.hourly.__main__ import run
from pipeline_under_test.batch.hourly.faults import BadTaskFault, InjectedFailure, TaskFault, TaskFaults, faults_of
from pipeline_under_test.batch.ledger import read_ledger
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.verdict import TrueRuns

HOUR = 1_795_579_200


@pytest.mark.parametrize("text", ["task:aggregate:2", "task:publish"])
def test_a_fault_is_written_as_it_is_read(text: str) -> None:
    assert TaskFault.parse(text).text == text


@pytest.mark.parametrize("text", ["task:whole", "task:publish:0", "task:publish:x", "publish", ""])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadTaskFault, match="expected task:NAME or task:NAME:TRIES with one of aggregate"):
        TaskFault.parse(text)


def test_a_task_fails_in_its_first_tries_or_for_good_and_in_its_own_hour_only(tmp_path: Path) -> None:
    faults = TaskFaults(tmp_path / "faults.json")
    twice, for_good = TaskFault.parse("task:aggregate:2", HOUR), TaskFault.parse("task:publish")
    faults.add(twice)
    faults.add(for_good)
    assert [faults.hitting("aggregate", HOUR, number) for number in (1, 2, 3)] == [twice, twice, None]
    assert faults.hitting("aggregate", HOUR + 120, 1) is None
    assert faults.hitting("publish", HOUR, 99) == for_good
    faults.lift(for_good)
    assert TaskFaults(tmp_path / "faults.json").known() == (twice,)


def test_a_try_that_a_fault_hits_is_in_the_ledger_before_it_fails(tmp_path: Path) -> None:
    settings = BatchSettings(data_dir=tmp_path)
    faults_of(tmp_path).add(TaskFault.parse("task:publish", HOUR))
    with pytest.raises(InjectedFailure, match="task:publish fails attempt 3 of publish"):
        run(settings, "publish", HOUR, 3)
    assert TrueRuns.of(read_ledger(settings.ledger_dir)).failed == {(HOUR, "publish", 3)}
