"""Lag of queues, asked of LocalStack, which knows no ages, and kept in a real PostgreSQL."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from sqlalchemy import select

from aggregator.consumer_lag.queues import QueueLags
from aggregator.consumer_lag.watch import ConsumerLagWatch, WatchedGroups
from aggregator.metrics import AggregatorMetrics
from aggregator.node_groups import QUEUES, NodeGroup, PartitionLag
from aggregator.set_aside import SetAside
from dashboard.queries.consumer_lag import LagNow, read_lag_now
from lagloss_server.ops.embedded.localstack import EmbeddedLocalStack
from lagloss_server.store.partitions import make_days_ahead
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from tests.support.group_rows import labels_of
from tests.support.kafka_log import wait_for


@pytest.fixture
def sqs(localstack: EmbeddedLocalStack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in localstack.variables.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("sqs")
    yield client
    client.close()


@pytest.fixture
def group(sqs: Any) -> NodeGroup:
    url = sqs.create_queue(QueueName=f"import-{uuid.uuid4().hex[:8]}")["QueueUrl"]
    for at in range(3):
        sqs.send_message(QueueUrl=url, MessageBody=str(at))
    assert sqs.receive_message(QueueUrl=url, VisibilityTimeout=600)["Messages"]
    return NodeGroup("scores", "db", url, QUEUES)


def test_messages_that_wait_and_are_in_flight_are_counted_by_boto3s_own_environment(group: NodeGroup) -> None:
    lags = QueueLags()
    try:
        _, (found,) = lags.read([group])
        name = group.group.rpartition("/")[2]
        assert found == PartitionLag(group, name, 0, 2, None, 1)
        assert lags.read([group._replace(group=f"{group.group}-none")])[1] == []
    finally:
        lags.close()


def test_they_are_kept_with_those_of_consumer_groups(group: NodeGroup, store: Store, kafka_bootstrap: str) -> None:
    make_days_ahead(store.engine, time.time())
    metrics = AggregatorMetrics()
    watch = ConsumerLagWatch(
        kafka_bootstrap, store.engine, lambda: WatchedGroups([group], patterns="none"), metrics, SetAside(store.engine)
    )
    watch.start()
    try:
        row = tables.ConsumerLagRow

        def kept() -> list[Any]:
            with store.engine.connect() as connection:
                return list(connection.execute(select(row.offsets, row.in_flight, row.in_flight_max, row.asked_at)))

        wait_for(lambda: bool(kept()), timeout_s=30, what="a row")
        offsets, in_flight, in_flight_max, asked_at = kept()[0]
        assert (offsets, in_flight, in_flight_max) == (2, 1, 1)
        assert read_lag_now(store, ["scores"], asked_at / 1_000) == {("scores", "db"): LagNow(2, None, 1)}
        labels = {**labels_of(group), "topic": group.group.rpartition("/")[2], "partition": "0"}
        assert metrics.registry.get_sample_value("lagloss_consumer_lag_in_flight", labels) == 1
    finally:
        watch.close()
