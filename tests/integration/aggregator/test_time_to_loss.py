"""Time to loss, by real groups on real topics whose limits delete what they have not read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from aggregator.consumer_lag.rows import keep
from aggregator.metrics import AggregatorMetrics
from aggregator.node_groups import PartitionLag, PartitionOffsets
from alerting.rules import rules_of
from alerting.views.view_cache import ViewCache
from dashboard.queries.consumer_groups import ConsumerGroup, read_consumer_groups
from dashboard.request.shown_range import ShownRange
from lagloss_server.groups.retention import RetentionLimits
from lagloss_server.model.definition import StoredPipeline, parse_definition
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.kafka_node import BrokerAccess
from lagloss_server.store.partitions import ensure_days
from lagloss_server.store.store import Store
from tests.integration.aggregator.test_consumer_lag import Group, PatientLags, now_ms, stored, watching
from tests.support.group_rows import labels_of
from tests.support.kafka_log import consumer_of, wait_for

RETENTION_MS = 12_000


@pytest.fixture(scope="module")
def cleaning_broker(jars: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One that looks for what to delete twice per second, and not each 5 minutes."""
    often = {"log.retention.check.interval.ms": 500, "log.initial.task.delay.ms": 500}
    folder: Path = tmp_path_factory.mktemp("cleaning")
    with EmbeddedKafka(folder, access=BrokerAccess(properties=often)) as broker:
        yield broker.bootstrap


@pytest.fixture
def overtaken(cleaning_broker: str) -> Iterator[Group]:
    lags = PatientLags(cleaning_broker)
    yield Group(cleaning_broker, lags, partitions=1)
    lags.close()


@pytest.fixture
def group(kafka_bootstrap: str) -> Iterator[Group]:
    lags = PatientLags(kafka_bootstrap)
    yield Group(kafka_bootstrap, lags)
    lags.close()


def configure(group: Group, **config: int | str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, group.topic, incremental_configs=entries)
    group.answered(group.admin.incremental_alter_configs([resource]))


def applied(store: Store, group: Group) -> StoredPipeline:
    nodes = f"{{name: src, to: [mid]}}, {{name: mid, group: {group.of.group}}}"
    head = "apiVersion: lagloss/v1, kind: Pipeline, metadata: {name: orders}"
    store.apply(parse_definition(f"{{{head}, spec: {{nodes: [{nodes}]}}}}"))
    return store.pipeline("orders")


