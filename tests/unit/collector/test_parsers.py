"""Whatever bytes come in, the collector's parsers answer with what they hold or with a problem of the client's."""

from __future__ import annotations

import asyncio
import codecs
import gzip
import json
import struct
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zstandard
from google.protobuf.json_format import MessageToJson
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.requests import Request

from collector import cloud_events
from collector.batches import BeaconBatch, Numbered, Seen, check, pack
from collector.blocks import accept_report, read_blocks, read_report, report_record, split_blocks
from collector.bodies import Bodies
from collector.definitions import parsed
from collector.intake import report_of_json
from collector.models import as_batch, read_batch
from collector.openlineage import read_event
from collector.spans.answer import Rejected, write_response
from collector.spans.named import beacons_of
from collector.spans.otlp import JSON as SPANS_JSON
from collector.spans.otlp import PROTOBUF, open_request
from collector.task_runs import read_reports
from lagloss.identity import replay_in
from lagloss.wire import checks
from lagloss.wire.format import (
    BeaconBlock,
    EmitterReport,
    Progress,
    Tally,
    decode_block,
    encode_block,
    encode_report,
    hash_id,
    partition_of,
)
from lagloss.wire.sketch import Sketch
from lagloss.wire.traces import TraceContext, find_traces
from lagloss_server.net.problem_details import Problem

NOW_S = int(time.time()) // 60 * 60
Parser = Callable[[bytes], object]


TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
TRACEPARENT = f"00-{TRACE.trace_id}-{TRACE.span_id}-01"


def blocks(body: bytes) -> object:
    return [block.record(8) for block in read_blocks(split_blocks(body))]


def report(body: bytes) -> object:
    said = read_report(body)
    accept_report(said)
    return report_record(said)


def json_report(body: bytes) -> object:
    said = report_of_json(body)
    accept_report(said)
    return report_record(said)


def batch(body: bytes) -> object:
    return _whole(as_batch(read_batch(body), None))


def events(body: bytes) -> object:
    return _whole(as_batch(cloud_events.read_events(body, cloud_events.BATCHED)[0], None))


def _whole(found: BeaconBatch) -> object:
    check(found, None)
    return pack(found, 8) if found.numbered else found


def traces(kind: str) -> Parser:
    def parse(body: bytes) -> object:
        rejected = Rejected()
        found = beacons_of(open_request(body, kind).read(), rejected)
        return [place.batch(None, rejected) for place in found], write_response(rejected, kind)

    return parse


def _a_block() -> bytes:
    ids = np.array([hash_id("m-1")], np.uint64)
    made = BeaconBlock("p", "n.in", bytes(16), 1, NOW_S, 8, ids, np.zeros(1, np.float32), message_ids=b"\x03m-1")
    value = encode_block(made)
    return struct.pack("<I", len(value)) + value


def _a_report() -> bytes:
    tally = Tally("n.in", NOW_S, 1, 5, Sketch.from_bins({10_127: 1}))
    return encode_report(
        EmitterReport("p", "n", bytes(16), "h", 1, 1, 1, False, 0, (Progress("n.in", "t/0", 1),), (tally,))
    )


def _a_batch(**fields: Any) -> bytes:
    beacon = {
        "checkpoint": "in",
        "message_id": "m-1",
        "event_time": NOW_S * 1000,
        "observed_at": "2026-01-01T00:00:00Z",
        "traceparent": TRACEPARENT,
    }
    return json.dumps({"pipeline": "p", "node": "n", "beacons": [beacon], **fields}).encode()


def _an_event(**attributes: Any) -> bytes:
    event = {"specversion": "1.0", "id": "1", "type": "io.lagloss.beacon.out", "source": "/pipelines/p/nodes/n"}
    said = {"subject": "m-1", "eventtime": NOW_S * 1000, "to": "x", "time": "2026-01-01T00:00:00Z"}
    return json.dumps([event | said | attributes]).encode()


