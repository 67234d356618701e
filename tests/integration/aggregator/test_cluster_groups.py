"""All consumer groups of a real broker, named by a definition or not: how far each is behind, and by what."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from py4j.java_gateway import JavaGateway
from typer.testing import CliRunner

from aggregator.consumer_lag.lag import ConsumerLags
from aggregator.consumer_lag.watch import ConsumerLagWatch, WatchedGroups
from aggregator.metrics import AggregatorMetrics
from aggregator.node_groups import NodeGroup
from aggregator.set_aside import SetAside
from lagloss.identity import Identity
from lagloss_server.cli.main import app
from lagloss_server.groups.cluster_groups import ClusterGroup, keep_cluster_groups, read_cluster_groups
from lagloss_server.groups.coverage import KafkaName, keep_cluster_topics, read_coverage
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.taps import Extraction, OffsetStorage
from lagloss_server.store.partitions import make_days_ahead
from lagloss_server.store.store import Store
from tests.support.closers import wait_until
from tests.support.kafka_log import consumer_of, wait_for


@dataclass
class World:
    """A topic of the test's own, and a watch of the groups that the test makes, whose rounds are the test's."""

    bootstrap: str
    store: Store
    name: str = field(default_factory=lambda: f"every-{uuid.uuid4().hex[:8]}")
    named: list[NodeGroup] = field(default_factory=list)
    expressions: dict[tuple[str, str], Extraction] = field(default_factory=dict)
    metrics: AggregatorMetrics = field(default_factory=AggregatorMetrics)

    def __post_init__(self) -> None:
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})
        self.admin.create_topics(
            [NewTopic(self.name, 2, 1, config={"message.timestamp.after.max.ms": str(2**63 - 1)})]
        )[self.name].result(20)
        wait_for(lambda: self.name in self.admin.list_topics(timeout=10).topics, what="the topic")
        self.lags = ConsumerLags(self.bootstrap)
        self.watch = ConsumerLagWatch(
            self.bootstrap,
            self.store.engine,
            lambda: WatchedGroups(self.named, self.expressions, f"{self.name}*"),
            self.metrics,
            SetAside(self.store.engine),
        )

    def send(self, value: bytes = b"x", age_s: float = 0.0, partition: int = 0, **more: Any) -> None:
        stamp_ms = more.pop("timestamp", int(1_000 * (time.time() - age_s)))
        producer = Producer({"bootstrap.servers": self.bootstrap})
        refused: list[Any] = []
        more["on_delivery"] = lambda error, _: refused.append(error) if error else None
        producer.produce(self.name, value, partition=partition, timestamp=stamp_ms, **more)
        assert (producer.flush(20), refused) == (0, [])

    def commit(self, group: str, offset: int, partition: int = 0) -> None:
        with consumer_of(self.bootstrap, **{"group.id": group}) as consumer:
            consumer.commit(offsets=[TopicPartition(self.name, partition, offset)], asynchronous=False)

    def round(self) -> dict[str, ClusterGroup]:
        """Read all groups, as the aggregator does every 10 s, again if the broker was too busy to answer; return those
        of the test, by name."""

        def read_all() -> bool:
            self.watch.round(lambda _cluster: self.lags)
            return not self.watch._troubles

        wait_until(read_all, 60, "the broker answers for all groups")
        with self.store.engine.connect() as connection:
            readings = read_cluster_groups(connection)
        return {reading.group.group: reading.group for reading in readings if reading.group.group.startswith(self.name)}

    def reading(self, group: str) -> ClusterGroup:
        """Read all groups until one is listed: a busy broker may not yet list one that has committed."""
        found: ClusterGroup = wait_until(lambda: self.round().get(group), 60, f"{group} is in the list of groups")
        return found


@pytest.fixture
def world(kafka_bootstrap: str, store: Store) -> Iterator[World]:
    make_days_ahead(store.engine, time.time())
    made = World(kafka_bootstrap, store)
    yield made
    made.lags.close()


def test_a_group_that_no_definition_names_is_as_far_behind_as_the_timestamp_of_its_first_unread_record(
    world: World,
) -> None:
    group = f"{world.name}.plain"
    for age_s in (100, 60, 30):
        world.send(age_s=age_s)
    world.commit(group, 1)
    found = world.reading(group)
    assert (found.lag, found.basis, found.members, found.status) == (2, "timestamp", 0, "stopped")
    assert found.behind_s is not None
    assert 60 <= found.behind_s < 90
    (topic,) = found.topics
    assert (topic.topic, topic.partitions, topic.lag) == (world.name, 2, 2)
    labels = {"pipeline": "", "node": "", "group": group, "cluster": "", "topic": world.name, "partition": "0"}
    assert world.metrics.registry.get_sample_value("lagloss_consumer_lag_offsets", labels) == 2
    seconds = world.metrics.registry.get_sample_value("lagloss_consumer_lag_seconds", labels)
    assert seconds == pytest.approx(found.behind_s, abs=0.01)
    world.commit(group, 3)
    found = world.reading(group)
    assert (found.lag, found.behind_s, found.status) == (0, 0.0, "ok")


def test_a_header_and_the_expression_of_a_tap_say_the_event_time(world: World) -> None:
    by_header, by_tap = f"{world.name}.header", f"{world.name}.tap"
    now_ms = int(1_000 * time.time())
    world.send(headers=Identity("a", now_ms - 200_000).headers())
    world.send(json.dumps({"id": "b", "at": now_ms - 300_000}).encode(), partition=1)
    for group, unread in ((by_header, 0), (by_tap, 1)):
        world.commit(group, 0, partition=unread)
        world.commit(group, 1, partition=1 - unread)
    extraction = Extraction(IdExpression.parse("$.id"), TimeExpression.parse("$.at in ms"))
    without = world.round()
    assert without[by_header].basis == "event-time"
    assert (without[by_tap].basis, (without[by_tap].behind_s or 0) < 200) == ("timestamp", True)
    world.expressions = {("", world.name): extraction}
    world.lags.close()
    world.lags = ConsumerLags(world.bootstrap)  # it keeps for minutes what waits at a place
    found = world.round()
    assert 200 <= (found[by_header].behind_s or 0) < 260
    assert (found[by_tap].basis, 300 <= (found[by_tap].behind_s or 0) < 360) == ("event-time", True)


def test_groups_of_a_cluster_that_nothing_names_any_more_are_forgotten(world: World) -> None:
    known = (1, "ok", 0, 0.0, None, None, None, None, None, (), ())
    gone = ClusterGroup("gone", f"{world.name}.gone", "consumer", "Stable", *known)
    with world.store.engine.begin() as connection:
        keep_cluster_groups(connection, 0, [gone])
    assert gone.group not in world.round()


@pytest.mark.parametrize(
    ("timestamp", "problem"),
    [(int(time.time()), "is not a time in ms"), (1_768_000_000_000_000, "is not a time in ms")],
    ids=["seconds", "year 58000"],
)
def test_a_timestamp_that_is_no_time_leaves_the_age_unknown_and_says_why(
    world: World, timestamp: int, problem: str
) -> None:
    group = f"{world.name}.odd"
    world.send(timestamp=timestamp)
    world.commit(group, 0)
    found = world.reading(group)
    assert (found.lag, found.behind_s, found.basis) == (1, None, None)
    assert problem in (found.topics[0].problem or "")


def test_a_group_that_a_definition_names_is_listed_once_with_its_node_and_one_that_is_deleted_is_not(
    world: World,
) -> None:
    group, other = f"{world.name}.mid", f"{world.name}.other"
    world.named.append(NodeGroup("orders", "mid", group))
    world.send()
    world.commit(group, 0)
    world.commit(other, 0)
    found = world.round()
    assert [(named.pipeline, named.node) for named in found[group].named_by] == [("orders", "mid")]
    assert (found[group].lag, found[other].named_by) == (1, ())
    world.admin.delete_consumer_groups([other])[other].result(20)
    assert other not in world.round()


def test_a_share_group_is_listed_with_what_it_has_not_finished(world: World) -> None:
    group = f"{world.name}.share"
    world.send(age_s=50)
    with share_consumer(world.bootstrap, group, world.name) as consumer:
        wait_for(lambda: _polled(consumer) or group in world.round(), what="the share group")
        wait_for(lambda: world.reading(group).members == 1, what="its member")
        assert world.reading(group).kind == "share"
        world.send(age_s=40)
        wait_for(lambda: world.reading(group).lag is not None, what="its lag")


def test_a_source_connector_that_a_definition_names_is_as_far_behind_as_its_stored_offsets(world: World) -> None:
    connector, storage = f"{world.name}.mirror", f"{world.name}.offsets"
    world.admin.create_topics([NewTopic(storage, 3, 1, config={"cleanup.policy": "compact"})])[storage].result(20)
    world.named.append(NodeGroup("orders", "mirror", connector, "", OffsetStorage("", storage)))
    for age_s in (100, 60, 30):
        world.send(age_s=age_s)
    producer = Producer({"bootstrap.servers": world.bootstrap})

    def store(offset: int | None, alias: str = "a") -> None:
        key = json.dumps([connector, {"cluster": alias, "partition": 0, "topic": world.name}])
        producer.produce(storage, None if offset is None else json.dumps({"offset": offset}), key)
        assert producer.flush(20) == 0

    store(0)  # of the last record that it has read
    found = world.reading(connector)
    assert (found.kind, found.lag, found.basis, found.state) == ("connect", 2, "timestamp", "")
    assert 60 <= (found.behind_s or 0) < 90
    assert [(named.pipeline, named.node) for named in found.named_by] == [("orders", "mirror")]
    labels = {"pipeline": "orders", "node": "mirror", "group": connector, "cluster": "", "topic": world.name}
    labels["partition"] = "0"
    assert world.metrics.registry.get_sample_value("lagloss_consumer_lag_offsets", labels) == 2
    store(2)
    found = wait_until(lambda: (group := world.round().get(connector)) and group.lag == 0 and group, 30, "it is level")
    assert (found.behind_s, found.status) == (0.0, "ok")
    store(1, alias="b")  # of which cluster it is now, nobody knows
    wait_until(lambda: connector not in world.round(), 30, "it is not measured")
    store(None, alias="b")
    assert world.reading(connector).lag == 0


def test_a_storage_that_cannot_be_read_costs_no_group_its_lag(world: World) -> None:
    group = f"{world.name}.plain"
    world.named.append(NodeGroup("orders", "mirror", f"{world.name}.mirror", "", OffsetStorage("", "no-such-topic")))
    world.named.append(NodeGroup("orders", "far", f"{world.name}.far", "", OffsetStorage("nowhere", "offsets")))
    world.send()
    world.commit(group, 0)
    world.watch.round(lambda _cluster: world.lags)
    with world.store.engine.connect() as connection:
        lags = {reading.group.group: reading.group.lag for reading in read_cluster_groups(connection)}
    assert lags[group] == 1
    assert "offsets of connectors in" in (world.lags.trouble or "")


def test_the_command_prints_them_worst_first(
    world: World, database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    late, idle = f"{world.name}.late", f"{world.name}.idle"
    world.send(age_s=500)
    world.commit(late, 0)
    world.commit(idle, 1)
    world.round()
    monkeypatch.setenv("LAGLOSS_DATABASE_URL", database_url)
    monkeypatch.setenv("LAGLOSS_DATA_DIR", str(tmp_path))
    done = CliRunner().invoke(app, ["groups", "--match", f"{world.name}*", "--json"], catch_exceptions=False)
    printed = json.loads(done.stdout)
    assert [group["group"] for group in printed] == [late, idle]
    assert printed[0]["topics"][0]["basis"] == "timestamp"
    table = CliRunner().invoke(app, ["groups", "--match", f"{world.name}*"], catch_exceptions=False).stdout
    assert table.index(late) < table.index(idle)
    assert CliRunner().invoke(app, ["groups", "--cluster", "nowhere"]).exit_code != 0


@contextmanager
def share_consumer(bootstrap: str, group: str, topic: str) -> Iterator[Any]:
    """A member of a share group: only Kafka's own client in Java can be one."""
    jars = Path(".jars/broker").resolve()
    gateway = JavaGateway.launch_gateway(classpath=f"{jars}/*", die_on_exit=True)
    try:
        properties = gateway.jvm.java.util.Properties()
        text = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
        for name, value in {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "key.deserializer": text,
            "value.deserializer": text,
        }.items():
            properties.put(name, value)
        consumer = gateway.jvm.org.apache.kafka.clients.consumer.KafkaShareConsumer(properties)
        topics = gateway.jvm.java.util.ArrayList()
        topics.add(topic)
        consumer.subscribe(topics)
        yield gateway, consumer
        consumer.close()
    finally:
        gateway.shutdown()


