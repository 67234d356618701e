"""What a collector with a spool has answered 202 arrives, though the broker was away and the collector was killed."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import httpx2
import psutil
import pytest
from confluent_kafka import KafkaException

from lagloss.broker.topics import BEACONS, REPORTS, create_topics
from lagloss.wire.format import decode_block, decode_report, hash_id
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from tests.integration.conftest import serving
from tests.support.kafka_log import read_all, wait_for

PIPELINE = "spooled-by-collector"


def post(client: httpx2.Client, message_id: str) -> int:
    beacon = {"checkpoint": "in", "message_id": message_id, "event_time": time.time_ns() // 1_000_000}
    return client.post("/v1/beacons", json={"pipeline": PIPELINE, "node": "mid", "beacons": [beacon]}).status_code


def in_log(bootstrap: str) -> Counter[int]:
    decoded = [
        decode_block(value) for _, _, key, value in read_all(bootstrap, BEACONS) if key.startswith(b"spooled-by")
    ]
    blocks = {(block.emitter, block.seq): block for block in decoded}.values()
    return Counter(int(h) for block in blocks for h in block.id_hash)


def has_arrived(bootstrap: str, expected: Counter[int]) -> bool:
    try:
        return in_log(bootstrap) == expected
    except KafkaException:  # a broker that was stopped for long leads nothing at first
        return False


@pytest.mark.slow
def test_what_was_answered_202_arrives_once(kafka: EmbeddedKafka, kafka_bootstrap: str, tmp_path: Path) -> None:
    create_topics(kafka_bootstrap)
    broker = psutil.Process(kafka.processes[0].pid)
    victims = [broker, *broker.children(recursive=True)]
    settings = {"LAGLOSS_KAFKA_BOOTSTRAP": kafka_bootstrap, "LAGLOSS_SPOOL_DIR": str(tmp_path)}  # and no database
    with serving(**settings) as (_, client):
        assert post(client, "before") == 202
        wait_for(lambda: in_log(kafka_bootstrap).total() == 1, what="the first")
        for victim in victims:
            victim.suspend()
        try:
            assert [post(client, f"m{number}") for number in range(3)] == [202, 202, 202]
        except BaseException:
            for victim in victims:
                victim.resume()
            raise
    try:
        with serving(**settings):  # its successor hears nothing of this node from anybody
            for victim in victims:
                victim.resume()
            expected = Counter(hash_id(message_id) for message_id in ("before", "m0", "m1", "m2"))
            wait_for(lambda: has_arrived(kafka_bootstrap, expected), 60, "what was promised")
            wait_for(lambda: not list(tmp_path.iterdir()), 90, "the end of the window and a settlement")
    finally:
        for victim in victims:
            victim.resume()
    reports = [decode_report(value) for *_, value in read_all(kafka_bootstrap, REPORTS)]
    last = [report for report in reports if report.pipeline == PIPELINE][-1]
    assert (last.closed, last.final_through) == (True, 0)