def _an_openlineage_event() -> bytes:
    of = {"dag": {"dag_id": "d"}, "dagRun": {"run_id": "r", "run_after": 5}, "task": {"task_id": "t"}}
    run = {"facets": {"airflow": of, "airflowState": {"tasksState": {"t": "failed"}}}}
    return json.dumps({"eventType": "FAIL", "eventTime": 7, "run": run}).encode()


def _a_trace() -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    for key in ("lagloss.pipeline", "service.name"):
        resource.resource.attributes.add(key=key).value.string_value = "p"
    span = resource.scope_spans.add().spans.add(name="s", start_time_unix_nano=time.time_ns())
    span.attributes.add(key="messaging.operation.type").value.string_value = "process"
    span.attributes.add(key="messaging.message.id").value.string_value = "m-1"
    span.attributes.add(key="lagloss.event_time").value.int_value = NOW_S * 1000
    return request


def _json_report() -> bytes:
    tally = {
        "checkpoint": "n.in",
        "window_start": NOW_S,
        "beacons": 1,
        "id_sum": -5,
        "lag_sketch": [{"key": 10_127, "count": 1}],
    }
    said = {"pipeline": "p", "node": "n", "emitter": str(uuid.UUID(int=1)), "seq": 1, "started_at": 1, "sent_at": 1}
    return json.dumps(said | {"tallies": [tally]}).encode()


PARSERS: list[tuple[Parser, bytes]] = [
    (blocks, _a_block()),
    (report, _a_report()),
    (json_report, _json_report()),
    (batch, _a_batch()),
    (batch, _a_batch(emitter=str(uuid.UUID(int=1)), seq=3)),
    (events, _an_event()),
    (traces(PROTOBUF), _a_trace().SerializeToString()),
    (traces(SPANS_JSON), MessageToJson(_a_trace()).encode()),
    (read_reports, b'{"reports": [{"dag": "d", "run_id": "r", "due_at": 1, "run": {"state": "failed", "at": 2}}]}'),
    (read_event, _an_openlineage_event()),
    (parsed, b"apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: a}\nspec: {nodes: [{name: a}], grace: 5s}\n"),
]
KINDS = [
    "blocks",
    "report",
    "json_report",
    "batch",
    "numbered_batch",
    "events",
    "protobuf_traces",
    "json_traces",
    "task_runs",
    "openlineage",
    "definition",
]
"""Names of the cases: they may not depend on the time that is in their bytes, which each worker reads anew."""
JSON_PARSERS = [each for each in PARSERS if each[1][:1] in b"[{"]


@pytest.mark.parametrize(("parse", "good"), PARSERS, ids=KINDS)
def test_what_is_good_is_taken(parse: Parser, good: bytes) -> None:
    parse(good)


@pytest.mark.parametrize(("parse", "good"), PARSERS, ids=KINDS)
@given(data=st.data())
@settings(max_examples=60)
def test_what_is_bad_is_the_clients_problem(parse: Parser, good: bytes, data: st.DataObject) -> None:
    """Any bytes, and good ones with some of them changed, cut out or doubled."""
    body = bytearray(good)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    try:
        parse(data.draw(st.sampled_from([bytes(body)]) | st.binary(max_size=60)))
    except Problem as problem:
        assert 400 <= problem.status < 500  # noqa: PT017


@given(
    st.lists(st.tuples(st.sampled_from([-10_000, 0, 10_127]), st.integers(0, 3))),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 9))),
)
def test_a_report_in_json_has_bins_and_ranges_in_any_order(
    bins: list[tuple[int, int]], places: list[tuple[int, int, int]]
) -> None:
    said = json.loads(_json_report())
    said["tallies"][0]["lag_sketch"] = [{"key": key, "count": count} for key, count in bins]
    ranges = [{"partition": partition, "first": first, "last": first + more} for partition, first, more in places]
    said["tallies"][0]["ranges"] = ranges
    record: Any = json_report(json.dumps(said).encode())
    (tally,) = checks.read_report(record.value).tallies
    assert tally.lag_sketch.bins() == {key: count for key, count in bins if count}
    offsets = {(each["partition"], at) for each in ranges for at in range(each["first"], each["last"] + 1)}
    assert {(place.partition, at) for place in tally.ranges for at in range(place.first, place.last + 1)} == offsets


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\ud800") | st.just(10**400),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["key", "id", "type"]), inner, max_size=2)
    ),
    max_leaves=3,
)


