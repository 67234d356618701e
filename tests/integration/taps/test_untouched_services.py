"""Java services as they are, measured by taps alone: what lagloss says is what their topics hold, record by record."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from lagloss.wire.format import WINDOW_S, hash_id
from lagloss_server.groups.cluster_groups import read_cluster_groups
from lagloss_server.groups.consumer_groups import ConsumerGroups
from lagloss_server.groups.source_offsets import SourceOffsets
from lagloss_server.model.window import Interval
from lagloss_server.store.store import Store
from pipeline_under_test.harness.measured import Measured
from pipeline_under_test.harness.stack import ScenarioStack
from tests.programs import need
from tests.support.kafka_connect import ConnectWorker, java_command, produce
from tests.support.kafka_log import wait_for
from tests.support.tapped_pipelines import Tapped

ARCHIVED = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: NAME}
spec:
  nodes:
    - {name: shop, to: [archive], taps: {out: {topic: NAME.orders, id: $.order_id, eventTime: $.created_at}}}
    - {name: archive, to: [search], taps: {in: {group: connect-NAME-archive}, out: {topic: NAME.archived}}}
    - {name: search, taps: {in: {group: connect-NAME-search}}}
  grace: 2s
  maxWait: 60s
  lookback: 10m
"""
COPIED = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: NAME}
spec:
  nodes:
    - {name: shop, to: [copier], taps: {out: {topic: NAME.orders, id: $.order_id, eventTime: $.created_at}}}
    - {name: copier, taps: {in: {group: NAME.copier}, out: {topic: NAME.copied}}}
  grace: 2s
  maxWait: 60s
  lookback: 10m
"""
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
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
DROPPED = {
    "transforms": "drop",
    "transforms.drop.type": "org.apache.kafka.connect.transforms.Filter",
    "transforms.drop.predicate": "skip",
    "predicates": "skip",
    "predicates.skip.type": "org.apache.kafka.connect.transforms.predicates.HasHeaderKey",
    "predicates.skip.name": "skip",
}
FILE = "org.apache.kafka.connect.file.FileStream"
SKIPPED_EACH = 50
"""Kafka Connect is told to drop each so manieth order."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stack(jars: None) -> Iterator[ScenarioStack]:
    need("kafka-connect")
    with ScenarioStack() as stack:
        yield stack


@pytest.fixture
def tapped(stack: ScenarioStack, tmp_path: Path) -> Iterator[Tapped]:
    store = Store(stack.settings.require_database())
    try:
        yield Tapped(f"shop-{uuid.uuid4().hex[:8]}", stack, store, tmp_path)
    finally:
        store.close()


def orders(count: int, offset: int = 0) -> Iterator[str]:
    """Lines for the console producer: orders of the three minutes before this one, some of them to be skipped."""
    end_ms = int(time.time()) // WINDOW_S * WINDOW_S * 1_000
    for number in range(offset, offset + count):
        created_at = end_ms - 3 * WINDOW_S * 1_000 + (number * 211) % (3 * WINDOW_S * 1_000)
        document = json.dumps({"order_id": f"order-{number}", "created_at": created_at, "of": "x" * 200})
        yield f"{'skip:1' if number % SKIPPED_EACH == 0 else 'kept:1'}\t{document}"


