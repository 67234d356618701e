"""Whatever parses bytes from outside, each as a function of bytes that may raise nothing but what it declares."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Final, NamedTuple

import numpy as np
import zstandard
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from aggregator.reports.packed_reports import PackedReport, read_reports
from collector import bodies, cloud_events, models, openlineage, task_runs
from collector.blocks import read_blocks, read_report, split_blocks
from collector.definitions import parsed
from collector.spans import otlp
from collector.spans.answer import Rejected, UnusableSpan, write_response
from collector.spans.kafka import read_kafka_span
from collector.spans.named import beacons_of
from lagloss import Emitter, MemoryOutlet
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.files.notifications import BadNotification, objects_in
from lagloss.wire import checks
from lagloss.wire.format import BadRecord, decode_block
from lagloss.wire.times import read_time
from lagloss_server.extraction import BadTapSchema, Extractor, Records
from lagloss_server.extraction.guesses import guess
from lagloss_server.groups.connect_offsets import parse_source_offset
from lagloss_server.model.expressions import ConditionExpression, IdExpression, TimeExpression
from lagloss_server.model.taps import Extraction, Format
from lagloss_server.net.problem_details import Problem
from taps.commit_log import parse_commit

AT_MS: Final = 1_795_250_400_000
MAX_UNPACKED: Final = 1 << 20
AVRO: Final = """{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": ["null", "string", "long", {"type": "fixed", "name": "Uuid", "size": 16}]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": ["null", "double", "Order"]}}}]}"""
PROTO: Final = """syntax = "proto3";
message Order {
  optional string id = 1; int64 at = 2; repeated Order lines = 3; map<string, sint32> sizes = 4;
  oneof state { bytes raw = 5; double price = 6; }
}"""


class Target(NamedTuple):
    """`allowed`: the errors that `parse` declares; `seeds`: good inputs to begin with."""

    parse: Callable[[bytes], object]
    allowed: tuple[type[Exception], ...] = ()
    seeds: tuple[bytes, ...] = ()


@cache
def _extractor(form: Format, schema: str | None) -> Extractor:
    if form == "text":
        return Extractor(Extraction(IdExpression.parse("$"), TimeExpression.parse("header:h"), None, form, schema))
    where = ConditionExpression.parse('exists $ and not $.id in ["x", 1, null] or header:h as json == 1')
    id_, at = IdExpression.parse(["$.id", "$.lines[0].id"]), TimeExpression.parse("$.at")
    return Extractor(Extraction(id_, at, where, form, schema))


def _extract(form: Format, schema: str | None, data: bytes) -> None:
    """Extract from a good record beside the bytes as value, as key, and as header."""
    values = [data, data[1:], b"{}"]
    headers = [[("h", data)], [("h", data[:8])], []]
    records = Records(np.full(3, AT_MS, np.int64), [data, None, b"k"], values, headers)
    found = _extractor(form, schema).extract(records)
    counted = found.rows.size + found.left_out + sum(rows.size for rows in found.unreadable_rows.values())
    assert counted == 3, f"{counted} of 3 records"


def _id_expression(data: bytes) -> None:
    """Parse an id expression, and extract by it."""
    expression = IdExpression.parse(data.decode(errors="replace"))
    origins = ("orders",) if expression.form == "position" else ()
    records = Records(
        np.full(3, AT_MS, np.int64), [b"k", b'{"a": 1}', None], [b'{"a": "x", "b": 2}', data, None],
        [[("o", b"orders/0/1")], [("o", data)], None], np.zeros(3, np.int64), np.arange(3),
    )  # fmt: skip
    found = Extractor(Extraction(expression, TimeExpression.parse("timestamp"), origins=origins)).extract(records)
    assert all(0 < len(each) <= 255 and each.decode() for each in found.ids)


def _schema(form: Format, data: bytes) -> None:
    text = data.decode(errors="replace")
    extractor = Extractor(Extraction(IdExpression.parse("$.id"), TimeExpression.parse("$.at"), None, form, text))
    extractor.extract(Records(np.full(1, AT_MS, np.int64), [None], [data], [None]))


def _block(data: bytes) -> None:
    checks.check_content(decode_block(data))


def _report(data: bytes) -> None:
    """Read a report in full, and quickly, with the same answer."""
    (quick,) = read_reports([data])
    try:
        checks.read_report(data)
    except BadRecord as bad:
        assert isinstance(quick, BadRecord) and quick.reason == bad.reason  # noqa: PT017, PT018
        raise
    assert isinstance(quick, PackedReport)


def _otlp(media_type: str, data: bytes) -> None:
    rejected, spans = Rejected(), otlp.open_request(data, media_type).read()
    for span in spans:
        with suppress(UnusableSpan):
            read_kafka_span(span)
    for node in beacons_of(spans, rejected):
        node.batch(None, rejected)
    write_response(rejected, media_type)


def _unpacked(encoding: str, data: bytes) -> None:
    unpack, size = bodies._UNPACK[encoding], 0
    assert unpack is not None
    for piece in unpack(bytearray(data)):
        assert 0 < len(piece) <= bodies.PIECE_BYTES
        size += len(piece)
        if size > MAX_UNPACKED:
            return


def _commit(data: bytes) -> None:
    cut = data[0] if data else 0
    parse_commit(data[1 : 1 + cut], data[1 + cut :])
    parse_source_offset(data[1 : 1 + cut], data[1 + cut :])


def _expressions(data: bytes) -> None:
    text = data.decode(errors="replace")
    for kind in (IdExpression, TimeExpression, ConditionExpression):
        try:
            found = kind.parse(text)
        except ValueError:
            continue
        assert kind.parse(found.written) == found


def _guess(data: bytes) -> None:
    values = [data, *data.split(b"\0")]
    n = len(values)
    guess(Records(np.full(n, AT_MS, np.int64), [None] * n, values, [[("h", data)]] * n))


def _batch(data: bytes) -> None:
    models.as_batch(models.read_batch(data), None)


def _sent() -> tuple[bytes, bytes]:
    """A block and a report as an emitter makes them."""
    log = MemoryOutlet()
    emitter = Emitter("orders", "enrich", outlet=lambda: log, first=True)
    for number in range(3):
        emitter.received(f"m-{number}", time.time_ns() // 1_000_000)
        emitter.filtered(f"m-{number}", time.time_ns() // 1_000_000, reason="robot")
    assert emitter.close(60)
    return log.values(BEACONS)[0], log.values(REPORTS)[-1]


BLOCK, REPORT = _sent()
BEACON = (
    b'{"pipeline": "orders", "node": "shop", "beacons": [{"checkpoint": "in", "message_id": "a", "event_time": 1}]}'
)
EVENT = (
    b'{"specversion": "1.0", "id": "1", "source": "/pipelines/orders/nodes/shop", "type": "io.lagloss.beacon.in",'
    b' "subject": "a", "eventtime": "2026-11-21T08:40:00Z", "time": "2026-11-21T08:40:01.5+01:00"}'
)
SPAN = (
    b'{"resourceSpans": [{"resource": {"attributes": [{"key": "lagloss.pipeline", "value": {"stringValue": "orders"}},'
    b' {"key": "service.name", "value": {"stringValue": "shop"}}]}, "scopeSpans": [{"spans": [{"traceId":'
    b' "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174", "name": "send", "startTimeUnixNano":'
    b' "1795250400000000000", "endTimeUnixNano": "1795250400000000001", "attributes": [{"key":'
    b' "messaging.operation.type", "value": {"stringValue": "send"}}, {"key": "messaging.message.id", "value":'
    b' {"stringValue": "a"}}, {"key": "lagloss.event_time", "value": {"intValue": "1795250400000"}}]}]}]}]}'
)
TASK = (
    b'{"reports": [{"dag": "d", "run_id": "r", "due_at": 1795250400, "run": {"state": "running", "at": "1795250400"},'
    b' "task": {"task": "t", "try": 2, "state": "failed", "at": "2026-11-21T08:40:00Z"}}]}'
)
LINEAGE = b"""{"eventType": "START", "eventTime": "2026-11-21T08:40:00Z", "job": {"name": "scores"},
    "run": {"runId": "1", "facets": {}}}"""
DEFINITION = b"""apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: orders}
spec:
  nodes:
    - {name: shop, to: [copier], taps: {out: {topic: orders, id: $.id, eventTime: $.at, where: 'exists $.id'}}}
    - {name: copier, taps: {in: {group: copier}}}
  sla: {lag: {percentile: 95, target: 5s}}
