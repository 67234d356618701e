"""What a sender can cause is charged to its token before the work is done, and holds up nobody else.

The routes are the collector's own, on a log in memory and tokens that no database keeps.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import struct
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import numpy as np
import pytest
import zstandard
from fastapi import FastAPI, Response
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from structlog.testing import capture_logs

from collector import beacons, intake, runs, traces
from collector import services as services_module
from collector.access import RATE_WINDOW_S, Access
from collector.batches import BeaconBatch, Seen
from collector.bodies import MAX_OBJECTS, UNIT_BYTES, Bodies
from collector.emitters import Emitters
from collector.fairness import INLINE_BYTES, Workers
from collector.idempotency import Repeats
from collector.intake import report_of_json
from collector.log_writer import Writer
from collector.metadata_cache import MetadataCache, Snapshot
from collector.metrics import CollectorMetrics
from collector.models import MAX_MEMBERS, read_batch
from collector.runs import MAX_SPAN_S
from collector.services import CollectorServices
from collector.spans.otlp import MAX_SPANS
from collector.task_runs import read_reports
from lagloss import Emitter, MemoryOutlet
from lagloss.wire.format import BLOCKS_TYPE, REPORT_TYPE, BeaconBlock, encode_block, hash_id
from lagloss_server.net import problem_details as problems
from lagloss_server.net.problem_details import Problem
from lagloss_server.store.tokens import Token, hash_secret

JSON = "application/json"
PROTOBUF = "application/x-protobuf"
EVENTS = "application/cloudevents-batch+json"
NOW_MS = time.time_ns() // 1_000_000
PEER = ("127.0.0.1", 50_000)


class Intake:
    """The collector's routes, for tokens `lagloss_NAME_s` of a pipeline NAME each, at these rates."""

    def __init__(self, **rates: int | None) -> None:
        knowledge = MetadataCache(None)
        tokens = {name: Token(name, name, "intake", rate, hash_secret("s"), 0) for name, rate in rates.items()}
        knowledge._snapshot = Snapshot(math.inf, tokens)
        log, workers = MemoryOutlet(), Workers()

        def make(pipeline: str, node: str, first: bool) -> Emitter:
            return Emitter(pipeline, node, outlet=lambda: log, first=first, final=False, close_on_sigterm=False)

        self.services = CollectorServices(
            knowledge,
            Access(knowledge),
            Bodies(),
            Writer(lambda: log, 10),
            Emitters(make, 10, workers),
            Repeats(),
            CollectorMetrics(),
            workers,
        )
        self.app = FastAPI()
        problems.install(self.app, "the collector")
        for routes in (beacons, traces, intake, runs):
            routes.add_routes(self.app, self.services)

        @self.app.get("/livez")
        async def live() -> Any:
            return Response("{}")

    def run(self, requests: Callable[[httpx2.AsyncClient], Awaitable[Any]]) -> Any:
        async def go() -> Any:
            while not self.services.writer.partitions:
                await asyncio.sleep(0.01)
            async with _client(self.app) as client:
                answer = await requests(client)
            await self.services.emitters.close()
            return answer

        return asyncio.run(go())

    def post(self, *requests: dict[str, Any]) -> list[httpx2.Response]:
        """Answers to requests that are sent one after the other."""

        async def send(client: httpx2.AsyncClient) -> list[httpx2.Response]:
            return [await client.request("POST", **request) for request in requests]

        answers: list[httpx2.Response] = self.run(send)
        return answers


@asynccontextmanager
async def _client(app: FastAPI) -> Any:
    transport = httpx2.ASGITransport(app, client=PEER)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
        yield client


def request(url: str, kind: str, content: bytes, token: str = "", **headers: str) -> dict[str, Any]:
    known = {"Authorization": f"Bearer lagloss_{token}_s"} if token else {}
    return {"url": url, "content": content, "headers": {"Content-Type": kind, **known, **headers}}


def field(number: int, content: bytes) -> bytes:
    """A message in a field of another, in protobuf."""
    size, length = len(content), bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + content


