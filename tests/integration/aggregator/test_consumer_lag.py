"""Consumer lag, asked of a real broker about real groups, and kept in a real PostgreSQL."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select
from tenacity import retry, retry_if_exception_type, stop_after_delay

from aggregator.consumer_lag.event_times import NO_EXPRESSIONS
from aggregator.consumer_lag.lag import ConsumerLags
from aggregator.consumer_lag.rows import keep
from aggregator.consumer_lag.watch import ConsumerLagWatch, WatchedGroups
from aggregator.metrics import AggregatorMetrics
from aggregator.node_groups import NodeGroup, PartitionLag
from aggregator.set_aside import SetAside
from lagloss.broker.topics import create_topics
from lagloss.identity import REPLAY_HEADER, Identity
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.taps import Extraction
from lagloss_server.ops.processes import choose_port
from lagloss_server.store.partitions import ensure_days, make_days_ahead
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from tests.integration.aggregator.test_aggregator_process import aggregator, health, metric
from tests.support.group_rows import labels_of
from tests.support.kafka_log import consumer_of, wait_for

MINUTE = 1_795_250_400
Answer = tuple[int | None, int | None]


def now_ms() -> int:
    return int(time.time() * 1_000)


patient = retry(retry=retry_if_exception_type((KafkaException, TimeoutError)), stop=stop_after_delay(20), reraise=True)


class PatientLags(ConsumerLags):
    """Repeats a request that had no answer within 2 s, as the watch does in its next round."""

    @patient
    def read(
        self, groups: Collection[NodeGroup], expressions: Mapping[str, Extraction] = NO_EXPRESSIONS
    ) -> tuple[int, list[PartitionLag]]:
        return super().read(groups, expressions)


@dataclass
class Group:
    """A topic of the test's own, a group that reads from it, and who asks about both."""

    bootstrap: str
    lags: ConsumerLags
    topic: str = field(default_factory=lambda: f"lag-{uuid.uuid4().hex[:8]}")
    partitions: int = 2

    def __post_init__(self) -> None:
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})
        self.of = NodeGroup("orders", "mid", f"{self.topic}.mid")
        self.answered(self.admin.create_topics([NewTopic(self.topic, self.partitions, 1)]))
        wait_for(lambda: self.topic in self.admin.list_topics(timeout=10).topics, what="the topic")

    @staticmethod
    def answered(futures: Any) -> None:
        for future in futures.values():
            future.result(20)

    def send(self, number: int, age_s: float = 0.0, partition: int = 0, **headers: str) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        self.produce(producer, number, age_s, partition, **headers)
        assert producer.flush(20) == 0

    def produce(self, producer: Producer, number: int, age_s: float = 0.0, partition: int = 0, **headers: str) -> None:
        for _ in range(number):
            identity = Identity(uuid.uuid4().hex, now_ms() - int(1_000 * age_s))
            given = [*identity.headers(), *headers.items()]
            producer.produce(self.topic, b"x", partition=partition, headers=given)

    def take(self, number: int, partition: int = 0) -> None:
        """A consumer of the group goes on, and commits."""
        with consumer_of(self.bootstrap, **{"group.id": self.of.group}) as consumer:
            consumer.assign([TopicPartition(self.topic, partition, self.next(consumer, partition))])
            left = number
            while left:
                record = consumer.poll(20)
                assert record is not None
                assert record.error() is None
                left -= 1
            consumer.commit(asynchronous=False)

    @patient
    def next(self, consumer: Consumer, partition: int) -> int:
        """Where the group goes on; a broker that has just started does not coordinate groups yet."""
        [place] = consumer.committed([TopicPartition(self.topic, partition)], timeout=20)
        return max(place.offset, 0)

    def ask(self) -> dict[int, Answer]:
        """(offsets, behind_ms) by partition."""
        _, found = self.lags.read([self.of])
        assert {(lag.group, lag.topic) for lag in found} <= {(self.of, self.topic)}
        return {lag.partition: (lag.offsets, lag.behind_ms) for lag in found}