def stood_still(store: Store, group: Group, committed: int, end: int, for_s: float = 90) -> None:
    """Rows of an aggregator that read the same offsets before."""
    asked_ms = now_ms() - int(1_000 * for_s)
    lag = PartitionLag(group.of, group.topic, 0, end - committed, None, at=PartitionOffsets(committed, 0, end))
    with store.engine.begin() as connection:
        ensure_days(connection, [asked_ms // 1_000])
        keep(connection, asked_ms, [lag])


def shown(store: Store, pipeline: StoredPipeline) -> ConsumerGroup:
    now_s = time.time()
    (found,) = read_consumer_groups(store, pipeline, ShownRange(int(now_s) - 3_600, int(now_s) + 60), now_s)
    return found


def alerts(store: Store, pipeline: StoredPipeline) -> list[str]:
    view = ViewCache(store).view(pipeline, time.time())
    (rule,) = [rule for rule in rules_of(pipeline.definition) if rule.kind == "time-to-loss"]
    return list(rule.assess(view).texts.values())


def test_limits_sizes_and_the_time_of_the_record_that_waits_are_what_the_broker_has(group: Group) -> None:
    configure(group, retention_ms=3_600_000, retention_bytes=1_000_000)
    began_ms = now_ms()
    group.send(10)
    group.take(3)
    _, found = group.lags.read([group.of])
    at = found[0].at
    assert at is not None
    assert (at.committed, at.start, at.end) == (3, 0, 10)
    assert at.limits == RetentionLimits(3_600_000, 1_000_000)
    assert at.size_bytes is not None
    assert 500 < at.size_bytes < 5_000
    assert at.stamped_ms is not None
    assert began_ms <= at.stamped_ms <= now_ms()
    assert found[1].at is not None
    assert found[1].at.stamped_ms is None


def test_a_topic_that_is_only_compacted_has_no_limit(group: Group) -> None:
    group.send(2)
    group.take(1)
    configure(group, cleanup_policy="compact")  # takes no records without a key
    _, found = group.lags.read([group.of])
    assert found[0].at is not None
    assert found[0].at.limits == RetentionLimits()


def test_what_is_deleted_before_the_group_read_it_is_counted_once_and_exactly(group: Group, store: Store) -> None:
    metrics = AggregatorMetrics()
    watch = watching(group, store, metrics)
    labels = {**labels_of(group.of), "topic": group.topic, "partition": "0"}

    def counted() -> tuple[float | None, int]:
        watch.round(lambda _cluster: group.lags)
        total = metrics.registry.get_sample_value("lagloss_consumer_lag_deleted_unread_total", labels)
        return total, sum(row["deleted"] or 0 for row in stored(store))

    group.send(20)
    group.take(5)
    assert counted() == (0, 0)
    group.answered(group.admin.delete_records([TopicPartition(group.topic, 0, 3)]))  # what was read
    assert counted() == (0, 0)
    group.answered(group.admin.delete_records([TopicPartition(group.topic, 0, 9)]))
    assert counted() == counted() == (4, 4)
    group.answered(group.admin.delete_records([TopicPartition(group.topic, 0, 12)]))
    assert counted() == (7, 7)
    again = watching(group, store, AggregatorMetrics())  # an aggregator that starts anew goes on
    again.round(lambda _cluster: group.lags)
    assert sum(row["deleted"] or 0 for row in stored(store)) == 7
    with consumer_of(group.bootstrap, **{"group.id": group.of.group}) as consumer:
        consumer.commit(offsets=[TopicPartition(group.topic, 0, 14)], asynchronous=False)
    group.answered(group.admin.delete_records([TopicPartition(group.topic, 0, 13)]))
    assert counted() == (7, 7)
    assert metrics.registry.get_sample_value("lagloss_consumer_group_members", labels_of(group.of)) == 0
    assert (
        metrics.registry.get_sample_value("lagloss_consumer_group_state", {**labels_of(group.of), "state": "Empty"})
        == 1
    )


def test_a_group_that_stands_still_is_told_when_its_messages_go_and_loses_them_no_sooner(
    overtaken: Group, store: Store
) -> None:
    group, pipeline = overtaken, applied(store, overtaken)
    configure(group, retention_ms=RETENTION_MS)
    sent_ms = now_ms()
    group.send(10)
    group.take(2)
    stood_still(store, group, committed=2, end=10)
    watch = watching(group, store, AggregatorMetrics())
    watch.round(lambda _cluster: group.lags)
    (now,) = shown(store, pipeline).partitions
    assert (now.status, now.kept_by, now.lag, now.at_risk, now.deleted) == ("stopped", "time", 8, 8, 0)
    assert now.velocity.commits_per_s == 0
    assert now.loss_ms is not None
    assert now.loss_ms == now.deletes_ms
    assert sent_ms + RETENTION_MS <= now.loss_ms <= now_ms() + RETENTION_MS
    (text,) = alerts(store, pipeline)
    assert text.startswith(f"8 messages of {group.of.group} in 1 partition are deleted unread starting at ")
    assert text.endswith(" s, unless the group catches up")

    def is_gone() -> bool:
        _, found = group.lags.read([group.of])
        return found[0].at is not None and found[0].at.start == 10

    wait_for(is_gone, timeout_s=60, what="the broker to delete what the group has not read")
    assert now_ms() >= now.loss_ms
    watch.round(lambda _cluster: group.lags)
    found = shown(store, pipeline)
    assert (found.deleted, found.lag, found.described and found.described.state) == (8, 0, "Empty")
    assert alerts(store, pipeline) == [f"8 messages of {group.of.group} were deleted unread in the last two minutes"]


def test_a_group_that_is_fast_enough_has_nothing_at_risk(group: Group, store: Store) -> None:
    pipeline = applied(store, group)
    configure(group, retention_ms=3_600_000)
    group.send(50)
    group.take(40)
    stood_still(store, group, committed=0, end=10)
    watching(group, store, AggregatorMetrics()).round(lambda _cluster: group.lags)
    (now, _) = sorted(shown(store, pipeline).partitions, key=lambda one: one.of.partition)
    assert (now.lag, now.kept_by, now.loss_ms) == (10, "time", None)
    assert now.deletes_ms is not None
    assert (now.velocity.commits_per_s or 0) > 0.3
    assert alerts(store, pipeline) == []