def empty_spans(number: int) -> bytes:
    return field(1, field(2, field(2, b"") * number))


def json_list(head: str, items: str, number: int, tail: str) -> bytes:
    return f"{head}{','.join([items] * number)}{tail}".encode()


def members(number: int) -> str:
    return ",".join(f'"{name:x}":1' for name in range(number))


def batch(beacons: int, pipeline: str = "p", **more: Any) -> bytes:
    seen = [{"checkpoint": "in", "message_id": f"m-{at}", "event_time": NOW_MS} for at in range(beacons)]
    return json.dumps({"pipeline": pipeline, "node": "n", "beacons": seen, **more}).encode()


def small_block(pipeline: str = "p") -> bytes:
    ids = np.array([hash_id("m")], np.uint64)
    start_s = NOW_MS // 60_000 * 60
    block = BeaconBlock(
        pipeline=pipeline,
        checkpoint="n.in",
        window_start=start_s,
        partitions=8,
        emitter=bytes(16),
        seq=1,
        id_hash=ids,
        lag_ms=np.zeros(1, np.float32),
    )
    return encode_block(block)


def framed(*blocks: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(block)) + block for block in blocks)


MANY = MAX_OBJECTS - 3
"""Objects of a list, with those around them as many as are parsed at all."""
HOSTILE: dict[str, dict[str, Any]] = {
    "spans": request("/v1/traces", PROTOBUF, gzip.compress(empty_spans(500_000)), **{"Content-Encoding": "gzip"}),
    "lists of spans": request("/v1/traces", PROTOBUF, field(1, b"") * 500_000),
    "attributes": request("/v1/traces", PROTOBUF, field(1, field(2, field(2, field(9, b"") * 500_000)))),
    "spans in JSON": request(
        "/v1/traces", JSON, json_list('{"resourceSpans":[{"scopeSpans":[{"spans":[', "{}", MANY, "]}]}]}")
    ),
    "beacons": request("/v1/beacons", JSON, batch(12_000)),
    "bad beacons": request("/v1/beacons", JSON, json_list('{"pipeline":"p","node":"n","beacons":[', "{}", MANY, "]}")),
    "members": request(
        "/v1/beacons", JSON, f'{{"pipeline":"p","node":"n","beacons":[{{{members(90_000)}}}]}}'.encode()
    ),
    "events": request("/v1/beacons", EVENTS, json_list("[", "{}", MANY, "]")),
    "tallies": request("/v1/reports", JSON, json_list('{"tallies":[', "{}", MANY, "]}")),
    "labels": request("/v1/reports", JSON, f'{{"labels":{{{members(90_000)}}}}}'.encode()),
    "reports of runs": request("/v1/task-runs", JSON, json_list('{"reports":[', "{}", MANY, "]}")),
    "blocks": request("/v1/blocks", BLOCKS_TYPE, framed(*[small_block()] * 4_000)),
    "empty blocks": request("/v1/blocks", BLOCKS_TYPE, b"\0" * (4 << 20)),
    "no report": request("/v1/reports", REPORT_TYPE, b"\xff" * (1 << 20)),
}
"""Bodies of which little on the wire, or in memory, is much to do."""


async def slowest_look(client: httpx2.AsyncClient, work: Awaitable[Any]) -> tuple[float, Any]:
    """The longest wait for /livez while this work is done, and its result. In seconds of what this process computed
    meanwhile, which is the time that it takes where nothing else runs."""
    slowest, task = 0.0, asyncio.ensure_future(work)
    while not task.done():
        began = time.process_time()
        assert (await client.get("/livez")).status_code == 200
        slowest = max(slowest, time.process_time() - began)
        await asyncio.sleep(0.005)
    return slowest, await task