@pytest.fixture(scope="module")
def lags(kafka_bootstrap: str) -> Iterator[ConsumerLags]:
    asked = PatientLags(kafka_bootstrap)
    yield asked
    asked.close()


@pytest.fixture
def group(kafka_bootstrap: str, lags: ConsumerLags) -> Group:
    return Group(kafka_bootstrap, lags)


def test_a_consumer_that_stops_falls_behind_by_offsets_and_seconds_and_one_that_goes_on_catches_up(
    group: Group,
) -> None:
    group.send(1, age_s=100)
    group.send(4, age_s=60)
    group.take(1)
    (offsets, behind_ms), other = group.ask()[0], group.ask()[1]
    assert offsets == 4
    assert behind_ms is not None
    assert 60_000 <= behind_ms < 90_000
    assert other == (0, 0)
    group.send(3)
    offsets, later_ms = group.ask()[0]
    assert offsets == 7
    assert later_ms is not None
    assert later_ms > behind_ms
    group.take(4)
    offsets, newer_ms = group.ask()[0]
    assert offsets == 3
    assert newer_ms is not None
    assert newer_ms < 60_000
    group.take(3)
    assert group.ask() == {0: (0, 0), 1: (0, 0)}


def test_of_a_group_that_does_not_exist_nothing_is_told_and_others_are_told_all_the_same(group: Group) -> None:
    group.send(2)
    assert group.ask() == {}
    group.take(1)
    nobody = NodeGroup("orders", "nobody", f"{group.topic}.nobody")
    _, found = group.lags.read([nobody, group.of])
    assert [(lag.group.node, lag.partition, lag.offsets) for lag in found] == [("mid", 0, 1), ("mid", 1, 0)]


def test_of_a_deleted_topic_nothing_is_told_any_more(group: Group, kafka_bootstrap: str, lags: ConsumerLags) -> None:
    other = Group(kafka_bootstrap, lags)
    for one in (group, other):
        one.send(2)
        one.take(1)
    group.answered(group.admin.delete_topics([group.topic]))
    wait_for(lambda: group.topic not in group.admin.list_topics(timeout=10).topics, what="the topic's end")
    _, found = lags.read([group.of, other.of])
    assert {lag.topic for lag in found} == {other.topic}


def test_in_a_partition_that_was_added_all_waits_that_it_holds(group: Group) -> None:
    group.send(1)
    group.take(1)
    group.answered(group.admin.create_partitions([NewPartitions(group.topic, 3)]))
    wait_for(lambda: len(group.admin.list_topics(timeout=10).topics[group.topic].partitions) == 3, what="a partition")
    group.send(5, age_s=30, partition=2)
    found = group.ask()
    assert found[0] == (0, 0)
    offsets, behind_ms = found[2]
    assert offsets == 5
    assert behind_ms is not None
    assert 30_000 <= behind_ms < 60_000


def test_of_a_group_that_starts_at_the_end_nothing_waits_for_certain_until_it_commits(
    group: Group, store: Store
) -> None:
    metrics = AggregatorMetrics()
    watch = watching(group, store, metrics)
    labels = {**labels_of(group.of), "topic": group.topic}

    def shown() -> list[tuple[int | None, str | None, float | None]]:
        watch.round(lambda _cluster: group.lags)
        newest = {row["topic_partition"]: row for row in stored(store)}
        return [
            (
                row["offsets"],
                row["status"],
                metrics.registry.get_sample_value("lagloss_consumer_lag_status", {**labels, "partition": str(number)}),
            )
            for number, row in sorted(newest.items())
        ]

    group.send(5, partition=0)
    group.send(7, partition=1)
    with consumer_of(group.bootstrap, **{"group.id": group.of.group, "auto.offset.reset": "latest"}) as consumer:
        consumer.subscribe([group.topic])
        wait_for(lambda: consumer.poll(0.2) is None and len(consumer.assignment()) == 2, what="an assignment")
        assert shown() == [(None, "not committed", -1)] * 2
        assert (stored(store)[0]["loss_at"], stored(store)[0]["kept_by"]) == (None, None)
        consumer.commit(offsets=[TopicPartition(group.topic, 0, 5)], asynchronous=False)
        assert shown() == [(0, "ok", 0), (7, "not committed", -1)]
        consumer.commit(offsets=[TopicPartition(group.topic, 0, 90)], asynchronous=False)
        assert shown() == [(None, "beyond the end", -2), (None, "not committed", -1)]
    again = watching(group, store, metrics)  # an aggregator that starts anew
    group.send(100, partition=0)
    again.round(lambda _cluster: group.lags)
    row = max(stored(store), key=lambda row: (row["asked_at"], -row["topic_partition"]))
    assert (row["committed"], row["log_end"], row["offsets"], row["status"]) == (90, 105, None, "beyond the end")