@pytest.mark.parametrize(("parse", "good"), JSON_PARSERS, ids=range(len(JSON_PARSERS)))
@given(data=st.data())
@settings(max_examples=60)
def test_a_member_of_any_kind_is_the_clients_problem(parse: Parser, good: bytes, data: st.DataObject) -> None:
    """JSON that is well-formed, with another value somewhere."""
    document = json.loads(good)
    part: Any = document
    while True:
        at = data.draw(st.sampled_from(sorted(part) if isinstance(part, dict) else range(len(part))))
        if not isinstance(part[at], dict | list) or not part[at] or data.draw(st.integers(0, 3)) == 0:
            part[at] = data.draw(JSON_VALUES)
            break
        part = part[at]
    try:
        parse(json.dumps(document).encode())
    except Problem as problem:
        assert 400 <= problem.status < 500  # noqa: PT017


async def _read(body: bytes, encoding: str, max_bytes: int, bodies: Bodies) -> bytes:
    messages = iter([{"type": "http.request", "body": body}])

    async def receive() -> Any:
        return next(messages)

    scope = {"type": "http", "headers": [(b"content-encoding", encoding.encode())]}
    async with bodies.read(Request(scope, receive), max_bytes, "caller") as found:
        return found


PACK: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor(write_content_size=False).compress,
}


@pytest.mark.parametrize("encoding", PACK)
@given(content=st.binary(max_size=300), size=st.integers(0, 300))
@settings(max_examples=40)
def test_a_body_is_unpacked_up_to_its_limit_and_given_back(encoding: str, content: bytes, size: int) -> None:
    bodies, packed = Bodies(max_held_bytes=2_000), PACK[encoding](content)
    try:
        assert asyncio.run(_read(packed, encoding, size, bodies)) == content.removeprefix(codecs.BOM_UTF8)
        assert len(content) <= size
    except Problem as problem:
        assert problem.status == 413  # noqa: PT017
        assert max(len(content), len(packed)) > size
    whole = b"x" * 1_000
    assert asyncio.run(_read(whole, "identity", 2_000, bodies)) == whole  # all of the room is free again


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@given(body=st.binary(max_size=100))
@settings(max_examples=40)
def test_what_is_not_packed_is_400(encoding: str, body: bytes) -> None:
    with pytest.raises(Problem) as found:
        asyncio.run(_read(body, encoding, 1_000, Bodies()))
    assert found.value.status == 400


def test_bodies_that_one_caller_has_read_have_a_limit_of_half_of_all() -> None:
    with pytest.raises(Problem) as found:
        asyncio.run(_read(b"x" * 501, "identity", 2_000, Bodies(max_held_bytes=1_000)))
    assert (found.value.status, found.value.headers) == (503, {"Retry-After": "5"})


def test_a_numbered_batchs_blocks_have_names_that_no_other_batchs_have() -> None:
    def packed(seq: int, partitions: int) -> set[int]:
        seen = [Seen("in", f"m-{i}", NOW_S * 1000, NOW_S * 1000 + 1) for i in range(50)]
        found = pack(BeaconBatch("p", "n", False, seen, Numbered(bytes(16), seq)), partitions)
        assert all(block.partition < partitions for block in found)
        contents = [decode_block(block.value) for block in found]
        assert all(partition_of(int(each.id_hash[0]), partitions) < partitions for each in contents)
        return {content.seq for content in contents}

    names = [packed(seq, partitions) for seq in (1, 2, (1 << 31) - 1) for partitions in (1, 8, 65_535)]
    assert packed(1, 8) == names[1] == {(1 << 32) | (8 << 16) | index for index in range(8)}
    assert len(set.union(*names)) == sum(map(len, names))
    assert all(0 < name < 1 << 63 for found in names for name in found)


