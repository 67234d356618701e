"""`lagloss tap try` and `lagloss tap discover` on a real broker, used rightly and wrongly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lagloss_server.base.instances import ENDPOINTS_FILE
from lagloss_server.model.definition import parse_definition

RECORDS = 300


@dataclass(frozen=True)
class Shop:
    """Topics `orders` and `enriched`, and the groups that read them, by names of the test's own."""

    bootstrap: str
    orders: str
    enriched: str
    empty: str
    enrich: str
    sink: str

    def tap(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "LAGLOSS_KAFKA_BOOTSTRAP": self.bootstrap, **variables}
        command = [sys.executable, "-m", "lagloss_server.cli.main", "tap", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def shop(kafka_bootstrap: str) -> Iterator[Shop]:
    word = uuid.uuid4().hex[:6]
    names = (f"orders-{word}", f"enriched-{word}", f"empty-{word}", f"enrich-{word}", f"sink-{word}")
    found = Shop(kafka_bootstrap, *names)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    for made in admin.create_topics([NewTopic(name, 2, 1) for name in names[:3]]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    now_ms = time.time_ns() // 1_000_000
    for number in range(RECORDS):
        order = {"order_id": f"o-{number:05}", "created_at": now_ms - 10_000 + number, "kind": "order"}
        producer.produce(found.orders, json.dumps(order), timestamp=now_ms - 9_000 + number)
        if number % 100:
            headers = [("order-id", order["order_id"].encode())]
            document = json.dumps({"created_at": order["created_at"]})
            producer.produce(found.enriched, document, headers=headers, timestamp=now_ms - 8_000 + number)
    producer.produce(found.orders, "{broken", timestamp=now_ms)
    assert producer.flush(30) == 0
    for group, topic in ((found.enrich, found.orders), (found.sink, found.enriched)):
        consumer = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": group, "log_level": 0})
        consumer.commit(offsets=[TopicPartition(topic, 0, 10), TopicPartition(topic, 1, 10)], asynchronous=False)
        consumer.close()
    yield found
    admin.delete_topics([found.orders, found.enriched, found.empty])


def test_discover_proposes_what_apply_takes(shop: Shop) -> None:
    done = shop.tap("discover", "--group", shop.enrich, "--group", shop.sink, "--name", "orders")
    assert done.returncode == 0, done.stderr
    definition = parse_definition(done.stdout)
    assert {(tap.topic, tap.group, tap.places) for tap in definition.taps} == {
        (shop.orders, None, ("in", "out")),
        (shop.orders, shop.enrich, ("in",)),
        (shop.enriched, None, ("out",)),
        (shop.enriched, shop.sink, ("in", "out")),
    }
    identities = {tap.topic: (tap.extraction.id.written, tap.extraction.event_time.written) for tap in definition.taps}
    assert identities == {
        shop.orders: ("$.order_id", "$.created_at"),
        shop.enriched: ("header:order-id", "$.created_at"),
    }


@pytest.mark.parametrize("name", ["123", "no", "0x1f", "2026-11-26"])
def test_names_that_yaml_reads_as_something_else_are_printed_as_names(shop: Shop, name: str) -> None:
    groups = ["True", "0x1f", "12:30:45", "~", "a: b #c", "- x", "süß ", "it's\u2028so"]
    for group in groups:
        consumer = Consumer({"bootstrap.servers": shop.bootstrap, "group.id": group, "log_level": 0})
        consumer.commit(offsets=[TopicPartition(shop.orders, 0, 10)], asynchronous=False)
        consumer.close()
    chosen = [word for group in groups for word in ("--group", group)]
    done = shop.tap("discover", *chosen, "--name", name, LC_ALL="C", PYTHONIOENCODING="latin-1")
    assert done.returncode == 0, done.stderr
    definition = parse_definition(done.stdout)
    assert definition.name == name
    assert {node.input for node in definition.spec.nodes} - {None} == set(groups)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--name", "a b"),
        ("--name", ""),
        ("--name", "{x: y}"),
        ("--lookback", "soon"),
        ("--topic", "a b"),
        ("--cluster", "?"),
    ],
)
def test_what_no_definition_can_have_is_refused_before_kafka_is_asked(shop: Shop, option: str, value: str) -> None:
    done = shop.tap("discover", option, value, LAGLOSS_KAFKA_BOOTSTRAP="127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{option}: expected a " in done.stderr


def test_the_data_directory_of_a_running_service_says_where_kafka_is(shop: Shop, tmp_path: Path) -> None:
    for name, bootstrap in (("one", shop.bootstrap), ("other", "127.0.0.1:1")):
        (tmp_path / name).mkdir()
        endpoints = {"kafka": bootstrap, "pid": str(os.getpid())}
        (tmp_path / name / ENDPOINTS_FILE).write_text(json.dumps(endpoints))
    for words in (["try", shop.orders], ["discover", "--group", shop.enrich]):
        found = shop.tap(*words, "--data-dir", str(tmp_path / "one"), LAGLOSS_KAFKA_BOOTSTRAP="")
        assert found.returncode == 0, found.stderr
    away = shop.tap("try", shop.orders, "--data-dir", str(tmp_path / "other"), LAGLOSS_KAFKA_BOOTSTRAP="")
    assert (away.returncode, away.stdout) == (3, "")
    assert "Cannot reach Kafka at 127.0.0.1:1" in away.stderr


def test_try_shows_what_can_be_read_and_what_cannot(shop: Shop) -> None:
    done = shop.tap("try", shop.orders, "--id", "$.order_id", "--count", "300", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["records"], shown["readable"], shown["unreadable"]) == (RECORDS + 1, RECORDS, {"not_json": 1})
    assert shown["event_time"] == "$.created_at"
    assert shown["sample"][-1]["reason"] == "not_json"
    assert shown["sample"][-2]["id"] == f"o-{RECORDS - 1:05}"
    text = shop.tap("try", shop.orders, "--where", '$.kind == "refund"').stdout
    assert f"{RECORDS} are excluded by the condition" in text
    assert "--id" in text  # guesses, since none was given


def test_tombstones_are_left_out_and_ids_in_quotes_are_found_as_others(shop: Shop) -> None:
    word = uuid.uuid4().hex[:6]
    raw, priced, group = f"raw-{word}", f"priced-{word}", f"price-{word}"
    admin = AdminClient({"bootstrap.servers": shop.bootstrap, "log_level": 0})
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in (raw, priced)]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": shop.bootstrap, "log_level": 0})
    now_ms = time.time_ns() // 1_000_000
    for number in range(100):
        order_id, at_ms = f"q-{number:05}", now_ms - 10_000 + number
        document = json.dumps({"id": order_id, "at": at_ms, "op": "c", "price": float("nan")})
        producer.produce(raw, b"\xef\xbb\xbf" + document.encode(), order_id, timestamp=at_ms + 1_000)
        headers = [("order-id", json.dumps(order_id).encode())]
        producer.produce(priced, json.dumps({"at": at_ms}), headers=headers, timestamp=at_ms + 2_000)
    producer.produce(raw, json.dumps({"id": "q-00000", "at": now_ms, "op": "d"}), "q-00000", timestamp=now_ms)
    producer.produce(raw, None, "q-00000", timestamp=now_ms)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": shop.bootstrap, "group.id": group, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(raw, 0, 10)], asynchronous=False)
    consumer.close()
    try:
        done = shop.tap("discover", "--group", group, "--topic", priced, "--name", "orders")
        identities = {tap.topic: tap.extraction.id.written for tap in parse_definition(done.stdout).taps}
        tried = [
            json.loads(shop.tap("try", raw, "--id", "$.id", "--event-time", "$.at", "--where", where, "--json").stdout)
            for where in ('$ != null and $.op != "d"', "exists $")
        ]
    finally:
        admin.delete_topics([raw, priced])
    assert identities == {raw: "$.id", priced: "header:order-id as json"}, done.stdout
    assert [(shown["readable"], shown["left_out"], shown["unreadable"]) for shown in tried] == [
        (100, 2, {}),
        (101, 1, {}),
    ]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["try", "nowhere-at-all"], 3, "does not exist"),
        (["try", "ORDERS", "--id", "order_id"], 2, "expected a path such as"),
        (["try", "ORDERS", "--format", "avro", "--schema", "none.avsc"], 2, "expected a readable schema"),
        (["try", "EMPTY"], 4, "has no records"),
        (["try", "ORDERS", "--cluster", "elsewhere"], 2, "LAGLOSS_KAFKA_CLUSTER_ELSEWHERE_BOOTSTRAP"),
        (["discover", "--group", "nobody-reads"], 2, "found no offsets of nobody-reads"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(shop: Shop, words: list[str], code: int, said: str) -> None:
    names = {"ORDERS": shop.orders, "EMPTY": shop.empty}
    done = shop.tap(*[names.get(word, word) for word in words])
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
