"""A real MirrorMaker 2, measured by the offsets that Kafka Connect stores for it: what it skips is lost for certain."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from lagloss.wire.format import WINDOW_S, hash_id
from lagloss_server.groups.cluster_groups import read_cluster_groups
from lagloss_server.groups.source_offsets import SourceOffsets
from lagloss_server.model.window import Interval
from lagloss_server.store.store import Store
from pipeline_under_test.harness.stack import ScenarioStack
from tests.programs import need
from tests.support.kafka_connect import ConnectWorker
from tests.support.kafka_log import wait_for
from tests.support.tapped_pipelines import Tapped

MIRRORED = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: NAME}
spec:
  nodes:
    - {name: shop, to: [mirror], taps: {out: {topic: NAME.orders, id: $.order_id, eventTime: $.created_at}}}
    - {name: mirror, taps: {in: {connector: NAME-mirror, offsets: NAME-offsets}, out: {topic: a.NAME.orders}}}
  grace: 2s
  maxWait: 60s
  lookback: 10m
"""
MIRROR = "org.apache.kafka.connect.mirror.MirrorSourceConnector"
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
SKIPPED_EACH = 40
PARTITIONS = 2

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stack(jars: None) -> Iterator[ScenarioStack]:
    need("kafka-connect")
    with ScenarioStack() as stack:
        yield stack


def send(bootstrap: str, topic: str, first: int, count: int, end_ms: int) -> None:
    """Send orders of the two minutes before `end_ms`, some of them to be skipped; the last of a partition never is."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(first, first + count):
        created_at = end_ms - 2 * WINDOW_S * 1_000 + (number * 211) % (2 * WINDOW_S * 1_000)
        value = json.dumps({"order_id": f"order-{number}", "created_at": created_at})
        header = {"skip" if number % SKIPPED_EACH == 0 else "keep": b"1"}
        producer.produce(topic, value, headers=header, partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def by_window(records: Sequence[bytes]) -> dict[int, Counter[str]]:
    """Return by window how often the topic has each order."""
    orders: dict[int, Counter[str]] = defaultdict(Counter)
    for record in records:
        order = json.loads(record)
        orders[order["created_at"] // 1_000 // WINDOW_S * WINDOW_S][order["order_id"]] += 1
    return orders


def test_what_a_killed_mirror_has_skipped_is_lost_there_for_certain_and_by_name(
    stack: ScenarioStack, tmp_path: Path
) -> None:
    with closing(Store(stack.settings.require_database())) as store:
        tapped = Tapped(f"mirrored-{uuid.uuid4().hex[:8]}", stack, store, tmp_path)
        name, topic = tapped.name, f"{tapped.name}.orders"
        mirror = {
            "connector.class": MIRROR,
            "tasks.max": "2",
            "source.cluster.alias": "a",
            "target.cluster.alias": "b",
            "source.cluster.bootstrap.servers": tapped.bootstrap,
            "target.cluster.bootstrap.servers": tapped.bootstrap,
            "topics": topic,
            "key.converter": BYTES,
            "value.converter": BYTES,
            "replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "sync.topic.configs.enabled": "false",
            "sync.topic.acls.enabled": "false",
            "transforms": "drop",
            "transforms.drop.type": "org.apache.kafka.connect.transforms.Filter",
            "transforms.drop.predicate": "skip",
            "predicates": "skip",
            "predicates.skip.type": "org.apache.kafka.connect.transforms.predicates.HasHeaderKey",
            "predicates.skip.name": "skip",
        }
        tapped.create_topics(PARTITIONS, topic)
        tapped.apply(MIRRORED)
        end_ms = int(time.time()) // WINDOW_S * WINDOW_S * 1_000
        with ConnectWorker(tapped.bootstrap, tmp_path, {f"{name}-mirror": mirror}, storage=name) as worker:
            send(tapped.bootstrap, topic, 0, 1_000, end_ms)
            wait_for(lambda: len(tapped.records(f"a.{topic}")) > 100, timeout_s=60, what="mirrored orders")
            worker.kill()
            send(tapped.bootstrap, topic, 1_000, 1_000, end_ms)
            worker.start()
            with closing(SourceOffsets(tapped.bootstrap, f"{name}-offsets")) as offsets:

                def is_level() -> bool:
                    offsets.read()
                    return sum(offsets.committed(f"{name}-mirror").values()) == 2_000

                wait_for(is_level, timeout_s=90, what="stored offsets at the ends")
        sent, passed = by_window(tapped.records(topic)), by_window(tapped.records(f"a.{topic}"))
        assert sum(map(len, sent.values())) == 2_000
        for start, measured in tapped.settled(sent).items():
            lost = sent[start].keys() - passed[start].keys()
            assert lost == {order for order in sent[start] if int(order.partition("-")[2]) % SKIPPED_EACH == 0}
            assert measured.ids["messages"] == frozenset(map(hash_id, sent[start]))
            assert measured.lost_at == {"node mirror": frozenset(map(hash_id, lost))}
            assert measured.window.lost == Interval(len(lost), len(lost))

        def listed() -> list[tuple[str, int | None]]:
            with store.engine.connect() as connection:
                readings = read_cluster_groups(connection)
            return [(it.group.kind, it.group.lag) for it in readings if it.group.group == f"{name}-mirror"]

        wait_for(lambda: listed() == [("connect", 0)], what="the connector among the groups")