def by_window(records: Sequence[bytes]) -> dict[int, Counter[str]]:
    """Return by window how often the topic has each order."""
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for record in records:
        order = json.loads(record)
        found[order["created_at"] // 1_000 // WINDOW_S * WINDOW_S][order["order_id"]] += 1
    return found


def beacons(measured: Measured) -> dict[str, tuple[int, int]]:
    """Return beacons and distinct messages at each checkpoint."""
    return {each.name: (each.beacons, each.distinct) for each in measured.window.checkpoints}


def counts(records: Mapping[str, int]) -> tuple[int, int]:
    return sum(records.values()), len(records)


def hashes(ids: Collection[str]) -> frozenset[int]:
    return frozenset(map(hash_id, ids))


def has_taken_in(tapped: Tapped, group: str, topic: str) -> bool:
    """Return whether a group has committed everything that is in a topic."""
    groups = ConsumerGroups(tapped.bootstrap, "test")
    try:
        committed = groups.committed([group]).get(group, {})
    finally:
        groups.close()
    return sum(at for (name, _), at in committed.items() if name == topic) >= len(tapped.records(topic))


def has_sent_on(file: Path, records: Sequence[bytes]) -> bool:
    """Return whether every line of a file is in a topic by now: once or, after a kill, more often."""
    lines = file.read_bytes().splitlines()
    return len(records) >= len(lines) and set(records) == set(lines)


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_connector_that_is_killed_under_load_loses_exactly_what_the_windows_say(tapped: Tapped) -> None:
    name, archive, search = tapped.name, tapped.directory / "archive.txt", tapped.directory / "search.txt"
    topic, archived = f"{name}.orders", f"{name}.archived"
    tapped.create_topics(3, topic, archived)
    tapped.apply(ARCHIVED)
    connectors = {
        f"{name}-archive": {
            "connector.class": f"{FILE}SinkConnector",
            "topics": topic,
            "file": str(archive),
            **DROPPED,
        },
        f"{name}-unarchive": {"connector.class": f"{FILE}SourceConnector", "topic": archived, "file": str(archive)},
        f"{name}-search": {"connector.class": f"{FILE}SinkConnector", "topics": archived, "file": str(search)},
    }
    archive.touch()
    produced = tapped.directory / "producer.log"
    with ConnectWorker(tapped.bootstrap, tapped.directory, connectors) as worker:
        for part in range(3):
            load = threading.Thread(
                target=produce, args=[tapped.bootstrap, topic, orders(2_000, part * 2_000), produced]
            )
            load.start()
            before = lines_in(archive)
            wait_for(lambda: lines_in(archive) > before + 200, timeout_s=60, what="orders in the archive")  # noqa: B023
            worker.kill()
            load.join()
            worker.start()
        wait_for(
            lambda: (
                has_taken_in(tapped, f"connect-{name}-archive", topic)
                and has_sent_on(archive, tapped.records(archived))
                and has_taken_in(tapped, f"connect-{name}-search", archived)
            ),
            timeout_s=90,
            what="all orders in the search index",
        )
    sent, passed = by_window(tapped.records(topic)), by_window(tapped.records(archived))
    assert sum(map(len, sent.values())) == 6_000
    for start, measured in tapped.settled(sent).items():
        lost = sent[start].keys() - passed[start].keys()
        assert lost == {order for order in sent[start] if int(order.partition("-")[2]) % SKIPPED_EACH == 0}
        assert measured.ids["messages"] == hashes(sent[start])
        assert measured.lost_at == {"node archive": hashes(lost)}
        assert measured.ids["delivered"] == hashes(passed[start])
        assert measured.window.lost == Interval(len(lost), len(lost))
        assert beacons(measured) == {
            "shop.in": counts(sent[start]),
            "shop.out": counts(sent[start]),
            "archive.in": counts(sent[start]),
            "archive.out": counts(passed[start]),
            "search.in": counts(passed[start]),
            "search.out": counts(passed[start]),
        }


def test_what_a_killed_mirrormaker_has_skipped_is_lost_there_for_certain_and_by_name(tapped: Tapped) -> None:
    name, topic, mirrored = tapped.name, f"{tapped.name}.orders", f"a.{tapped.name}.orders"
    mirror = {
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
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
        **DROPPED,
    }
    tapped.create_topics(1, topic)
    tapped.apply(MIRRORED)
    produced = tapped.directory / "producer.log"
    with ConnectWorker(tapped.bootstrap, tapped.directory, {f"{name}-mirror": mirror}, storage=name) as worker:
        produce(tapped.bootstrap, topic, orders(1_000), produced)
        wait_for(lambda: len(tapped.records(mirrored)) > 100, timeout_s=60, what="mirrored orders")
        worker.kill()
        produce(tapped.bootstrap, topic, orders(1_000, 1_000), produced)
        worker.start()
        with closing(SourceOffsets(tapped.bootstrap, f"{name}-offsets")) as offsets:

            def is_level() -> bool:
                offsets.read()
                return offsets.committed(f"{name}-mirror") == {(topic, 0): len(tapped.records(topic))}

            wait_for(is_level, timeout_s=90, what="the stored offset at the end")
    sent, passed = by_window(tapped.records(topic)), by_window(tapped.records(mirrored))
    assert sum(map(len, sent.values())) == 2_000
    for start, measured in tapped.settled(sent).items():
        lost = sent[start].keys() - passed[start].keys()
        assert lost == {order for order in sent[start] if int(order.partition("-")[2]) % SKIPPED_EACH == 0}
        assert measured.ids["messages"] == hashes(sent[start])
        assert measured.lost_at == {"node mirror": hashes(lost)}
        assert measured.window.lost == Interval(len(lost), len(lost))
        assert beacons(measured) == {
            "shop.in": counts(sent[start]),
            "shop.out": counts(sent[start]),
            "mirror.in": counts(sent[start]),
            "mirror.out": counts(passed[start]),
        }

    def listed() -> list[tuple[str, int | None]]:
        with tapped.store.engine.connect() as connection:
            readings = [reading.group for reading in read_cluster_groups(connection)]
        return [(group.kind, group.lag) for group in readings if group.group == f"{name}-mirror"]

    wait_for(lambda: listed() == [("connect", 0)], what="the connector among the groups")


def test_what_a_transactional_service_aborts_is_in_no_window(tapped: Tapped) -> None:
    name = tapped.name
    topic, copied = f"{name}.orders", f"{name}.copied"
    tapped.create_topics(1, topic, copied)
    tapped.apply(COPIED)
    produce(tapped.bootstrap, topic, orders(3_000), tapped.directory / "producer.log")
    arguments = ["--broker-list", tapped.bootstrap, "--input-topic", topic, "--input-partition", "0"]
    arguments += ["--output-topic", copied, "--consumer-group", f"{name}.copier", "--transactional-id", name]
    arguments += ["--transaction-size", "40", "--enable-random-aborts"]
    command = java_command("org.apache.kafka.tools.TransactionalMessageCopier", arguments)
    with (tapped.directory / "copier.log").open("ab") as log:
        with subprocess.Popen(command, stdout=log, stderr=log) as copier:
            wait_for(lambda: len(tapped.records(copied)) > 400, timeout_s=60, what="copied orders")
            copier.kill()
        subprocess.run(command, stdout=log, stderr=log, check=True)
    sent, passed = by_window(tapped.records(topic)), by_window(tapped.records(copied))
    with_aborted = by_window(tapped.records(copied, isolation="read_uncommitted"))
    assert passed == sent
    assert with_aborted.keys() == passed.keys()
    for start, measured in tapped.settled(sent).items():
        assert with_aborted[start].total() > passed[start].total()
        assert measured.ids["messages"] == measured.ids["delivered"] == hashes(sent[start])
        assert measured.window.verdict == "ok"
        assert beacons(measured) == dict.fromkeys(
            ("shop.in", "shop.out", "copier.in", "copier.out"), (counts(sent[start]))
        )
