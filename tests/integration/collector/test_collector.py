"""The collector's batches of beacons over HTTP, on a real broker: as JSON, packed, repeated, and wrong ones."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import uuid
from collections.abc import Iterable

import httpx2
import pytest
import zstandard

from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.wire.format import BeaconBlock, decode_block, decode_report, hash_id
from tests.integration.conftest import JSON, Collector
from tests.support.kafka_log import read_all, wait_for


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def beacon(**fields: object) -> dict[str, object]:
    return {"checkpoint": "in", "message_id": "m", "event_time": now_ms(), **fields}


def batch(pipeline: str, *beacons: dict[str, object], **fields: object) -> dict[str, object]:
    return {"pipeline": pipeline, "node": "src", "beacons": list(beacons), **fields}


def blocks_of(collector: Collector, pipeline: str) -> list[BeaconBlock]:
    """The pipeline's blocks in the log, each as often as it is there."""
    prefix = f"{pipeline}/".encode()
    return [
        decode_block(value) for _, _, key, value in read_all(collector.bootstrap, BEACONS) if key.startswith(prefix)
    ]


def hashes(blocks: Iterable[BeaconBlock]) -> list[int]:
    return sorted(int(each) for block in blocks for each in block.id_hash)


def test_202_means_that_the_log_holds_the_beacons(collector: Collector, pipeline: str) -> None:
    before = collector.metric("lagloss_collector_beacons_total")
    sent = batch(
        pipeline,
        beacon(event_time=1_000 * int(time.time()), observed_at=1_000 * int(time.time()) + 42),
        beacon(checkpoint="filtered", reason="robot"),
        beacon(checkpoint="dead", replay="again"),
        beacon(checkpoint="out", event_time=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())),
    )
    answer = collector.client.post("/v1/beacons", json=sent)
    assert (answer.status_code, answer.json()) == (202, {"accepted": 4})
    assert collector.client.post(
        "/v1/beacons", json=batch(pipeline, beacon(checkpoint="out:ga"), node="mid")
    ).is_success
    found = {block.checkpoint: block for block in blocks_of(collector, pipeline)}
    assert {(b.checkpoint, b.reason, b.replay, b.count) for b in found.values()} == {
        ("src.in", None, None, 1),
        ("src.filtered", "robot", None, 1),
        ("src.dead", "unspecified", "again", 1),
        ("src.out", None, None, 1),
        ("mid.out:ga", None, None, 1),
    }
    assert found["src.in"].message_ids == b"\x01m"  # the definition says that src is the first node
    assert found["src.in"].lag_ms.tolist() == [42.0]
    assert collector.metric("lagloss_collector_beacons_total") == before + 5

    def tallied() -> set[int]:
        decoded = [decode_report(value) for _, _, _, value in read_all(collector.bootstrap, REPORTS)]
        return {report.final_through for report in decoded if report.pipeline == pipeline and report.tallies}

    wait_for(lambda: bool(tallied()), what="a report")
    assert tallied() == {0}  # its clients pass no counts: never final


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (beacon(message_id=""), "message_id"),
        (beacon(message_id="x" * 256), "message_id"),
        (beacon(message_id="é" * 128), "message_id"),
        (beacon(message_id=5), "message_id"),
        (beacon(checkpoint="src.in"), "checkpoint"),
        (beacon(checkpoint="out:ga"), "checkpoint"),
        (beacon(event_time="2026-01-01T00:00:00"), "event_time"),
        (beacon(event_time=True), "event_time"),
        (beacon(event_time=1e300), "event_time"),
        (beacon(event_time=5), "event_time"),
        (beacon(event_time=4e12), "event_time"),
        (beacon(observed_at="yesterday"), "observed_at"),
        (beacon(replay=5), "replay"),
        (beacon(colour="red"), "colour"),
        ({"checkpoint": "in", "message_id": "m"}, "event_time"),
    ],
)
def test_422_names_the_position_and_field_and_takes_nothing(
    collector: Collector, pipeline: str, bad: dict[str, object], field: str
) -> None:
    answer = collector.client.post("/v1/beacons", json=batch(pipeline, beacon(), bad, beacon()))
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["position"], problem["field"], problem["status"]) == (1, field, 422)
    assert blocks_of(collector, pipeline) == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", json.dumps(batch("a b", beacon())).encode(), b'{"a": 1}'])