def _traces_of(found: BeaconBatch) -> list[dict[int, TraceContext]]:
    """What a numbered batch of these beacons says of traces, by block."""
    packed = pack(replace(found, numbered=Numbered(bytes(16), 1)), 8)
    blocks = [decode_block(block.value) for block in packed]
    return [find_traces(block.traces, np.arange(block.count)) for block in blocks if block.traces is not None]


def test_a_trace_is_the_same_in_every_format_and_of_the_first_node_only(monkeypatch: pytest.MonkeyPatch) -> None:
    event = {"type": "io.lagloss.beacon.in", "to": None, "traceparent": TRACEPARENT}
    span = _a_trace()
    span.resource_spans[0].scope_spans[0].spans[0].trace_id = bytes.fromhex(TRACE.trace_id)
    span.resource_spans[0].scope_spans[0].spans[0].span_id = bytes.fromhex(TRACE.span_id)
    (place,) = beacons_of(open_request(span.SerializeToString(), PROTOBUF).read(), Rejected())
    said = json.loads(_an_event(**event))
    del said[0]["to"]
    in_events = as_batch(cloud_events.read_events(json.dumps(said).encode(), cloud_events.BATCHED)[0], None)
    in_json = as_batch(read_batch(_a_batch()), None)
    in_spans = BeaconBatch(place.pipeline, place.node, False, place.seen)
    for found in (in_json, in_events, in_spans):
        assert _traces_of(found) == []
        assert _traces_of(replace(found, first=True)) == [{0: TRACE}]
    monkeypatch.setenv("LAGLOSS_TRACES", "off")
    assert _traces_of(replace(in_json, first=True)) == []


@pytest.mark.parametrize(
    ("name", "replay"),
    [("june", "june"), ("é" * 250, "é" * 250), ("", "unnamed"), ("é" * 251, "unnamed"), ("a\0", "unnamed")],
    ids=["name", "longest", "empty", "too long", "nul"],
)
def test_a_replay_is_the_same_in_every_format_and_as_to_the_sdk(name: str, replay: str) -> None:
    span = _a_trace()
    span.resource_spans[0].scope_spans[0].spans[0].attributes.add(key="lagloss.replay").value.string_value = name
    (place,) = beacons_of(open_request(span.SerializeToString(), PROTOBUF).read(), Rejected())
    event, said = json.loads(_an_event(replay=name)), json.loads(_a_batch())
    said["beacons"][0]["replay"] = name
    in_events = as_batch(cloud_events.read_events(json.dumps(event).encode(), cloud_events.BATCHED)[0], None)
    in_json = as_batch(read_batch(json.dumps(said).encode()), None)
    assert {seen.replay for seen in (*in_json.seen, *in_events.seen, *place.seen)} == {replay}
    [block] = [decode_block(block.value) for block in pack(replace(in_json, numbered=Numbered(bytes(16), 1)), 8)]
    assert block.replay == replay
    assert replay_in(name.encode()) == replay


@pytest.mark.parametrize("text", ["", "x", TRACEPARENT[:-1] + "0", TRACEPARENT + "x" * 100_000])
def test_what_is_no_traceparent_costs_no_beacon_and_little_memory(text: str) -> None:
    said = json.loads(_a_batch())
    said["beacons"][0]["traceparent"] = text
    found = as_batch(read_batch(json.dumps(said).encode()), None)
    assert len(found.seen[0].traceparent or "") <= 56
    assert _traces_of(replace(found, first=True)) == []


def test_what_was_seen_long_after_now_is_refused() -> None:
    """Its message would be on its way, by the beacon, until then."""
    now_ms = time.time() * 1_000
    for ahead_ms, is_good in ((3_600_000, True), (25 * 3_600_000, False), (1e13, False)):
        batch = BeaconBatch("p", "n", False, [Seen("in", "m", now_ms, now_ms + ahead_ms)])
        if is_good:
            check(batch, None)
        else:
            with pytest.raises(Problem) as raised:
                check(batch, None)
            assert raised.value.document.field == "observed_at"
