"""Scenario files of the batch pipeline are read strictly, and its demo plays what fits into its time."""

from __future__ import annotations

from pathlib import Path

import pytest

from lagloss_server.base.errors import BadDefinition
from lagloss_server.base.yaml_files import parse_yaml
from pipeline_under_test.batch.demo import demo_scenario
from pipeline_under_test.batch.outcome import problems_of
from pipeline_under_test.batch.run import BatchResult
from pipeline_under_test.batch.scenario import BatchScenario, FlowFault, JobFault, batch_scenarios, load_batch_scenario

HEAD = "name: some\nkind: batch\ndescription: some\nload: {minutes: 4}\n"
PROMISED = {
    *("importer-killed", "visibility", "queue-away", "redrive", "late-file", "poison", "lost-notification"),
    *("task-failing", "backfill"),
}


def scenario(text: str) -> BatchScenario:
    return parse_yaml(BatchScenario, HEAD + text, "some.yaml")


@pytest.mark.parametrize("path", batch_scenarios(), ids=lambda path: path.stem)
def test_a_scenario_of_the_repository_can_be_read_and_is_called_as_its_file(path: Path) -> None:
    assert load_batch_scenario(path).name == path.stem


def test_the_repository_has_all_the_scenarios_that_are_promised() -> None:
    assert {path.stem for path in batch_scenarios()} >= {f"batch-{name}" for name in PROMISED}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'faults:\n  - {at: 5m, for: 1s, fault: "truncate:1"}\n',
            "expected a time before the end of the load, found 300s",
        ),
        ('faults:\n  - {hour: 3, task: "task:publish"}\n', "expected one of 2 hours, found 3"),
        ("faults:\n  - {at: 1s, for: 1s, fault: explode}\n", "expected lose|duplicate:notification:SHARE"),
        ('faults:\n  - {hour: 1, task: "task:whole"}\n', "expected task:NAME"),
        ("faults:\n  - {at: 1s, redrive: landing}\n", "expected one of db-import, index-import"),
        ("expect:\n  lost:\n    link a->b: {min: 1}\n", "expected one of the places"),
        ("until: tomorrow\n", "until: expected one of these keys:"),
    ],
)
def test_a_bad_file_is_refused_with_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(BadDefinition) as refused:
        scenario(text)
    assert expected in str(refused.value)


def test_the_demo_plays_the_faults_that_fit_into_its_minutes() -> None:
    whole, short = demo_scenario(), demo_scenario(1)
    assert whole.load.minutes == 6
    assert {type(each) for each in whole.faults} >= {FlowFault, JobFault}
    assert all(each.at < 60_000 for each in short.faults if isinstance(each, FlowFault))
    assert not [each for each in short.faults if isinstance(each, JobFault)]


def test_a_result_without_windows_is_a_problem_of_its_runs_only() -> None:
    result = BatchResult([], ("expected windows, found none",), (), hours=2, failed_tries=0, restated=0)
    assert not result.agrees
    assert problems_of(result, scenario("").expect) == ["expected windows, found none"]
