"""A survey of more topics than one reader could hold, some of which go away, or have nothing that could be read."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lagloss_server.base.yaml_files import parse_documents
from lagloss_server.model.definition import Definition
from taps.discovery.survey import TopicSurvey

EMPTY = 60
ODD = ["no", "2026-11-26", "1e3", "0x1f", "null"]
"""Names of topics that YAML reads as something else."""


@dataclass(frozen=True)
class Market:
    """Flows of two topics each, beside many empty ones, one of many partitions, and some that cannot be read."""

    bootstrap: str
    word: str

    def name(self, stem: str) -> str:
        return f"{stem}-{self.word}"

    def survey(self) -> TopicSurvey:
        now_ms = time.time_ns() // 1_000_000
        return TopicSurvey(self.bootstrap, None, now_ms - 120_000, now_ms + 1_000)


@pytest.fixture(scope="module")
def market(kafka_bootstrap: str) -> Iterator[Market]:
    found = Market(kafka_bootstrap, uuid.uuid4().hex[:6])
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    names = {
        **{found.name(f"empty-{number}"): 1 for number in range(EMPTY)},
        **{found.name(stem): 2 for stem in ("orders", "enriched", "zipped", "logs")},
        **dict.fromkeys(ODD, 1),
        found.name("wide"): 300,
    }
    made = admin.create_topics([NewTopic(name, partitions, 1) for name, partitions in names.items()])
    for future in made.values():
        future.result(60)
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    now_ms = time.time_ns() // 1_000_000
    for number in range(60):
        order = {"order_id": f"o-{found.word}-{number:05}", "at": now_ms - 10_000 + number}
        producer.produce(found.name("orders"), json.dumps(order), timestamp=now_ms - 9_000 + number)
        producer.produce(found.name("enriched"), json.dumps(order), timestamp=now_ms - 8_000 + number)
        producer.produce(found.name("zipped"), gzip.compress(json.dumps(order).encode() * 50))
        producer.produce(found.name("logs"), b'{"level": "info"}')
        producer.produce(found.name("wide"), json.dumps({"id": f"w-{number}"}), partition=number * 5)
        for name in ODD:
            producer.produce(name, json.dumps({"id": f"{name}-{number}", "at": now_ms + number}))
    assert producer.flush(60) == 0
    for group, topic in [
        (found.name("enrich"), found.name("orders")), (found.name("archive"), found.name("logs")),
        (found.name("idle"), found.name("empty-0")), *((f"~{name}", name) for name in ODD),
    ]:  # fmt: skip
        consumer = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": group, "log_level": 0})
        consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        consumer.close()
    yield found
    admin.delete_topics(list(names))


def test_any_number_of_topics_is_looked_at_and_each_has_a_flow_or_a_reason(market: Market) -> None:
    words = ["discover", "--name", "no"]
    env = {**os.environ, "LAGLOSS_KAFKA_BOOTSTRAP": market.bootstrap}
    command = [sys.executable, "-m", "lagloss_server.cli.main", "tap", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    definitions = [document.read(Definition) for document in parse_documents(done.stdout, "the proposal")]
    flows = [{tap.topic for tap in definition.taps} for definition in definitions]
    assert {market.name("orders"), market.name("enriched")} in flows
    assert {market.name("logs")} in flows, "by position"
    assert {name for name in ODD if {name} in flows} == set(ODD)
    groups = {tap.group for definition in definitions for tap in definition.taps} - {None}
    assert {market.name("enrich"), market.name("archive"), *(f"~{name}" for name in ODD)} <= groups
    lines = done.stderr.splitlines()
    assert any("topics connected" in line for line in lines)
    assert any(" empty: " in line and int(line.split()[0]) >= EMPTY for line in lines), done.stderr
    assert any("compressed values: " in line and market.name("zipped") in line for line in lines), done.stderr
    assert any(" no group: " in line for line in lines), done.stderr
    assert not any("\x1b" in line or "\r" in line for line in lines), "no progress bar where no terminal is"


def test_a_topic_that_is_deleted_between_listing_and_sampling_costs_no_other(market: Market) -> None:
    admin = AdminClient({"bootstrap.servers": market.bootstrap, "log_level": 0})
    name = market.name("short-lived")
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    producer = Producer({"bootstrap.servers": market.bootstrap, "log_level": 0})
    producer.produce(name, b'{"id": 1}')
    assert producer.flush(30) == 0
    survey = market.survey()
    topics = survey.topics()
    assert name in topics
    held = survey._held([name, market.name("orders")])
    admin.delete_topics([name])[name].result(30)
    chosen = survey._chosen(held, 100)
    survey._sample(chosen)
    assert [guess.topic for guess in survey.guesses] == [market.name("orders")]
    assert survey.reasons[name] in ("does not exist", "no response")
    again = market.survey()
    again.run([name, market.name("orders")])
    assert again.reasons == {name: "does not exist"}
    assert name not in admin.list_topics(timeout=10).topics, "nor was it created by the question"


def test_a_topic_of_many_partitions_is_sampled_by_some(market: Market) -> None:
    survey = market.survey()
    done: list[int] = []
    survey.run([market.name("wide"), market.name("empty-1")], done.append)
    (guess,) = survey.guesses
    assert guess.candidates == ["$.id"]
    assert len(guess.ids["$.id"][0]) == 60
    assert survey.reasons == {market.name("empty-1"): "empty"}
    assert sum(done) == 2