@pytest.mark.parametrize("name", HOSTILE)
def test_no_body_holds_up_a_look_at_livez(name: str) -> None:
    async def go(client: httpx2.AsyncClient) -> tuple[float, list[int]]:
        posts = [client.request("POST", **HOSTILE[name]) for _ in range(4)]
        slowest, answers = await slowest_look(client, asyncio.gather(*posts))
        return slowest, [answer.status_code for answer in answers]

    for _ in range(3):  # once is enough: a collection of garbage may fall into any one
        slowest, statuses = Intake().run(go)
        assert set(statuses) <= {200, 202, 400, 413, 422}
        if slowest < 0.2:
            return
    pytest.fail(f"/livez waited for {slowest:.3f} s")


def test_a_request_has_so_many_spans_at_most() -> None:
    spans = json_list('{"resourceSpans":[{"scopeSpans":[{"spans":[', "{}", MAX_SPANS + 1, "]}]}]}")
    few = [
        request("/v1/traces", PROTOBUF, empty_spans(MAX_SPANS)),
        request("/v1/traces", JSON, spans[:-10] + b"]}]}]}"),
    ]
    many = [request("/v1/traces", PROTOBUF, empty_spans(MAX_SPANS + 1)), request("/v1/traces", JSON, spans)]
    lists = [request("/v1/traces", PROTOBUF, field(1, b"") * (MAX_SPANS + 1))]
    assert [answer.status_code for answer in Intake().post(few[0], *many, *lists)] == [200, 413, 413, 413]


def test_json_of_too_many_objects_is_not_parsed() -> None:
    braces = b"{" * (MAX_OBJECTS + 1)
    kinds = {"/v1/traces": JSON, "/v1/beacons": JSON, "/v1/reports": JSON, "/v1/task-runs": JSON, "/v1/lineage": JSON}
    posts = [request(url, kind, braces) for url, kind in [*kinds.items(), ("/v1/beacons", EVENTS)]]
    assert [answer.status_code for answer in Intake().post(*posts)] == [413] * 6


def test_an_event_has_so_many_members_at_most() -> None:
    event = {"specversion": "1.0", "id": "e", "source": "/pipelines/p/nodes/n", "type": "io.lagloss.beacon.in"}
    event |= {"subject": "m", "eventtime": NOW_MS}

    def sent(number: int) -> dict[str, Any]:
        more = {f"x{at}": 1 for at in range(number - len(event))}
        return request("/v1/beacons", EVENTS, json.dumps([event | more]).encode())

    answers = Intake().post(sent(MAX_MEMBERS), sent(MAX_MEMBERS + 1))
    assert [answer.status_code for answer in answers] == [202, 422]
    assert "members in an object" in answers[1].text