def test_what_the_log_has_dropped_waits_no_more(group: Group) -> None:
    group.send(5, age_s=500)
    group.send(2, age_s=20)
    group.take(1)
    group.answered(group.admin.delete_records([TopicPartition(group.topic, 0, 5)]))
    offsets, behind_ms = group.ask()[0]
    assert offsets == 2
    assert behind_ms is not None
    assert behind_ms < 500_000


@pytest.mark.parametrize("headers", [{REPLAY_HEADER: "again"}, {"lagloss-event-time": "soon"}], ids=["replay", "bad"])
def test_a_record_without_an_event_time_of_now_is_as_old_as_its_timestamp(
    group: Group, headers: dict[str, str]
) -> None:
    group.send(1)
    group.send(2, **headers)
    group.take(1)
    offsets, behind_ms = group.ask()[0]
    assert offsets == 2
    assert behind_ms is not None
    assert 0 <= behind_ms < 30_000


def test_a_replayed_record_is_not_as_old_as_its_event_by_the_expression_of_a_tap(group: Group) -> None:
    producer = Producer({"bootstrap.servers": group.bootstrap})
    value = json.dumps({"id": "a", "at": now_ms() - 3_600_000})
    headers: list[tuple[str, str | bytes]] = [(REPLAY_HEADER, "again")]
    for partition, some in enumerate((headers, [])):
        producer.produce(group.topic, value, partition=partition, headers=some)
        producer.produce(group.topic, value, partition=partition, headers=some)
    assert producer.flush(20) == 0
    for partition in range(2):
        group.take(1, partition)
    extraction = Extraction(IdExpression.parse("$.id"), TimeExpression.parse("$.at"))
    _, found = group.lags.read([group.of], {group.topic: extraction})
    replayed, live = sorted(found, key=lambda lag: lag.partition)
    assert (live.basis, replayed.basis) == ("event-time", "timestamp")
    assert live.behind_ms is not None
    assert replayed.behind_ms is not None
    assert live.behind_ms >= 3_600_000
    assert 0 <= replayed.behind_ms < 30_000


