"""A node that observes, on a real broker: a host that commits without processing, is killed, aborts and goes back, and
what the rules of arithmetic make of its reports meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lagloss.broker.topics import BEACONS, REPORTS, create_topics
from lagloss.kafka import KafkaNode, NodeConsumer
from lagloss.wire.format import EmitterReport, decode_block, decode_report, hash_id
from lagloss_server.judging.arithmetic import horizon
from lagloss_server.judging.evidence import EmitterState, Evidence, LaneState
from tests.support.kafka_log import read_all, wait_for
from tests.unit.lagloss.kafka.test_observed_false_loss import GRAPH, LINK, NODE, is_behind

ROOT = Path(__file__).parents[4]
SILENT_MS = 120_000
MESSAGES, READ_BY_THE_FIRST = 30, 15
HOST = """
import sys, time
from lagloss.kafka import KafkaNode

bootstrap, pipeline, count = sys.argv[1:]
node = KafkaNode(pipeline, "mid", bootstrap, observe=True)
consumer = node.consumer({
    "bootstrap.servers": bootstrap, "group.id": pipeline, "auto.offset.reset": "earliest",
    "auto.commit.interval.ms": 100, "session.timeout.ms": 6_000,
})
consumer.subscribe([f"{pipeline}-mid"])
batch = []
while len(batch) < int(count):
    message = consumer.poll(0.1)
    if message is not None and message.error() is None:
        batch.append(message)
while True:
    time.sleep(1)  # the batch is never written; librdkafka commits it all the same
"""


@dataclass
class Log:
    """What the server knows of a pipeline: when each message was last seen, by checkpoint, and the newest reports."""

    seen: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    reports: dict[bytes, EmitterReport] = field(default_factory=dict)
    shared: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    own: dict[tuple[str, bytes], int] = field(default_factory=dict)


def read_log(bootstrap: str, pipeline: str, event_ms: int) -> Log:
    log = Log()
    for *_, key, value in read_all(bootstrap, BEACONS):
        if key.startswith(f"{pipeline}/".encode()):
            block = decode_block(value)
            for id_hash, lag_ms in zip(block.id_hash.tolist(), block.lag_ms.tolist(), strict=True):
                at_ms = max(event_ms + lag_ms, log.seen[id_hash].get(block.checkpoint, 0))
                log.seen[id_hash][block.checkpoint] = at_ms
    for *_, value in read_all(bootstrap, REPORTS):
        report = decode_report(value)
        if report.pipeline == pipeline and report.node == "mid":
            log.reports[report.emitter] = report
            for lane in report.progress:
                if lane.lane:
                    log.shared[lane.lane] = lane.until, report.emitter
                else:
                    log.own[lane.checkpoint, report.emitter] = lane.until
    return log


def lost_for_certain(log: Log, living: bytes | None) -> set[int]:
    """Messages that the rules would call lost, two minutes from now, if nothing but `living` reports any more."""
    now_ms = time.time_ns() // 1_000_000 + SILENT_MS
    states = []
    for emitter, report in log.reports.items():
        appended_ms = now_ms if emitter == living else report.sent_at
        at_s = report.sent_at // 1_000
        states.append(
            EmitterState(
                emitter, "mid", report.started_at, report.sent_at, report.closed, at_s, appended_ms, at_s,
                resumes=report.resumes, unfinished=report.unfinished,
            )
        )  # fmt: skip
    lanes = [LaneState(checkpoint, until, emitter) for (checkpoint, emitter), until in log.own.items()]
    lanes += [LaneState("mid.in", until, None, name, by) for name, (until, by) in log.shared.items()]
    cuts = horizon(GRAPH, Evidence(0, now_ms, states, (), lanes)).overtaken
    return {
        id_hash
        for id_hash, seen in log.seen.items()
        if "mid.out" not in seen and is_behind(cuts[NODE if "mid.in" in seen else LINK], max(seen.values()))
    }


@pytest.fixture
def pipeline(kafka_bootstrap: str) -> str:
    name = f"observe-{uuid.uuid4().hex[:8]}"
    create_topics(kafka_bootstrap)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    for made in admin.create_topics([NewTopic(f"{name}-{node}", 1) for node in ("mid", "snk")]).values():
        made.result(20)
    return name


def polled(consumer: NodeConsumer) -> Message:
    deadline = time.monotonic() + 30
    while (message := consumer.poll(0.2)) is None:
        assert time.monotonic() < deadline, "no message came"
    assert message.error() is None
    return message


def test_no_message_is_lost_for_certain_whose_commit_was_early_aborted_or_rewound(
    kafka_bootstrap: str, pipeline: str
) -> None:
    event_ms, place = time.time_ns() // 1_000_000, TopicPartition(f"{pipeline}-mid", 0)
    with KafkaNode(pipeline, "src", kafka_bootstrap, first=True) as source:
        producer = source.producer({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
        for number in range(MESSAGES):
            producer.produce(place.topic, b"", message_id=f"m-{number}", event_time_ms=event_ms)
        gone = "never-sent"  # lost on its way into the topic
        source.emitter.received(gone, event_ms)
        source.emitter.sent(gone, event_ms)

    def log() -> Log:
        return read_log(kafka_bootstrap, pipeline, event_ms)

    def received() -> int:
        return sum("mid.in" in seen for seen in log().seen.values())

    words = [sys.executable, "-c", HOST, kafka_bootstrap, pipeline, str(READ_BY_THE_FIRST)]
    with subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)}) as host:
        try:
            wait_for(lambda: received() == READ_BY_THE_FIRST, 30, "the first batch")
            (first,) = log().reports
            assert lost_for_certain(log(), first) <= {hash_id(gone)}
        finally:
            host.kill()
    assert lost_for_certain(log(), None) <= {hash_id(gone)}

    with KafkaNode(pipeline, "mid", kafka_bootstrap, observe=True) as node:
        consumer = node.consumer(
            {
                "bootstrap.servers": kafka_bootstrap,
                "group.id": pipeline,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([place.topic])
        first_offset = polled(consumer).offset()
        assert first_offset is not None
        assert first_offset > 0, "expected that the killed host had committed what it never handled"
        producer = node.producer({"bootstrap.servers": kafka_bootstrap, "transactional.id": pipeline, "log_level": 0})
        producer.init_transactions(10)
        producer.begin_transaction()
        for _ in range(first_offset + 1, MESSAGES):
            producer.produce(f"{pipeline}-snk", polled(consumer).value())
        producer.flush(10)
        producer.abort_transaction(10)
        assert node.emitter.flush()
        wait_for(lambda: received() == MESSAGES, 20, "all messages")
        assert not any("mid.out" in seen for seen in log().seen.values())
        assert lost_for_certain(log(), node.emitter.id) <= {hash_id(gone)}

        consumer.seek(TopicPartition(place.topic, 0, 0))
        producer.begin_transaction()
        for _ in range(MESSAGES):
            producer.produce(f"{pipeline}-snk", polled(consumer).value())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 10
        )
        producer.commit_transaction(10)
        consumer.poll(0)
        assert node.emitter.flush()
        seen = log().seen
        assert {id_hash for id_hash, at in seen.items() if "mid.out" not in at} == {hash_id(gone)}
    last = log().reports[node.emitter.id]
    assert (last.closed, last.unfinished) == (True, False)
