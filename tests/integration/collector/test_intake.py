"""Emitters of other languages: their own blocks and reports over HTTP, on a real broker."""

from __future__ import annotations

import struct
import time
import uuid
from dataclasses import replace
from typing import Any

import httpx2
import numpy as np
import pytest

from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.wire.format import (
    BeaconBlock,
    EmitterReport,
    OffsetRange,
    Progress,
    Tally,
    block_key,
    decode_report,
    encode_block,
    encode_report,
    hash_id,
    partition_of,
)
from lagloss.wire.sketch import Sketch
from tests.integration.conftest import Collector
from tests.support.kafka_log import Stored, blocks_of, read_all

BLOCKS = {"Content-Type": "application/vnd.lagloss.blocks"}
REPORT = {"Content-Type": "application/vnd.lagloss.report"}


def window_s() -> int:
    return int(time.time()) // 60 * 60


def ids_of_partition(partition: int, of: int, n: int = 3) -> np.ndarray[Any, np.dtype[np.uint64]]:
    found = [hash_id(f"m-{i}") for i in range(40 * of) if partition_of(hash_id(f"m-{i}"), of) == partition]
    return np.array(found[:n], np.uint64)


def block(pipeline: str, partition: int = 5, of: int = 8, **fields: Any) -> BeaconBlock:
    ids = ids_of_partition(partition, of)
    made = BeaconBlock(
        pipeline, "mid.in", uuid.uuid4().bytes, 1, window_s(), of, ids, np.full(ids.size, 12.5, np.float32)
    )
    return replace(made, **fields)


def body_of(*blocks: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(each)) + each for each in blocks)


def post_blocks(collector: Collector, *blocks: BeaconBlock) -> httpx2.Response:
    return collector.client.post("/v1/blocks", content=body_of(*map(encode_block, blocks)), headers=BLOCKS)


def test_an_emitter_is_told_what_it_must_know(collector: Collector, pipeline: str) -> None:
    answer = collector.client.get(f"/v1/pipelines/{pipeline}/intake")
    assert (answer.status_code, answer.json()) == (200, {"partitions": 8, "sample": 1 << 32})
    assert collector.client.get("/v1/pipelines/nobody/intake").status_code == 404


def test_positions_say_where_the_log_holds_each_block_as_it_was(collector: Collector, pipeline: str) -> None:
    emitter = uuid.uuid4().bytes
    sent = [block(pipeline, partition, emitter=emitter, seq=partition) for partition in (5, 0, 7)]
    answer = post_blocks(collector, *sent)
    assert answer.status_code == 202
    positions = [(at["partition"], at["offset"]) for at in answer.json()["positions"]]
    assert [partition for partition, _ in positions] == [5, 0, 7]
    found = {(each.partition, each.offset): each for each in blocks_of(collector.bootstrap, emitter)}
    assert set(found) == set(positions)
    for at, original in zip(positions, sent, strict=True):
        stored: Stored = found[at]
        assert stored.key == block_key(pipeline, original.window_start)
        assert encode_block(stored.block) == encode_block(original)


def test_blocks_made_for_more_partitions_than_there_are_find_one(collector: Collector, pipeline: str) -> None:
    answer = post_blocks(collector, block(pipeline, partition=29, of=32))
    assert [at["partition"] for at in answer.json()["positions"]] == [29 % 8]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"window_start": 1_000_000_020}, "window_start"),
        ({"window_start": 30}, "window_start"),
        ({"partitions": 0}, "partitions"),
        ({"sample": 0}, "sample"),
        ({"lag_ms": np.array([1, np.nan, 2], np.float32)}, "lag_ms"),
        ({"partitions": 1_000}, "id_hash"),
        ({"pipeline": "another"}, "pipeline"),
        ({"id_hash": np.empty(0, np.uint64), "lag_ms": np.empty(0, np.float32)}, "count"),
        ({"replay": "x" * 501}, "replay"),
    ],
)
def test_a_block_that_nobody_could_use_is_named_and_nothing_taken(
    collector: Collector, pipeline: str, fields: dict[str, Any], field: str | None
) -> None:
    good = block(pipeline)
    answer = post_blocks(collector, good, replace(block(pipeline), **fields))
    assert (answer.status_code, answer.json()["position"], answer.json().get("field")) == (422, 1, field)
    assert blocks_of(collector.bootstrap, good.emitter) == []


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 422), (b"\x05\x00", 400), (struct.pack("<I", 9) + b"short", 400), (body_of(b"no avro"), 422)],
)
def test_what_are_no_blocks_is_refused(collector: Collector, body: bytes, status: int) -> None:
    answer = collector.client.post("/v1/blocks", content=body, headers=BLOCKS)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


