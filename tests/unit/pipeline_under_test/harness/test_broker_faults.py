"""When brokers are killed, started again, and restarted one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from pipeline_under_test.harness import brokers as broker_faults
from pipeline_under_test.harness.brokers import BrokerFaults
from pipeline_under_test.harness.faults import Injections
from pipeline_under_test.stream.faults import parse


class NoBrokers(EmbeddedKafka):
    """Three brokers that are only written down."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"), brokers=3)
        self.up = {1, 2, 3}
        self.ending: set[int] = set()
        self.synced = True
        self.acts: list[str] = []

    def is_running(self, number: int) -> bool:
        return number in self.up

    def kill_broker(self, number: int) -> None:
        self.acts.append(f"kill {number}")
        self.up.discard(number)

    def end_broker(self, number: int) -> None:
        self.acts.append(f"end {number}")

    def start_broker(self, number: int) -> None:
        self.acts.append(f"start {number}")
        self.up.add(number)

    @property
    def is_in_sync(self) -> bool:
        return self.synced and len(self.up) == 3


@pytest.fixture
def kafka() -> NoBrokers:
    return NoBrokers()


@pytest.fixture
def injections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Injections:
    monkeypatch.setattr("pipeline_under_test.harness.faults.LOOK_EVERY_S", 0)
    return Injections(tmp_path / "faults.jsonl", parse)


def test_a_killed_broker_stays_down_until_its_fault_ends(kafka: NoBrokers, injections: Injections) -> None:
    faults = BrokerFaults(injections, kafka)
    faults.step()
    assert kafka.acts == []
    injections.add(parse("broker:kill:2"), in_s=0)
    faults.step()
    faults.step()
    assert kafka.acts == ["kill 2"]
    injections.end_all()
    faults.step()
    faults.step()
    assert kafka.acts == ["kill 2", "start 2"]


def test_a_broker_that_is_not_there_cannot_be_killed(kafka: NoBrokers, injections: Injections) -> None:
    injections.add(parse("broker:kill:4"), in_s=0)
    BrokerFaults(injections, kafka).step()
    assert kafka.acts == []


def test_a_broker_that_dies_by_itself_is_started_again(kafka: NoBrokers, injections: Injections) -> None:
    kafka.up.discard(3)
    BrokerFaults(injections, kafka).step()
    assert kafka.acts == ["start 3"]


def test_the_next_broker_is_restarted_only_once_the_last_is_in_sync_again(
    kafka: NoBrokers, injections: Injections
) -> None:
    faults = BrokerFaults(injections, kafka)
    injections.add(parse("broker:restart"), for_s=60, in_s=0)
    for number in (1, 2, 3):
        faults.step()
        faults.step()
        assert kafka.acts.pop() == f"end {number}"
        kafka.up.discard(number)
        kafka.synced = False
        faults.step()
        faults.step()
        assert kafka.acts == [f"start {number}"]
        kafka.acts.clear()
        kafka.synced = True
    faults.step()
    assert kafka.acts == []


def test_a_broker_that_does_not_end_in_time_is_killed(
    kafka: NoBrokers, injections: Injections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_faults, "END_TIMEOUT_S", -1)
    faults = BrokerFaults(injections, kafka)
    injections.add(parse("broker:restart"), for_s=60, in_s=0)
    faults.step()
    faults.step()
    assert kafka.acts == ["end 1", "kill 1"]
    faults.step()
    assert kafka.acts[2:] == ["start 1", "end 2"]
