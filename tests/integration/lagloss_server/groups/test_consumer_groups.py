"""What brokers say of consumer groups, also when they come and go."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.errors import IncompatibleBrokerVersion

from lagloss_server.groups.consumer_groups import ConsumerGroups, GroupDescription
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from tests.support.kafka_log import consumer_of, wait_for


@contextmanager
def one_that_took(bootstrap: str, topic: str, count: int, protocol: str = "classic") -> Iterator[str]:
    """A group whose consumer has committed this many records of a topic of two partitions; it is a member meanwhile."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 2, -1)])[topic].result(20)
    producer = Producer({"bootstrap.servers": bootstrap})
    for _ in range(count):
        producer.produce(topic, b"x", partition=1)
    assert producer.flush(20) == 0
    group = f"{topic}.group"
    with consumer_of(bootstrap, **{"group.id": group, "group.protocol": protocol}) as consumer:
        consumer.subscribe([topic])
        _take(consumer, count)
        yield group


def _take(consumer: Consumer, count: int) -> None:
    taken: list[object] = []

    def all_of_them() -> bool:
        record = consumer.poll(0.2)
        taken.extend([record] if record is not None and record.error() is None else [])
        return len(taken) == count and len(consumer.assignment()) == 2

    wait_for(all_of_them, what="the records")
    consumer.commit(asynchronous=False)


@pytest.fixture
def group(kafka_bootstrap: str) -> Iterator[str]:
    with one_that_took(kafka_bootstrap, f"groups-{uuid.uuid4().hex[:8]}", 3) as group:
        yield group


def test_a_group_has_committed_what_its_consumer_has(kafka_bootstrap: str, group: str) -> None:
    topic = group.removesuffix(".group")
    with closing(ConsumerGroups(kafka_bootstrap)) as groups:
        assert groups.committed([group, "nobody"]) == {group: {(topic, 1): 3}, "nobody": {}}
        assert groups.assigned([group, "nobody"]) == {group: 2, "nobody": 0}
        assert groups.committed([]) == groups.assigned([]) == {}


NOBODY = """
import gc, threading, psutil
from confluent_kafka import KafkaException
from lagloss_server.groups.consumer_groups import ConsumerGroups
before = psutil.Process().num_fds(), threading.active_count()
groups = ConsumerGroups("127.0.0.1:9,127.0.0.1:11")
for _ in range(2):
    try:
        groups.committed(["nobody"])
    except KafkaException as error:
        print(error)
groups.close()
gc.collect()
assert (psutil.Process().num_fds(), threading.active_count()) == before
"""


def test_where_nobody_answers_nothing_is_left_behind() -> None:
    """No thread and no open file, nor one for the garbage collector to close."""
    words = [sys.executable, "-W", "error::ResourceWarning", "-c", NOBODY]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.count("groups: ") == 2
    assert done.stderr == ""


@pytest.mark.slow
def test_who_asks_outlives_the_coordinator(jars: None, own_dir: Path) -> None:
    """Of three brokers one after the other is killed, so each group's coordinator once."""
    answers: list[object] = []

    def asked() -> object:
        try:
            answers.append(groups.committed([group]))
        except KafkaException as error:
            answers.append(error)
        return answers[-1]

    with (
        EmbeddedKafka(own_dir, brokers=3, heap_mb=192) as kafka,
        one_that_took(kafka.bootstrap, "three", 5) as group,
        closing(ConsumerGroups(kafka.bootstrap)) as groups,
    ):
        for number in kafka.numbers:
            kafka.kill_broker(number)
            for _ in range(5):
                asked()
            kafka.start_broker(number)
            wait_for(lambda: kafka.is_in_sync, what="all replicas", timeout_s=60)
            wait_for(lambda: asked() == {group: {("three", 1): 5}}, what="an answer", timeout_s=60)
    assert any(isinstance(each, KafkaException) for each in answers)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_described_by_either_protocol(kafka_bootstrap: str, protocol: str) -> None:
    topic = f"groups-{uuid.uuid4().hex[:8]}"
    with closing(ConsumerGroups(kafka_bootstrap)) as groups:
        with one_that_took(kafka_bootstrap, topic, 3, protocol) as group:
            wait_for(lambda: groups.described([group])[group].state == "Stable", what="the group")
            assert groups.described([group, "nobody"]) == {
                group: GroupDescription("Stable", 1, 2, protocol),  # type: ignore[arg-type]
                "nobody": GroupDescription("Dead"),
            }
            assert groups.described([group])[group].keys == {(topic, 0), (topic, 1)}
            assert groups.assigned([group]) == {group: 2}
            assert groups.committed([group]) == {group: {(topic, 1): 3}}
        wait_for(lambda: groups.described([group])[group].state == "Empty", what="the member to be gone")
        assert groups.described([group])[group].members == 0
        assert groups.described([]) == {}


def test_a_group_whose_protocol_the_brokers_do_not_know_is_dead_to_them(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"groups-{uuid.uuid4().hex[:8]}"
    with one_that_took(kafka_bootstrap, topic, 3, "consumer") as group, closing(ConsumerGroups(kafka_bootstrap)) as old:

        def refuse(*_: object) -> object:
            raise IncompatibleBrokerVersion

        old.described([group])
        monkeypatch.setattr(old._client._manager, "run", _unless(old._client._manager.run, refuse))  # type: ignore[union-attr]
        assert old.described([group]) == {group: GroupDescription("Dead")}


def _unless(run: Callable[..., object], refuse: Callable[..., object]) -> Callable[..., object]:
    """Run what the client asks, but for descriptions of the newer protocol."""
    return lambda asked, *args: (refuse if "consumer" in asked.__name__ else run)(asked, *args)
