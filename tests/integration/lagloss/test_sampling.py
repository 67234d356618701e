"""Sampled pipelines and private ids, from the definition by way of real emitters to what is told of a window."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from aggregator.maintenance.sampling_publisher import SampleAnnouncer
from aggregator.maintenance.tasks import MaintenanceLoop
from lagloss import Emitter
from lagloss.broker.sampling_topic import SampleTable
from lagloss.broker.topics import BEACONS, REPORTS, create_topics
from lagloss.sdk.outlets.kafka import KafkaOutlet
from lagloss.wire.format import SAMPLE_ALL, hash_id
from lagloss_server.model.definition import parse_definition
from lagloss_server.queries.difference import difference
from lagloss_server.queries.matrix import matrix
from lagloss_server.queries.window_blocks import read_window
from lagloss_server.store.store import Store
from tests.support.closers import Driven, driven, wait_until
from tests.support.window_documents import documents

NODES = ("src", "snk")
IDS = [f"order-{at}" for at in range(6_000)]
LOST = set(IDS[::20])
TENTH, HALF = int(0.1 * SAMPLE_ALL), SAMPLE_ALL // 2


def in_sample(ids: Iterable[str], sample: int) -> list[str]:
    return [name for name in ids if hash_id(name) % SAMPLE_ALL < sample]


@dataclass
class Shop:
    """A pipeline src -> snk, its emitters, and an aggregator's parts."""

    bootstrap: str
    parts: Driven
    upkeep: MaintenanceLoop
    name: str
    start_s: int

    def apply(self, sample: float, at_ms: int | None = None) -> None:
        """A new version of the definition; the emitters are told."""
        text = f"""
            apiVersion: lagloss/v1
            kind: Pipeline
            metadata: {{name: {self.name}}}
            spec: {{sample: {sample}, nodes: [{{name: src, to: [snk]}}, {{name: snk}}]}}
        """
        self.parts.store.apply(parse_definition(text), at_ms)
        self.parts.watch.refresh()
        with closing(SampleAnnouncer(self.bootstrap)) as announcer:
            self.upkeep.announce_samples(announcer)

    def emitters(self, **options: Any) -> dict[str, Emitter]:
        return {node: Emitter(self.name, node, self.bootstrap, first=node == "src", **options) for node in NODES}

    def send(self, emitters: Mapping[str, Emitter], ids: list[str], window: int = 0) -> None:
        """These come in and go out at the source; those that are not lost do so at the sink, too."""
        for node, there in (("src", ids), ("snk", [name for name in ids if name not in LOST])):
            for at, name in enumerate(there):
                event_ms = (self.start_s + 60 * window) * 1000 + at
                emitters[node].received(name, event_ms, observed_at=event_ms + 5)
                emitters[node].sent(name, event_ms, observed_at=event_ms + 10)
            assert emitters[node].flush(30)

    def close(self, emitters: Mapping[str, Emitter]) -> dict[str, Any]:
        """The next minute has come to the sink, which so has overtaken what it did not get."""
        self.send(emitters, IDS[:100], window=1)
        for emitter in emitters.values():
            assert emitter.close(10)
        self.parts.follow_all()
        self.parts.closer.close_windows([(self.name, self.start_s)], int(time.time() * 1000))
        return self.window()

    def window(self) -> dict[str, Any]:
        (found,) = documents(self.parts.store.windows(self.name, self.start_s, self.start_s + 60))
        return found


@pytest.fixture(scope="module")
def parts(spark: SparkSession, kafka_bootstrap: str, module_database_url: str) -> Iterator[Driven]:
    create_topics(kafka_bootstrap)
    with closing(Store(module_database_url)) as store, driven(spark, kafka_bootstrap, store, BEACONS, REPORTS) as found:
        yield found


