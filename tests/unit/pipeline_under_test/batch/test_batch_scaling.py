"""What the policies of importers want, and what the experiment makes of what it measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree as ET

import pytest
from botocore.exceptions import EndpointConnectionError

from pipeline_under_test.batch.scaling import QueuePolicy, QueueSample, QueueScaler, importer_group, wanted
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.topology import DB_IMPORT
from pipeline_under_test.experiments import premature_scale_in
from pipeline_under_test.experiments.premature_scale_in import DrainRun
from pipeline_under_test.harness.group import Group
from pipeline_under_test.harness.policies import Rules
from tests.unit.pipeline_under_test.batch.conftest import INFRASTRUCTURE

RULES = Rules(least=1, most=4, trend_s=3, quiet_s=4, cool_down_s=5)
LONG_AGO = -100.0


def samples(visible: int = 0, in_flight: int = 0, cpu: float = 0.5, processes: int = 3) -> list[QueueSample]:
    """Ten samples, one per second."""
    return [QueueSample(float(at), processes, visible, in_flight, 0, cpu) for at in range(10)]


@pytest.mark.parametrize(
    ("policy", "seen", "processes"),
    [
        ("queue", samples(visible=1), 4),
        ("queue", samples(visible=1, processes=4), 4),
        ("queue", samples(in_flight=1, cpu=0.0), 3),
        ("queue", samples(), 1),
        ("cpu", samples(visible=100, cpu=0.1), 2),
        ("cpu", samples(cpu=0.9), 4),
        ("cpu", samples(visible=100), 3),
    ],
)
def test_a_policy_wants(policy: QueuePolicy, seen: Sequence[QueueSample], processes: int) -> None:
    assert wanted(policy, seen, LONG_AGO, RULES).processes == processes


@pytest.mark.parametrize("policy", ["queue", "cpu"])
def test_nothing_changes_until_the_cool_down_is_over(policy: QueuePolicy) -> None:
    assert wanted(policy, samples(visible=9, cpu=0.9), 5.0, RULES).processes == 3


def test_processes_of_a_group_have_the_settings_as_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = BatchSettings(data_dir=tmp_path, span_s=120, pipeline="other", database_url="postgresql://db/x")
    group = importer_group(settings, DB_IMPORT, env={"AWS_REGION": "eu-1"})
    for name, value in group.env.items():
        monkeypatch.setenv(name, value)
    assert BatchSettings() == settings
    assert group.hung_s > settings.poll_s


def test_the_chart_of_premature_scale_in_has_both_policies_and_their_times_to_drain() -> None:
    early = [QueueSample(float(at), 4 - at // 3, 9 - at, 1, 0, 0.02) for at in range(10)]
    runs: dict[QueuePolicy, DrainRun] = {
        "cpu": DrainRun(10, early, [0.5, 1.5, 8.0]),
        "queue": DrainRun(10, early[:5], [0.1]),
    }
    found = premature_scale_in.figures(runs)
    assert (found["cpu"]["time_to_drain_s"], found["queue"]["time_to_drain_s"]) == (9, 4)
    assert found["cpu"]["received"] == 3
    assert found["cpu"]["least_processes_before_drained"] == 2
    drawn = ET.fromstring(premature_scale_in.chart(runs).svg())
    words = {text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"policy cpu, drained after 9 s", "policy queue, drained after 4 s", "processes"} <= words


class CountedGroup:
    """A group of no processes that counts how often it is tended."""

    node = DB_IMPORT
    pids: Sequence[int] = ()

    def __init__(self) -> None:
        self.wanted = 3
        self.tended = 0

    def tend(self) -> None:
        self.tended += 1

    def scale(self, wanted: int) -> None:
        self.wanted = wanted


def scaler_of(group: CountedGroup, counts: Callable[[str], tuple[int, int]]) -> QueueScaler:
    rules = Rules(least=1, most=4, cool_down_s=0)
    aws: Any = SimpleNamespace(counts=counts)
    return QueueScaler(cast("Group", group), aws, INFRASTRUCTURE, "queue", rules)


def test_a_scaler_tends_its_group_always_and_looks_at_the_queue_once_per_second() -> None:
    group = CountedGroup()
    scaler = scaler_of(group, lambda url: (7, 0))
    for _ in range(3):
        scaler.step()
    assert (group.tended, group.wanted, len(scaler.samples)) == (3, 4, 1)
    assert scaler.samples[0].visible == 7
    assert scaler.reasons == ["3 -> 4: 7 messages are waiting"]


def test_a_queue_that_does_not_answer_changes_nothing() -> None:
    def away(url: str) -> tuple[int, int]:
        raise EndpointConnectionError(endpoint_url=url)

    group = CountedGroup()
    scaler = scaler_of(group, away)
    scaler.step()
    assert (group.tended, group.wanted, scaler.samples) == (1, 3, [])
