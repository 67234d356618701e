"""`lagloss tap discover` on 1,300 topics, one of 10,000 partitions, beside a bare read of the same samples."""

from __future__ import annotations

import json
import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, OffsetSpec

from benchmarks.database import make_topics
from benchmarks.figures import Figure
from benchmarks.timing import Stopwatch
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from taps.discovery import propose
from taps.discovery.survey import TopicSurvey

EMPTY: Final = 1_000
FLOWS: Final = 150
"""Of two topics each, and a group that reads the first."""
RECORDS: Final = 500
"""Of each topic with records."""
PARTITIONS: Final = 10_000
"""Of one topic."""


def run() -> list[Figure]:
    """Print and return the time and the memory of a discovery."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder) / "kafka", heap_mb=1_024) as kafka:
        bootstrap = kafka.bootstrap
        _fill(bootstrap)
        base_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
        bare, discovery, comparing = Stopwatch(), Stopwatch(), Stopwatch()
        with bare:
            records = _read_bare(bootstrap)
        now_ms = time.time_ns() // 1_000_000
        survey = TopicSurvey(bootstrap, None, now_ms - 3_600_000, now_ms)
        with discovery:
            survey.run(survey.topics())
        with comparing:
            proposal = propose(survey.guesses, {f"reader-{number}": [f"in-{number}"] for number in range(FLOWS)})
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
        flows = sum(len(flow) > 1 for flow in proposal.flows)
        print(f"{records:,} records; {len(survey.guesses)} topics sampled, {flows} flows, peak memory {peak_mb:.0f} MB")
        assert flows == FLOWS
        name = f"discovery of {EMPTY + 2 * FLOWS + 1:,} topics"
        return [
            Figure(f"{name}: seconds", discovery.wall_s, "s", None, bare.wall_s, "listing and reading them bare"),
            Figure(f"{name}: CPU", discovery.own_s, "s", None, bare.own_s, "listing and reading them bare"),
            Figure(f"{name}: comparing", comparing.own_s, "s"),
            Figure(f"{name}: memory", peak_mb, "MB", 1_024, base_mb, "before"),
        ]


def _fill(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = [f"empty-{number}" for number in range(EMPTY)]
    names += [f"{stem}-{number}" for number in range(FLOWS) for stem in ("in", "out")]
    make_topics(bootstrap, names, 1)
    make_topics(bootstrap, ["wide"], PARTITIONS // 2)
    admin.create_partitions([NewPartitions("wide", PARTITIONS)], request_timeout=300)["wide"].result(300)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    at_ms = time.time_ns() // 1_000_000 - 60_000
    for flow in range(FLOWS):
        for number in range(RECORDS):
            document = json.dumps({"id": f"{flow}-{number:06}", "at": at_ms + number, "note": "x" * 200})
            producer.produce(f"in-{flow}", document, timestamp=at_ms + number + 10)
            producer.produce(f"out-{flow}", document, timestamp=at_ms + number + 500)
        assert producer.flush(120) == 0
    for partition in range(0, PARTITIONS, 100):
        producer.produce("wide", json.dumps({"id": f"wide-{partition}"}), partition=partition)
    assert producer.flush(120) == 0


def _read_bare(bootstrap: str) -> int:
    """List all topics and their offsets, and read every record; return how many."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = admin.list_topics(timeout=30).topics
    places = [TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions]
    held: dict[tuple[str, int], int] = {}
    for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):
        futures: Mapping[TopicPartition, Any] = admin.list_offsets(
            dict.fromkeys(places, spec), isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=60
        )
        held |= {(place.topic, place.partition): future.result(60).offset for place, future in futures.items()}
    waiting = {key for key, end in held.items() if end and not key[0].startswith("__")}
    config = {"group.id": "bare", "auto.offset.reset": "earliest", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, "enable.auto.commit": False, **config})
    consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in waiting])
    records = 0
    while waiting:
        for message in consumer.consume(1_000, 1.0):
            if message.error() is None:
                records += 1
            else:
                waiting.discard((message.topic() or "", message.partition() or 0))
    consumer.close()
    return records