def test_422_for_what_is_no_batch(collector: Collector, body: bytes) -> None:
    answer = collector.client.post("/v1/beacons", content=body, headers=JSON)
    assert (answer.status_code, answer.json()["title"]) == (422, "Bad batch")


def test_404_for_an_unknown_pipeline(collector: Collector) -> None:
    answer = collector.client.post("/v1/beacons", json=batch("nobody-knows-it", beacon()))
    assert (answer.status_code, answer.json()["title"]) == (404, "Unknown pipeline")


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/beacons", 405), ("GET", "/v1/nothing", 404)])
def test_the_servers_own_errors_are_problem_documents(
    collector: Collector, method: str, path: str, status: int
) -> None:
    answer = collector.client.request(method, path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert answer.json()["status"] == status


def test_the_first_node_is_refused_what_comes_from_the_future(collector: Collector, pipeline: str) -> None:
    ahead = beacon(event_time=now_ms() + 70_000)
    assert collector.client.post("/v1/beacons", json=batch(pipeline, ahead)).status_code == 422
    assert collector.client.post("/v1/beacons", json=batch(pipeline, ahead, node="ga")).status_code == 202


def test_batches_sent_together_are_all_acknowledged(collector: Collector, pipeline: str) -> None:
    async def send_all() -> list[int]:
        async with httpx2.AsyncClient(base_url=collector.url, timeout=30) as client:
            bodies = [batch(pipeline, *(beacon(message_id=f"{n}-{i}") for i in range(50))) for n in range(40)]
            answers = await asyncio.gather(*(client.post("/v1/beacons", json=body) for body in bodies))
            return [answer.status_code for answer in answers]

    assert asyncio.run(send_all()) == [202] * 40
    mine = blocks_of(collector, pipeline)
    assert sum(block.count for block in mine) == 2_000
    assert len({block.emitter for block in mine}) == 1


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
def test_packed_bodies_are_taken_and_packed_rubbish_is_not(
    collector: Collector, pipeline: str, encoding: str, pack: object
) -> None:
    assert callable(pack)
    body = json.dumps(batch(pipeline, beacon(message_id="packed"))).encode()
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    assert collector.client.post("/v1/beacons", content=pack(body), headers=headers).status_code == 202
    assert collector.client.post("/v1/beacons", content=pack(body)[:-3], headers=headers).status_code == 400
    assert collector.client.post("/v1/beacons", content=body, headers=headers).status_code == 400
    assert hashes(blocks_of(collector, pipeline)) == [hash_id("packed")]


@pytest.mark.parametrize("numbered", [{}, {"emitter": str(uuid.uuid4()), "seq": 1}])
def test_a_time_of_a_clock_that_no_report_measures_is_said_to_be_supplied_when_it_arrived(
    collector: Collector, pipeline: str, numbered: dict[str, object]
) -> None:
    before_ms = now_ms()
    behind = beacon(event_time=before_ms - 600_000, observed_at=before_ms - 590_000)
    right = beacon(message_id="now", event_time=before_ms, observed_at=before_ms)
    without = beacon(message_id="then", checkpoint="out", event_time=before_ms)
    assert collector.client.post("/v1/beacons", json=batch(pipeline, behind, right, without, **numbered)).is_success
    supplied = {block.id_hash[0]: block.supplied_at for block in blocks_of(collector, pipeline)}
    assert supplied.pop(hash_id("now")) is supplied.pop(hash_id("then")) is None
    [supplied_at] = supplied.values()
    assert (supplied_at is None) == bool(numbered)
    assert supplied_at is None or before_ms <= supplied_at <= now_ms() + 1


def test_other_encodings_and_types_are_415(collector: Collector, pipeline: str) -> None:
    body = json.dumps(batch(pipeline, beacon())).encode()
    for headers in ({"Content-Encoding": "br"}, {"Content-Type": "text/csv"}):
        assert collector.client.post("/v1/beacons", content=body, headers=headers).status_code == 415


def test_a_numbered_batch_that_is_repeated_makes_the_same_blocks_again(collector: Collector, pipeline: str) -> None:
    ids = [f"m-{i}" for i in range(40)]
    seen_ms = now_ms()
    body = batch(
        pipeline,
        *(beacon(message_id=each, event_time=seen_ms - 5, observed_at=seen_ms) for each in ids),
        emitter=str(uuid.uuid4()),
        seq=7,
    )
    first, second = (collector.client.post("/v1/beacons", json=body).json() for _ in range(2))
    blocks = blocks_of(collector, pipeline)
    by_name: dict[tuple[bytes, int], list[BeaconBlock]] = {}
    for block in blocks:
        by_name.setdefault((block.emitter, block.seq), []).append(block)
    assert {len(copies) for copies in by_name.values()} == {2}
    assert all(one.id_hash.tolist() == other.id_hash.tolist() for one, other in by_name.values())
    assert hashes(copies[0] for copies in by_name.values()) == sorted(map(hash_id, ids))
    [tally] = first["tallies"]
    assert (tally["beacons"], tally["dropped"], sum(each["count"] for each in tally["lag_sketch"])) == (40, 0, 40)
    assert tally["id_sum"] % (1 << 64) == sum(map(hash_id, ids)) % (1 << 64)
    assert second["tallies"][0]["ranges"] != tally["ranges"]
    assert {**second["tallies"][0], "ranges": None} == {**tally, "ranges": None}


@pytest.mark.parametrize("fields", [{"seq": 1}, {"emitter": str(uuid.uuid4())}, {"emitter": "x", "seq": 1}])
def test_emitter_and_seq_come_together(collector: Collector, pipeline: str, fields: dict[str, object]) -> None:
    assert collector.client.post("/v1/beacons", json=batch(pipeline, beacon(), **fields)).status_code == 422


def test_a_repeat_with_the_same_key_puts_nothing(collector: Collector, pipeline: str) -> None:
    body, headers = batch(pipeline, beacon()), {"Idempotency-Key": uuid.uuid4().hex}
    answers = [collector.client.post("/v1/beacons", json=body, headers=headers) for _ in range(3)]
    assert [(answer.status_code, answer.json()) for answer in answers] == [(202, {"accepted": 1})] * 3
    other = batch(pipeline, beacon(message_id="other"))
    assert collector.client.post("/v1/beacons", json=other, headers=headers).status_code == 422
    assert sum(block.count for block in blocks_of(collector, pipeline)) == 1


def test_requests_with_one_key_at_the_same_time_put_once(collector: Collector, pipeline: str) -> None:
    async def send() -> list[int]:
        async with httpx2.AsyncClient(base_url=collector.url, timeout=30) as client:
            body, headers = batch(pipeline, beacon()), {"Idempotency-Key": pipeline}
            sent = (client.post("/v1/beacons", json=body, headers=headers) for _ in range(8))
            return [answer.status_code for answer in await asyncio.gather(*sent)]

    assert asyncio.run(send()) == [202] * 8
    assert sum(block.count for block in blocks_of(collector, pipeline)) == 1


def test_what_failed_under_a_key_may_be_tried_again(collector: Collector, pipeline: str) -> None:
    headers = JSON | {"Idempotency-Key": uuid.uuid4().hex}
    unknown = json.dumps(batch(f"{pipeline}-not", beacon()))
    post = collector.client.post
    assert [post("/v1/beacons", content=unknown, headers=headers).status_code for _ in range(2)] == [404, 404]
