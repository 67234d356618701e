"""Whatever a client with one token sends: it is answered, and harms the clients with other tokens in nothing.

LAGLOSS_ODD_BODIES is how many it sends (300 by default).
"""

from __future__ import annotations

import json
import os
import struct
import time
import uuid
from collections import Counter
from collections.abc import Container
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.sdk.emitter import Emitter
from lagloss.wire.checks import check_block, read_report
from lagloss.wire.format import BLOCKS_TYPE, REPORT_TYPE, hash_id, pipeline_of_report
from lagloss_server.store.tokens import create, revoke
from tests.integration.conftest import DEFINITION, YAML, Collector
from tests.integration.lagloss.sdk.test_over_http import assert_exact
from tests.support.kafka_log import read_all, wait_for
from tests.support.odd_records import INTS, LONGS, TEXTS, blocks, damaged, either, reports

ODD_BODIES = int(os.environ.get("LAGLOSS_ODD_BODIES", "300"))
Body = tuple[str, str, bytes]
"""Path, media type and content."""
ANSWERS = {200, 202, 400, 403, 404, 413, 415, 422, 429}
"""Neither a fault of the collector's own nor "not now"."""
CHECKPOINTS = ["mid.in", "mid.out:ga", "mid.dead"]
KINDS = [
    *(BLOCKS_TYPE, REPORT_TYPE, "application/json", "application/cloudevents+json"),
    *("application/cloudevents-batch+json", "application/x-protobuf", "text/plain"),
]
VALUES = TEXTS | LONGS | INTS | st.none() | st.booleans() | st.floats() | st.lists(TEXTS, max_size=2)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@st.composite
def framed(draw: st.DrawFn, records: st.SearchStrategy[Any]) -> bytes:
    """Blocks with their lengths, some of which are wrong."""
    values = [draw(records)[1] or b"" for _ in range(draw(st.integers(0, 3)))]
    return b"".join(struct.pack("<I", draw(either(len(value), st.integers(0, 1 << 31)))) + value for value in values)


@st.composite
def documents(draw: st.DrawFn, pipeline: str) -> Body:
    """Beacons, an event, a report or spans as JSON, good or with odd values and fields."""
    now = now_ms()
    beacon = {"checkpoint": "in", "message_id": "m", "event_time": now, "replay": draw(either("r", VALUES))}
    report = {"emitter": str(uuid.uuid4()), "seq": 1, "started_at": now, "sent_at": now, "host": "h"}
    event = {"specversion": "1.0", "id": "e", "type": "io.lagloss.beacon.dead", "subject": "m", "reason": "r"}
    source = f"/pipelines/{pipeline}/nodes/mid"
    path, kind, good = draw(
        st.sampled_from(
            [
                ("/v1/beacons", "application/json", {"pipeline": pipeline, "node": "mid", "beacons": [beacon]}),
                ("/v1/reports", "application/json", {"pipeline": pipeline, "node": "mid", **report}),
                ("/v1/beacons", "application/cloudevents+json", {**event, "source": source, "eventtime": now}),
                ("/v1/traces", "application/json", {"resourceSpans": [{"scopeSpans": [{"spans": []}]}]}),
            ]
        )
    )
    odd = {name: draw(either(value, VALUES)) for name, value in good.items()} | draw(
        st.dictionaries(TEXTS, VALUES, max_size=1)
    )
    found = draw(st.sampled_from([good, odd, [odd, good], draw(VALUES)]))
    return path, draw(either(kind, st.sampled_from(KINDS))), json.dumps(found).encode("utf-8", "replace")


def _values(records: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return records.map(lambda record: record[1] or b"")


def bodies(pipeline: str) -> st.SearchStrategy[Body]:
    start_s = now_ms() // 60_000 * 60
    block, report = blocks(pipeline, CHECKPOINTS, start_s), reports(pipeline, "mid", CHECKPOINTS, start_s)
    return st.one_of(
        st.tuples(st.just("/v1/blocks"), st.just(BLOCKS_TYPE), framed(block | damaged(block))),
        st.tuples(st.just("/v1/reports"), st.just(REPORT_TYPE), _values(report | damaged(report))),
        documents(pipeline),
        st.tuples(
            st.sampled_from(["/v1/blocks", "/v1/beacons", "/v1/reports", "/v1/traces"]),
            st.sampled_from(KINDS),
            st.binary(max_size=200),
        ),
    )


def records_of(collector: Collector, pipelines: Container[str]) -> Counter[tuple[str, bytes]]:
    """How many records there are of these pipelines' emitters. Each is one that the aggregator takes: what it would set
    aside, the collector has refused."""
    found: Counter[tuple[str, bytes]] = Counter()
    for _, _, key, value in read_all(collector.bootstrap, BEACONS):
        if key.partition(b"/")[0].decode() in pipelines:
            block = check_block(key, value, now_ms(), pipelines)
            found[block.pipeline, block.emitter] += 1
    for _, _, _, value in read_all(collector.bootstrap, REPORTS):
        if pipeline_of_report(value) in pipelines:
            report = read_report(value)
            assert all(tally.window_start % 60 == 0 <= tally.window_start for tally in report.tallies)
            found[report.pipeline, report.emitter] += 1
    return found


@pytest.mark.timeout(180 + ODD_BODIES // 10)
def test_nothing_that_one_token_sends_harms_another(collector: Collector, pipeline: str) -> None:
    odd = f"odd-{uuid.uuid4().hex[:8]}"
    assert (
        collector.client.put(f"/v1/pipelines/{odd}", content=DEFINITION.replace("NAME", odd), headers=YAML).status_code
        == 201
    )
    tokens = {name: create(collector.store, name) for name in (odd, pipeline)}
    for name in tokens:
        wait_for(lambda name=name: collector.client.get(f"/v1/pipelines/{name}/intake").status_code == 401)  # type: ignore[misc]
    headers = {"Authorization": f"Bearer {tokens[odd][1]}"}
    answers: Counter[int] = Counter()
    sent: Counter[tuple[str, int]] = Counter()
    with Emitter(pipeline, "mid", collector=collector.url, token=tokens[pipeline][1]) as emitter:

        @settings(
            max_examples=ODD_BODIES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(bodies(odd) | bodies(pipeline))
        def send(body: Body) -> None:
            path, kind, content = body
            answer: httpx2.Response = collector.client.post(
                path, content=content, headers=headers | {"Content-Type": kind}
            )
            assert answer.status_code in ANSWERS, (body, answer.text)
            answers[answer.status_code] += 1
            message = f"m-{len(sent)}"
            assert emitter.received(message, now_ms())
            sent["mid.in", hash_id(message)] += 1

        send()
        assert emitter.flush(30)
        assert (emitter.stats().dropped, emitter.stats().errors) == (0, 0)
    assert_exact(collector, emitter, sent)
    written = records_of(collector, {odd, pipeline})
    assert {sender for name, sender in written if name == pipeline} == {emitter.id}
    assert any(name == odd for name, _ in written)
    print(dict(answers), written.total(), "records")
    assert answers[202] > 0 < answers[422]
    assert collector.process.is_running()
    assert collector.client.get("/healthz").status_code == 200
    for token, _ in tokens.values():
        revoke(collector.store, token.id)