def test_too_many_spans_cost_as_much_as_many() -> None:
    many = request("/v1/traces", PROTOBUF, empty_spans(MAX_SPANS + 1), "p")
    answers = Intake(p=2 * MAX_SPANS // RATE_WINDOW_S).post(many, many)
    assert [(answer.status_code, answer.json()["title"]) for answer in answers] == [
        (413, "Too many spans"),
        (429, "Rate limit exceeded"),
    ]


def test_reports_of_runs_are_charged_whosever_they_are() -> None:
    report = {"dag": "d", "run_id": "r", "due_at": NOW_MS, "run": {"state": "running", "at": NOW_MS}}
    post = request("/v1/task-runs", JSON, json.dumps({"reports": [report] * 6}).encode(), "p")
    assert [answer.status_code for answer in Intake(p=1).post(post, post)] == [503, 429]  # 503: there is no database


def test_a_question_about_hours_has_so_many_and_is_charged_also_if_it_is_refused() -> None:
    to_s = NOW_MS // 60_000 * 60

    def asked(rate: int, from_: float | str, times: int) -> list[int]:
        async def ask(client: httpx2.AsyncClient) -> list[int]:
            url, headers = f"/v1/pipelines/p/whole?from={from_}&to={to_s}", {"Authorization": "Bearer lagloss_p_s"}
            return [(await client.get(url, headers=headers)).status_code for _ in range(times)]

        statuses: list[int] = Intake(p=rate).run(ask)
        return statuses

    assert asked(10, to_s - MAX_SPAN_S, 3) == [503, 503, 429]  # 503: there is no database
    assert asked(10, to_s - MAX_SPAN_S - 60, 3) == [422, 422, 429]
    assert asked(1, to_s - MAX_SPAN_S, 2) == [503, 429]  # never more than may come at all
    for bad in (to_s + 60, to_s, "soon"):
        assert asked(1, bad, 11) == [422] * 10 + [429]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_token_pays_for_what_it_sends_before_it_is_read(name: str) -> None:
    """At the rate of one beacon a second none of these is read at all, and at another none can be sent on and on."""
    slow = Intake(p=1)
    paid = {**HOSTILE[name], "headers": HOSTILE[name]["headers"] | {"Authorization": "Bearer lagloss_p_s"}}
    began = time.process_time()
    assert {answer.status_code for answer in slow.post(*[paid] * 5)} <= {413, 429}
    assert time.process_time() - began < 0.5
    if len(HOSTILE[name]["content"]) > 100_000:
        ample = Intake(p=300)
        assert {413, 429} & {answer.status_code for answer in ample.post(*[paid] * 8)}


def test_refused_requests_cost_as_accepted_ones_do() -> None:
    refused = [
        request("/v1/beacons", JSON, b"{", "p"),
        request("/v1/traces", PROTOBUF, b"\xff", "p"),
        request("/v1/reports", REPORT_TYPE, b"x", "p"),
        request("/v1/blocks", BLOCKS_TYPE, b"x", "p"),
        request("/v1/beacons", JSON, b"x", "p", **{"Content-Encoding": "gzip"}),
        request("/v1/beacons", JSON, batch(1, "another"), "p"),
    ]
    statuses = [answer.status_code for answer in Intake(p=1, q=1).post(*refused, *refused, batch_of("q", 1))]
    assert all(400 <= status < 429 for status in statuses[:10])
    assert statuses[10:] == [429, 429, 202]  # and no other token pays


def test_the_log_says_whose_requests_were_refused_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = [request("/v1/beacons", JSON, b"{", token) for token in ("p", "p", "q", "p")]

    def logged() -> list[tuple[str, str, int, int]]:
        with capture_logs() as entries:
            Intake(p=100, q=100).post(*bad, request("/v1/beacons", JSON, b"{}", "unknown"))
        refused = [entry for entry in entries if entry["event"] == "requests refused"]
        return [(entry["pipeline"], entry["token"], entry["status"], entry["number"]) for entry in refused]

    first = logged()
    assert [(pipeline, number) for pipeline, _, _, number in first] == [("p", 1), ("q", 1), (None, 1)]
    assert [token is None for _, token, _, _ in first] == [False, False, True]
    assert [status for _, _, status, _ in first] == [422, 422, 401]
    monkeypatch.setattr(services_module, "LOGGED_EACH_S", 0.0)
    assert [pipeline for pipeline, _, _, _ in logged()] == ["p", "p", "q", "p", None]


def batch_of(token: str, beacons: int, **more: Any) -> dict[str, Any]:
    return request("/v1/beacons", JSON, batch(beacons, token, **more), token)


def test_spans_are_charged_whatever_they_are() -> None:
    given = Intake(p=10)
    post = request("/v1/traces", PROTOBUF, empty_spans(60), "p")
    assert [answer.status_code for answer in given.post(post, post)] == [200, 429]
    assert [
        answer.status_code for answer in Intake(p=10).post(request("/v1/traces", PROTOBUF, empty_spans(101), "p"))
    ] == [413]


@pytest.mark.parametrize("name", ["bad beacons", "members", "labels", "tallies", "reports of runs"])
def test_the_errors_of_a_body_take_up_little_memory(name: str) -> None:
    """340,000 empty beacons took 1.4 GB, and minutes, before the first of their errors was named."""
    read = {"/v1/beacons": read_batch, "/v1/reports": report_of_json, "/v1/task-runs": read_reports}
    sent = HOSTILE[name]
    tracemalloc.start()
    try:
        with pytest.raises(Problem) as raised:
            read[sent["url"]](sent["content"])
        assert tracemalloc.get_traced_memory()[1] < 40 * len(sent["content"])
    finally:
        tracemalloc.stop()
    assert raised.value.status == 422


def test_many_small_blocks_are_charged_before_they_are_decoded() -> None:
    blocks = framed(*[small_block("p")] * 60, b"not a block")
    post = request("/v1/blocks", BLOCKS_TYPE, blocks, "p")
    assert [answer.status_code for answer in Intake(p=10).post(post, post)] == [422, 429]


def test_answers_to_numbered_batches_are_not_kept() -> None:
    given, emitter = Intake(), "3b1f8a52-30a7-4f6e-9a37-1f53b4b6a001"
    numbered = [
        request("/v1/beacons", JSON, batch(50, emitter=emitter, seq=seq), **{"Idempotency-Key": str(seq)})
        for seq in (1, 2, 2)
    ]
    answers = given.post(*numbered)
    assert [answer.status_code for answer in answers] == [202] * 3
    assert len(answers[0].json()["tallies"]) == 1
    assert len(given.services.repeats) == 0
    plain = request("/v1/beacons", JSON, batch(1), **{"Idempotency-Key": "1"})
    assert given.post(plain)[0].status_code == 202
    assert len(given.services.repeats) == 1


def test_one_callers_work_waits_for_its_own_and_not_for_anothers() -> None:
    async def go() -> list[str]:
        workers, ended = Workers(threads=2), list[str]()

        async def work(caller: str) -> None:
            await workers.run(caller, None, lambda: time.sleep(0.03))
            ended.append(caller)

        loud = [asyncio.create_task(work("loud")) for _ in range(10)]
        await asyncio.sleep(0)
        await asyncio.gather(*loud, *(work(name) for name in ("quiet", "other")))
        workers.close()
        return ended

    ended = asyncio.run(go())
    assert {"quiet", "other"} <= set(ended[:6])
    assert ended.count("loud") == 10


@pytest.mark.parametrize("name", ["beacons", "spans in JSON", "tallies", "reports of runs", "blocks"])
def test_nothing_is_done_for_a_client_that_has_gone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, began, statuses = HOSTILE[name], list[Any](), list[int]()
    monkeypatch.setattr(ThreadPoolExecutor, "submit", lambda self, work: began.append(work))
    messages = [{"type": "http.request", "body": sent["content"], "more_body": False}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    headers = [(key.lower().encode(), value.encode()) for key, value in sent["headers"].items()]
    scope = {"type": "http", "method": "POST", "path": sent["url"], "headers": headers, "client": PEER}
    asyncio.run(Intake().app({**scope, "query_string": b"", "scheme": "http", "server": PEER}, receive, send))
    assert (began, statuses[0], messages) == ([], 503, [])


def test_small_work_takes_no_thread() -> None:
    assert asyncio.run(Workers().run("p", INLINE_BYTES, lambda: asyncio.get_running_loop().is_running()))


def test_an_emitter_with_too_many_tallies_makes_room_for_one_without() -> None:
    log, made = MemoryOutlet(), list[Emitter]()

    def make(pipeline: str, node: str, first: bool) -> Emitter:
        made.append(Emitter(pipeline, node, outlet=lambda: log, first=first, final=False, close_on_sigterm=False))
        return made[-1]

    async def go() -> None:
        all_of_them = Emitters(make, 10, Workers(), max_tallies=100)
        await all_of_them.put(BeaconBatch("quiet", "n", False, [Seen("in", "m", NOW_MS)]))
        for number in range(8):
            seen = [Seen("in", "m", NOW_MS, replay=f"{number}-{at}") for at in range(40)]
            await all_of_them.put(BeaconBatch("loud", "n", False, seen))
            assert sum(each.emitter.tallies for each in all_of_them._served.values()) <= 140
        await all_of_them.close()

    asyncio.run(go())
    assert [emitter.pipeline for emitter in made].count("quiet") == 1
    assert 2 < len(made) < 8
    assert sum(emitter.stats().sent for emitter in made) == 8 * 40 + 1
    assert not any(emitter.stats().dropped for emitter in made)


# -- any body ----------------------------------------------------------------------------------------------------------


PACK: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor(write_content_size=False).compress,
}


@given(
    pieces=st.lists(st.tuples(st.binary(max_size=20), st.integers(0, 20_000)), max_size=4),
    encoding=st.sampled_from([*PACK]),
    cut=st.integers(0, 3) | st.none(),
    max_bytes=st.sampled_from([1_000, 100_000]),
    budget=st.integers(0, 300),
)
@settings(max_examples=150, deadline=None)
def test_no_more_is_done_with_a_body_than_was_charged(
    pieces: list[tuple[bytes, int]], encoding: str, cut: int | None, max_bytes: int, budget: int
) -> None:
    """Done: what was taken into memory. The last piece that is unpacked is looked at before it is charged."""
    content = b"".join(piece * number for piece, number in pieces)[:200_000]
    packed = PACK[encoding](content)
    sent = packed if cut is None else packed[: -cut or None]
    charged, taken = 0, 0

    async def charge(units: int) -> None:
        nonlocal charged
        if charged + units > budget:
            raise OverflowError
        charged += units

    class Watched(Bodies):
        def _take(self, caller: str, size: int) -> int:
            nonlocal taken
            taken = max(taken, size) if encoding != "identity" else taken + size
            return super()._take(caller, size)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": sent, "more_body": False}

    headers = [(b"content-encoding", encoding.encode()), (b"content-length", str(len(sent)).encode())]
    scope = {"type": "http", "method": "POST", "headers": headers}

    async def read() -> bytes:
        async with Watched().read(Request(scope, receive), max_bytes, "p", charge) as body:
            return body

    try:
        body = asyncio.run(read())
    except Exception:  # refused, or too dear
        body = b""
    assert charged <= budget
    assert charged * UNIT_BYTES >= max(len(body), taken)


@given(
    kinds=st.lists(
        st.sampled_from(["good", "bad", "spans", "report", "blocks", "run", "packed"]), min_size=1, max_size=12
    ),
    sizes=st.lists(st.integers(1, 30), min_size=12, max_size=12),
    rate=st.integers(1, 5),
)
@settings(max_examples=25, deadline=None)
def test_no_token_gets_more_done_than_its_rate_allows(kinds: list[str], sizes: list[int], rate: int) -> None:
    """Done: beacons accepted, and KiB of bodies that were not refused unread."""
    posts = []
    for kind, size in zip(kinds, sizes, strict=False):
        posts.append(
            {
                "good": lambda size: (batch_of("p", size), size),
                "bad": lambda size: (request("/v1/beacons", JSON, b"[" * (size * 700), "p"), 0),
                "spans": lambda size: (request("/v1/traces", PROTOBUF, empty_spans(size), "p"), size),
                "report": lambda size: (request("/v1/reports", JSON, b'{"a":' + b"1" * size * 500, "p"), 0),
                "blocks": lambda size: (
                    request("/v1/blocks", BLOCKS_TYPE, framed(*[small_block()] * size), "p"),
                    size,
                ),
                "run": lambda size: (request("/v1/task-runs", JSON, b"{}" + b" " * size * 900, "p"), 0),
                "packed": lambda size: (
                    request(
                        "/v1/beacons", JSON, gzip.compress(b" " * size * 1_100), "p", **{"Content-Encoding": "gzip"}
                    ),
                    0,
                ),
            }[kind](size)
        )
    answers = Intake(p=rate).post(*[post for post, _ in posts])
    read = [
        (items, len(gzip.decompress(post["content"]) if "Content-Encoding" in post["headers"] else post["content"]))
        for (post, items), answer in zip(posts, answers, strict=True)
        if answer.status_code not in (413, 429)
    ]
    allowed = rate * RATE_WINDOW_S
    assert sum(items for items, _ in read) <= allowed
    assert sum(-(-size // UNIT_BYTES) for _, size in read) <= allowed