def report(pipeline: str) -> EmitterReport:
    tally = Tally(
        "mid.in", window_s(), 3, -5 % (1 << 64), Sketch.from_bins({10_127: 3}), (OffsetRange(5, 41, 42),), "again"
    )
    progress = (Progress("mid.in", "orders/0", 1), Progress("mid.out", "", 2))
    return EmitterReport(pipeline, "mid", uuid.uuid4().bytes, "java:1", 4, 1, 2, True, window_s(), progress, (tally,))


def stored_reports(collector: Collector, emitter: bytes) -> list[EmitterReport]:
    found = read_all(collector.bootstrap, REPORTS)
    return [decode_report(value) for _, _, key, value in found if key == emitter]


def document(said: EmitterReport) -> dict[str, Any]:
    [tally] = said.tallies
    return {
        "pipeline": said.pipeline,
        "node": "mid",
        "emitter": str(uuid.UUID(bytes=said.emitter)),
        "host": said.host,
        "seq": said.seq,
        "started_at": said.started_at,
        "sent_at": said.sent_at,
        "closed": said.closed,
        "final_through": said.final_through,
        "progress": [{"checkpoint": each.checkpoint, "lane": each.lane, "until": each.until} for each in said.progress],
        "tallies": [
            {
                "checkpoint": tally.checkpoint,
                "window_start": tally.window_start,
                "replay": tally.replay,
                "beacons": 3,
                "id_sum": -5,
                "dropped": 0,
                "lag_sketch": [{"key": 10_127, "count": 3}],
                "ranges": [{"partition": 5, "first": 41, "last": 42}],
            }
        ],
    }


def test_a_report_says_the_same_in_avro_and_in_json(collector: Collector, pipeline: str) -> None:
    said = report(pipeline)
    assert collector.client.post("/v1/reports", content=encode_report(said), headers=REPORT).status_code == 202
    assert collector.client.post("/v1/reports", json=document(said)).status_code == 202
    one, other = stored_reports(collector, said.emitter)
    assert encode_report(one) == encode_report(other) == encode_report(said)


@pytest.mark.parametrize(
    ("change", "position"),
    [
        ({"emitter": "x"}, None),
        ({"tallies": [{"checkpoint": "mid.in", "window_start": 61, "beacons": 1, "id_sum": 0}]}, 0),
        ({"tallies": [{"checkpoint": "ga.in", "window_start": 60, "beacons": 1, "id_sum": 0}]}, 0),
        ({"tallies": [{"checkpoint": "mid.in", "window_start": 60, "beacons": -1, "id_sum": 0}]}, 0),
        ({"progress": [{"checkpoint": "ga.in", "lane": "", "until": 1}]}, 0),
    ],
)
def test_a_bad_report_is_named(
    collector: Collector, pipeline: str, change: dict[str, Any], position: int | None
) -> None:
    answer = collector.client.post("/v1/reports", json=document(report(pipeline)) | change)
    assert (answer.status_code, answer.json().get("position")) == (422, position)


def test_a_client_of_json_alone_has_a_complete_account(collector: Collector, pipeline: str) -> None:
    """Batches with emitter and seq, their tallies added up, one report: what the log then holds is what it says."""
    emitter, client, totals = uuid.uuid4(), collector.client, {"beacons": 0, "id_sum": 0}
    ranges: list[dict[str, int]] = []
    for seq in (1, 2):
        beacons = [{"checkpoint": "in", "message_id": f"{seq}-{i}", "event_time": window_s() * 1000} for i in range(20)]
        body = {"pipeline": pipeline, "node": "ga", "emitter": str(emitter), "seq": seq, "beacons": beacons}
        [tally] = client.post("/v1/beacons", json=body).json()["tallies"]
        totals = {name: totals[name] + tally[name] for name in totals}
        ranges += tally["ranges"]
    id_sum = (totals["id_sum"] + (1 << 63)) % (1 << 64) - (1 << 63)
    said = document(report(pipeline)) | {"node": "ga", "emitter": str(emitter), "progress": []}
    tally = {"checkpoint": "ga.in", "window_start": window_s(), "beacons": totals["beacons"], "id_sum": id_sum}
    assert client.post("/v1/reports", json=said | {"tallies": [tally | {"ranges": ranges}]}).status_code == 202
    [stored] = stored_reports(collector, emitter.bytes)
    blocks = blocks_of(collector.bootstrap, emitter.bytes)
    assert sum(each.block.count for each in blocks) == stored.tallies[0].beacons == 40
    assert int(np.add.reduce(np.concatenate([each.block.id_hash for each in blocks]))) == id_sum % (1 << 64)
    assert {(each.partition, each.offset) for each in blocks} == {
        (place.partition, offset) for place in stored.tallies[0].ranges for offset in range(place.first, place.last + 1)
    }


def test_a_beacon_topics_key_is_the_one_that_windows_are_read_by(collector: Collector, pipeline: str) -> None:
    post_blocks(collector, block(pipeline))
    keys = [key for _, _, key, _ in read_all(collector.bootstrap, BEACONS)]
    assert block_key(pipeline, window_s()) in keys