"""
COMMIT = b"\x0e\0\1\0\1g\0\1t\0\0\0\0" + b"\0\3" + bytes(8) + bytes(4) + b"\0\0" + bytes(8)
NOTIFICATION = (
    b'{"Records": [{"eventName": "ObjectCreated:Put", "eventTime": "2026-11-21T08:40:00.000Z", "s3": {"bucket":'
    b' {"name": "b"}, "object": {"key": "a%2Fb", "size": 1, "versionId": "v"}}}]}'
)
JSON = b'{"id": "a", "at": "2026-11-21T08:40:00Z", "lines": [{"id": 1.5e3, "x": [null, true, NaN, "\\u00e9"]}]}'
CONDITION = b"""$.a["b c"] == "x" and not (exists header:h as json or key:$.k in [1, null]) or $ != true"""

TARGETS: Final = {
    "block": Target(_block, (BadRecord,), (BLOCK,)),
    "report": Target(_report, (BadRecord,), (REPORT,)),
    "http-blocks": Target(
        lambda data: read_blocks(split_blocks(data)), (Problem,), (len(BLOCK).to_bytes(4, "little") + BLOCK,)
    ),
    "http-report": Target(read_report, (Problem,), (REPORT,)),
    "batch": Target(_batch, (Problem,), (BEACON,)),
    "cloud-event": Target(partial(cloud_events.read_events, media_type=cloud_events.SINGLE), (Problem,), (EVENT,)),
    "cloud-events": Target(
        partial(cloud_events.read_events, media_type=cloud_events.BATCHED), (Problem,), (b"[%s]" % EVENT,)
    ),
    "otlp-json": Target(partial(_otlp, otlp.JSON), (Problem,), (SPAN,)),
    "otlp-protobuf": Target(
        partial(_otlp, "application/x-protobuf"),
        (Problem,),
        (bytes(Parse(SPAN, ExportTraceServiceRequest()).SerializeToString()),),
    ),
    "lineage": Target(openlineage.read_event, (Problem,), (LINEAGE,)),
    "task-runs": Target(task_runs.read_reports, (Problem,), (TASK,)),
    "definition": Target(parsed, (Problem,), (DEFINITION,)),
    "gzip": Target(partial(_unpacked, "gzip"), (Problem,), (gzip.compress(b"a" * 99),)),
    "zstd": Target(partial(_unpacked, "zstd"), (Problem,), (zstandard.compress(b"a" * 99),)),
    "commit": Target(_commit, (), (COMMIT,)),
    "notification": Target(lambda data: objects_in(data.decode(errors="replace")), (BadNotification,), (NOTIFICATION,)),
    "time": Target(
        lambda data: read_time(data.decode(errors="replace")),
        (ValueError,),
        (b"2026-11-21T08:40:00.123+01:00", b"-1.5"),
    ),
    "expressions": Target(_expressions, (), (CONDITION, b"header:at as json in us")),
    "id-expression": Target(
        _id_expression, (ValueError,), (b"hash($.a, header:o, key)", b"partition-offset(header:o)", b"partition-offset")
    ),
    "tap-json": Target(partial(_extract, "json", None), (), (JSON,)),
    "tap-auto": Target(partial(_extract, "auto", None), (), (JSON, b"plain")),
    "tap-text": Target(partial(_extract, "text", None), (), (b"plain",)),
    "tap-avro": Target(partial(_extract, "avro", AVRO), (), (b"\x02\x02a" + bytes(8),)),
    "tap-protobuf": Target(partial(_extract, "protobuf", PROTO), (), (b"\x0a\1a\x10\1\x1a\3\x0a\1b",)),
    "guess": Target(_guess, (), (JSON,)),
    "avro-schema": Target(partial(_schema, "avro"), (BadTapSchema,), (AVRO.encode(),)),
    "protobuf-schema": Target(partial(_schema, "protobuf"), (BadTapSchema,), (PROTO.encode(),)),
}