def _polled(client: Any) -> None:
    gateway, consumer = client
    consumer.poll(gateway.jvm.java.time.Duration.ofMillis(500))


def test_topics_are_listed_each_minute_and_those_that_no_definition_names_are_not_covered(world: World) -> None:
    world.round()
    coverage = read_coverage(world.store)
    assert KafkaName("", world.name) in coverage.not_measured("topics")
    assert not any(place.name.startswith("__") for place in coverage.topics)
    assert coverage.not_current(time.time()) == []
    definition = (
        f"apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {{name: covered, labels: {{team: web}}}}\nspec:\n  nodes: "
        f"[{{name: a, to: [b], taps: {{out: {{topic: {world.name}, id: $.id, eventTime: $.at}}}}}}, {{name: b}}]\n"
    )
    world.store.apply(parse_definition(definition))
    rows = read_coverage(world.store).rows("label:team")
    assert {row["value"]: row["topics"]["measured"] for row in rows}["web"] == 1
    with world.store.engine.begin() as connection:
        keep_cluster_topics(connection, "gone", 0, ["old"])
        keep_cluster_topics(connection, "", int(time.time() * 1_000), ["other"])
    assert [place.name for place in read_coverage(world.store).not_measured("topics")] == ["other"]
    world.round()  # within the minute
    assert [place.name for place in read_coverage(world.store).not_measured("topics")] == ["other"]