def test_two_groups_that_go_on_at_different_places_of_a_partition_are_both_told(group: Group) -> None:
    group.send(3, age_s=90)
    group.send(3, age_s=10)
    group.take(1)
    other = NodeGroup("shadow", "mid", f"{group.topic}.shadow")
    with consumer_of(group.bootstrap, **{"group.id": other.group}) as consumer:
        consumer.commit(offsets=[TopicPartition(group.topic, 0, 3)], asynchronous=False)
    _, found = group.lags.read([group.of, other])
    behind = {lag.group.pipeline: (lag.offsets, (lag.behind_ms or 0) // 10_000) for lag in found if not lag.partition}
    assert behind["orders"][0] == 5
    assert behind["shadow"][0] == 3
    assert behind["orders"][1] >= 9 > behind["shadow"][1]


def test_markers_of_transactions_are_no_lag_and_what_is_not_committed_yet_has_no_age(group: Group) -> None:
    producer = Producer({"bootstrap.servers": group.bootstrap, "transactional.id": group.topic})
    producer.init_transactions(20)
    producer.begin_transaction()
    group.produce(producer, 2)
    producer.commit_transaction(20)
    group.take(2)
    assert group.ask()[0] == (0, 0)
    producer.begin_transaction()
    group.produce(producer, 3)
    producer.flush(20)
    assert group.ask()[0] == (4, None)
    producer.abort_transaction(20)
    wait_for(lambda: group.ask()[0] == (0, 0), what="the marker of a transaction that was given up")


def test_a_watch_keeps_the_newest_and_the_highest_of_a_minute_and_says_both_to_prometheus(
    group: Group, store: Store
) -> None:
    metrics = AggregatorMetrics()
    watch = watching(group, store, metrics)
    group.send(8, age_s=60)
    group.take(1)
    watch.round(lambda _cluster: group.lags)
    group.take(6)
    watch.round(lambda _cluster: group.lags)
    rows = [row for row in stored(store) if row["topic_partition"] == 0]
    assert rows[-1]["offsets"] == 1
    assert max(row["offsets_max"] for row in rows) == 7  # in one row or, at the turn of a minute, two
    assert {row["window_start"] % 60 for row in rows} == {0}
    labels = {**labels_of(group.of), "topic": group.topic, "partition": "0"}
    assert metrics.registry.get_sample_value("lagloss_consumer_lag_offsets", labels) == 1
    watch.close()
    assert metrics.registry.get_sample_value("lagloss_consumer_lag_offsets", labels) is None


def test_a_watch_goes_on_where_a_broker_is_away_and_ends_at_once(store: Store) -> None:
    metrics = AggregatorMetrics()
    away = f"127.0.0.1:{choose_port('nobody')}"
    watch = ConsumerLagWatch(
        away,
        store.engine,
        lambda: WatchedGroups([NodeGroup("orders", "mid", "orders.mid")]),
        metrics,
        SetAside(store.engine),
    )
    watch.start()
    wait_for(lambda: failures(metrics) == 1, what="a failure that is counted")
    began = time.monotonic()
    watch.close()
    assert time.monotonic() - began < 3
    assert stored(store) == []


def test_a_round_that_fails_is_counted_and_the_next_is_right(
    group: Group, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = AggregatorMetrics()
    watch = watching(group, store, metrics)
    group.send(2)
    group.take(1)

    def fail(_groups: object, _expressions: object) -> None:
        raise KafkaException("away")

    with monkeypatch.context() as patch:
        patch.setattr(group.lags, "read", fail)
        watch.round(lambda _cluster: group.lags)
    assert (failures(metrics), stored(store)) == (1, [])
    watch.round(lambda _cluster: group.lags)
    assert (failures(metrics), len(stored(store))) == (1, 2)


@pytest.mark.parametrize("fails", ["reading", "storing"])
def test_a_group_that_cannot_be_read_or_stored_is_set_aside_alone(
    fails: str, group: Group, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [NodeGroup("orders", f"odd-{at}", f"{group.topic}.odd-{at}") for at in range(2)]
    wanted, aside = [bad[0], group.of, bad[1]], SetAside(store.engine)
    make_days_ahead(store.engine, time.time())
    watch = ConsumerLagWatch(
        group.bootstrap, store.engine, lambda: WatchedGroups(wanted, patterns="none"), AggregatorMetrics(), aside
    )
    group.send(2)
    group.take(1)
    whole, asked = group.lags.read, list[set[str]]()

    def read(groups: Collection[NodeGroup], _expressions: object = None) -> tuple[int, list[PartitionLag]]:
        asked.append({each.node for each in groups})
        odd = [each for each in groups if each in bad]
        if odd and fails == "reading":
            raise IndexError("index 0 is out of bounds")
        asked_ms, found = whole(groups)
        return asked_ms, [*found, *(PartitionLag(each, "in\0", 0, 1, 1) for each in odd)]

    monkeypatch.setattr(group.lags, "read", read)
    watch.round(lambda _cluster: group.lags)
    assert {row["node"] for row in stored(store)} == {"mid"}
    assert aside.names() == [f"group orders/{each.group}" for each in bad]
    asked.clear()
    watch.round(lambda _cluster: group.lags)
    assert asked == [{"mid"}]  # the others only after an hour
    monkeypatch.undo()
    aside.retry_now("group", "orders")
    del wanted[0]  # the definition names it no longer
    watch.round(lambda _cluster: group.lags)
    assert aside.names() == []


def test_rows_hold_the_newest_and_the_highest_whatever_the_rounds_and_however_often_they_are_kept(
    store: Store,
) -> None:
    with store.engine.begin() as connection:
        ensure_days(connection, [MINUTE])
    known = st.none() | st.integers(0, 9)
    rounds = st.lists(st.tuples(known, known, st.booleans()), min_size=1, max_size=6)

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(rounds)
    def check(told: list[tuple[int | None, int | None, bool]]) -> None:
        with store.engine.begin() as connection:
            connection.execute(delete(tables.ConsumerLagRow))
            for at, (offsets, behind_ms, twice) in enumerate(told):
                lag = PartitionLag(NodeGroup("orders", "mid", "g"), "in", 0, offsets, behind_ms)
                for _ in range(1 + twice):
                    keep(connection, 1_000 * (MINUTE + 10 * at), [lag])
        (row,) = stored(store)
        assert (row["offsets"], row["behind_ms"]) == told[-1][:2]
        assert row["offsets_max"] == highest(offsets for offsets, _, _ in told)
        assert row["behind_max_ms"] == highest(behind_ms for _, behind_ms, _ in told)

    check()


@pytest.mark.slow
def test_a_running_aggregator_watches_the_groups_that_definitions_name(
    group: Group, kafka_bootstrap: str, database_url: str, store: Store, tmp_path: Path
) -> None:
    create_topics(kafka_bootstrap)
    group.send(5)
    group.take(2)
    nodes = f"{{name: src, to: [mid]}}, {{name: mid, group: {group.of.group}}}"
    head = "apiVersion: lagloss/v1, kind: Pipeline, metadata: {name: orders}"
    with aggregator(kafka_bootstrap, database_url, tmp_path) as process:
        wait_for(lambda: health(process)[0] == 200, timeout_s=60, what="the aggregator")
        store.apply(parse_definition(f"{{{head}, spec: {{nodes: [{nodes}]}}}}"))
        wait_for(lambda: len(stored(store)) > 0, timeout_s=30, what="rows of consumer lag")
        assert {(row["node"], row["topic_partition"], row["offsets"]) for row in stored(store)} == {
            ("mid", 0, 3),
            ("mid", 1, 0),
        }
        wait_for(
            lambda: metric(process.url, 'lagloss_consumer_lag_offsets{cluster="",group="' + group.of.group) == 3,
            what="the metric",
        )
        process.terminate()
        assert process.wait(20) == 0


def watching(group: Group, store: Store, metrics: AggregatorMetrics) -> ConsumerLagWatch:
    """A watch whose rounds are the test's."""
    make_days_ahead(store.engine, time.time())
    return ConsumerLagWatch(
        group.bootstrap,
        store.engine,
        lambda: WatchedGroups([group.of], patterns="none"),
        metrics,
        SetAside(store.engine),
    )


def highest(values: Any) -> int | None:
    return max((value for value in values if value is not None), default=None)


def failures(metrics: AggregatorMetrics) -> float | None:
    return metrics.registry.get_sample_value("lagloss_consumer_lag_failures_total")


def stored(store: Store) -> list[dict[str, Any]]:
    """The rows there are, oldest first."""
    table = tables.table_of(tables.ConsumerLagRow)
    with store.engine.connect() as connection:
        return [dict(row) for row in connection.execute(select(table).order_by(table.c.asked_at)).mappings()]