@pytest.fixture
def shop(parts: Driven, kafka_bootstrap: str) -> Shop:
    name = f"shop-{uuid.uuid4().hex[:8]}"
    return Shop(kafka_bootstrap, parts, parts.upkeep(), name, int(time.time()) // 60 * 60 - 300)


def test_a_tenth_of_the_ids_tells_of_all_messages_and_its_interval_holds_the_loss(shop: Shop) -> None:
    shop.apply(0.1)
    emitters = shop.emitters()
    shop.send(emitters, IDS)
    stats = emitters["src"].stats()
    seen, gone = in_sample(IDS, TENTH), in_sample(LOST, TENTH)
    assert (stats.sent, stats.sampled_out, stats.dropped) == (2 * len(seen), 2 * (len(IDS) - len(seen)), 0)
    shop.parts.follow_all()
    live = shop.window()
    assert (live["state"], live["reasons"], live["sample"]) == ("open", ["sample"], 0.1)
    assert live["messages"] == pytest.approx(10 * len(seen), abs=1) == pytest.approx(len(IDS), rel=0.1)

    window = shop.close(emitters)
    assert window["messages"] == live["messages"]
    assert window["lost"]["min"] <= len(LOST) <= window["lost"]["max"]
    assert window["lost"]["max"] < 2 * len(LOST)
    assert (window["verdict"], window["reasons"], window["proof"]) == ("loss", ["sample"], "beacons")
    found = difference(shop.parts.store, shop.parts.beacons, shop.name, shop.start_s, "src.out", "snk.in")
    assert (found.message_ids, found.document()["sample"]) == (tuple(sorted(gone)), 0.1)
    blocks = read_window(shop.parts.store, shop.parts.beacons, shop.name, shop.start_s)
    rows = matrix(blocks, only="missing")
    assert ({row.message_id for row in rows.messages}, rows.count) == (set(gone), len(gone))
    assert rows.document()["sample"] == 0.1


def test_a_switch_within_a_window_is_judged_at_the_lowest_and_leaves_every_account_complete(shop: Shop) -> None:
    class StaysAtHalf(KafkaOutlet):
        def sample(self, pipeline: str) -> int:
            return HALF

    shop.apply(1, 0)
    emitters = shop.emitters()
    emitters["snk"].close()
    emitters["snk"] = Emitter(shop.name, "snk", outlet=lambda: StaysAtHalf(shop.bootstrap))
    shop.send(emitters, IDS[:3_000])
    assert emitters["src"].stats().sampled_out == 0
    shop.apply(0.1, shop.start_s * 1000 + 30_000)
    probe = 0

    def is_told() -> bool:
        nonlocal probe
        probe += 1
        emitters["src"].received(f"probe-{probe}", int(time.time() * 1000))
        emitters["src"].flush()
        return emitters["src"].stats().sampled_out > 0

    wait_until(is_told, what="for the emitter to hear of it")
    shop.send(emitters, IDS[3_000:])
    window = shop.close(emitters)
    assert window["messages"] == pytest.approx(10 * len(in_sample(IDS, TENTH)), abs=1)
    assert window["lost"]["min"] <= len(LOST) <= window["lost"]["max"]
    assert (window["reasons"], window["proof"]) == (["sample", "version"], "beacons")
    assert all(node["complete"] for node in window["nodes"])


def test_private_ids_are_hashes_wherever_names_would_be_shown(shop: Shop) -> None:
    shop.apply(1)
    emitters = shop.emitters(ids="hash")
    shop.send(emitters, IDS[:200])
    window = shop.close(emitters)
    assert window["lost"] == {"min": 10, "max": 10}
    hashes = sorted(f"{hash_id(name):016x}" for name in IDS[:200:20])
    store = shop.parts.store
    missing = store.missing(shop.name, shop.start_s)
    assert sorted(f"{found.id_hash:016x}" for found in missing) == hashes
    assert {found.message_id for found in missing} == {None}
    found = difference(store, shop.parts.beacons, shop.name, shop.start_s, "src.in", "snk.in")
    assert found.message_ids == tuple(hashes)
    rows = matrix(read_window(store, shop.parts.beacons, shop.name, shop.start_s), only="missing")
    assert sorted(row.message_id for row in rows.messages) == hashes
    assert all(row.event_time_ms is not None for row in rows.messages)


@pytest.fixture
def topic(kafka_bootstrap: str) -> Iterator[str]:
    name = f"lagloss.sampling.{uuid.uuid4().hex[:8]}"
    create_topics(kafka_bootstrap, sampling=name)
    yield name
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    admin.delete_topics([name])[name].result(20)


def test_the_topic_says_what_definitions_say_also_after_it_was_made_anew(kafka_bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    with (
        closing(SampleAnnouncer(kafka_bootstrap, topic)) as announcer,
        closing(SampleTable(kafka_bootstrap, topic=topic)) as emitters,
    ):
        assert announcer.reconcile({"a": TENTH, "b": HALF, "c": SAMPLE_ALL}) == 2
        assert announcer.reconcile({"a": TENTH, "b": HALF, "c": SAMPLE_ALL}) == 0
        assert (emitters.current("a"), emitters.current("b"), emitters.current("c")) == (TENTH, HALF, SAMPLE_ALL)
        assert announcer.reconcile({"a": HALF}) == 2
        wait_until(lambda: (emitters.current("a"), emitters.current("b")) == (HALF, SAMPLE_ALL))
        admin.delete_topics([topic])[topic].result(20)
        wait_until(lambda: topic not in admin.list_topics(timeout=10).topics)
        assert announcer.reconcile({"a": HALF}) == 0  # says so, and tries again
        assert emitters.current("a") == HALF
        wait_until(lambda: _create(kafka_bootstrap, topic), what="for the broker to let the name go")
        wait_until(lambda: announcer.reconcile({"a": TENTH, "d": HALF}) == 2, what="for the new topic")
        assert announcer.reconcile({"a": TENTH, "d": HALF}) == 0
        with closing(SampleTable(kafka_bootstrap, topic=topic)) as fresh:
            assert (fresh.current("a"), fresh.current("d")) == (TENTH, HALF)


def _create(bootstrap: str, topic: str) -> bool:
    create_topics(bootstrap, sampling=topic)
    return topic in AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=10).topics


def test_an_emitter_reads_the_topic_again_from_time_to_time(
    kafka_bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lagloss.broker.sampling_topic.REREAD_S", 0.5)
    with (
        closing(SampleAnnouncer(kafka_bootstrap, topic)) as announcer,
        closing(SampleTable(kafka_bootstrap, {"fetch.wait.max.ms": 100}, topic)) as table,
    ):
        announcer.reconcile({"a": TENTH})
        assert table.current("a") == TENTH
        announcer.reconcile({"a": HALF})
        wait_until(lambda: table.current("a") == HALF)


def test_what_makes_no_sense_is_passed_over(kafka_bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    for value in (b'{"sample": 7}', b"{", b"[]", b'{"sample": 0}', b'{"sample": true}', b'{"sample": 1e9}', b"\xff"):
        producer.produce(topic, value, b"a", partition=0)
    producer.produce(topic, b'{"sample": 7}', b"\xff", partition=0)
    assert producer.flush(10) == 0
    with closing(SampleTable(kafka_bootstrap, topic=topic)) as table:
        assert dict(table.samples()) == {"a": 7}


@pytest.mark.parametrize("bootstrap", [lambda known: known, lambda known: "127.0.0.1:1"], ids=["no topic", "no broker"])
def test_who_cannot_ask_takes_all_and_waits_a_second_at_most(
    kafka_bootstrap: str, bootstrap: Callable[[str], str]
) -> None:
    with closing(SampleTable(bootstrap(kafka_bootstrap), topic=f"nothing.{uuid.uuid4().hex}")) as table:
        began = time.monotonic()
        assert [table.current("a") for _ in range(1_000)] == [SAMPLE_ALL] * 1_000
        assert time.monotonic() - began < 2.5
