"""The middleware in front of a FastAPI application: what each answer means."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

import google_crc32c
import httpx2
import numpy as np
import pytest
from fastapi import Depends, FastAPI, HTTPException, Request
from opentelemetry.sdk.trace import TracerProvider

from lagloss import Emitter, MemoryOutlet
from lagloss.asgi import BeaconMiddleware, current_identity
from lagloss.broker.topics import BEACONS
from lagloss.identity import Identity, from_headers, from_json
from lagloss.wire.format import decode_block
from lagloss.wire.traces import TraceContext, find_traces

NOW_MS = time.time_ns() // 1_000_000
HEADERS = {"lagloss-id": "a", "lagloss-event-time": str(NOW_MS)}


class Service:
    """An application behind the middleware, and what its emitter sent."""

    def __init__(self, *, emitter: Mapping[str, Any] | None = None, **options: Any) -> None:
        self.log = MemoryOutlet()
        self.emitter = Emitter("orders", "shop", outlet=lambda: self.log, **emitter or {})
        app = FastAPI()

        @app.post("/orders")
        def take_order(identity: Annotated[Identity | None, Depends(current_identity)]) -> Any:
            return identity

        @app.post("/refused")
        async def refuse(request: Request) -> None:
            await request.body()
            raise HTTPException(422)

        @app.post("/read")
        async def read(request: Request) -> None:
            await request.body()

        @app.post("/broken")
        def break_down() -> None:
            raise RuntimeError("broken")

        self.middleware = BeaconMiddleware(app, self.emitter, **options)

    def post(self, path: str, method: str = "POST", **request: Any) -> httpx2.Response:
        async def ask() -> httpx2.Response:
            transport = httpx2.ASGITransport(self.middleware, raise_app_exceptions=False)
            async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
                return await client.request(method, path, **{"headers": HEADERS, **request})

        return asyncio.run(ask())

    def traces(self) -> list[TraceContext]:
        """The traces of all that was sent. Ends the emitter."""
        self.emitter.close()
        blocks = [block for block in map(decode_block, self.log.values(BEACONS)) if block.traces]
        assert {block.checkpoint for block in blocks} <= {"shop.in"}
        return [found for one in blocks for found in find_traces(one.traces or b"", np.arange(one.count)).values()]

    def checksums(self) -> dict[str, list[int]]:
        """The checksums that were sent, by checkpoint. Ends the emitter."""
        self.emitter.close()
        blocks = map(decode_block, self.log.values(BEACONS))
        return {block.checkpoint: block.payload_crc.tolist() for block in blocks if block.payload_crc is not None}

    def beacons(self) -> Counter[str]:
        """Of all that was sent, by checkpoint and reason. Ends the emitter."""
        self.emitter.close()
        blocks = [decode_block(value) for value in self.log.values(BEACONS)]
        return Counter(
            {block.checkpoint + (f" {block.reason}" if block.reason else ""): block.count for block in blocks}
        )


@pytest.mark.parametrize(
    ("path", "exit_"),
    [
        ("/orders", "shop.out"),
        ("/refused", "shop.filtered http 422"),
        ("/nowhere", "shop.filtered http 404"),
        ("/broken", "shop.filtered http 500"),
    ],
)
def test_a_request_is_in_once_and_leaves_by_what_it_is_answered(path: str, exit_: str) -> None:
    service = Service()
    service.post(path, json={"number": 1})
    assert service.emitter._beacons.in_flight_since() is None
    assert service.beacons() == {"shop.in": 1, exit_: 1}


def test_success_may_mean_nothing_since_a_producer_says_out_itself() -> None:
    service = Service(success="nothing")
    service.post("/orders")
    assert service.beacons() == {"shop.in": 1}


def test_only_the_paths_and_methods_named_are_messages() -> None:
    service = Service(paths="/orders/.*|/refused", methods=["post"])
    service.post("/orders")
    service.post("/refused", method="PUT")
    service.post("/refused")
    assert service.beacons() == {"shop.in": 1, "shop.filtered http 422": 1}


def test_a_handler_is_told_which_message_it_handles() -> None:
    service = Service()
    assert service.post("/orders").json() == ["a", NOW_MS, None, None]
    service.emitter.close()


@pytest.mark.parametrize(
    ("path", "exit_"), [("/orders", "shop.out"), ("/refused", "shop.filtered")], ids=["out", "filtered"]
)
def test_a_request_that_a_replay_brings_says_so_at_both_ends(path: str, exit_: str) -> None:
    service = Service()
    service.post(path, headers={**HEADERS, "lagloss-replay": "again"})
    service.emitter.close()
    blocks = [decode_block(value) for value in service.log.values(BEACONS)]
    assert {(block.checkpoint, block.replay) for block in blocks} == {("shop.in", "again"), (exit_, "again")}


TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
TRACED = {**HEADERS, "traceparent": f"00-{TRACE.trace_id}-{TRACE.span_id}-01"}


@pytest.mark.parametrize(
    ("emitter", "variable", "is_kept"),
    [
        ({"first": True}, "", True),
        ({"first": True}, "off", False),
        ({"first": True, "traces": True}, "off", True),
        ({"first": True, "traces": False}, "", False),
        ({"first": True, "ids": "hash"}, "", False),
        ({"first": True, "ids": "hash", "traces": True}, "", True),
        ({}, "", False),
        ({"traces": True}, "", False),
    ],
)
def test_a_requests_trace_is_kept_at_the_first_node_where_it_is_wanted(
    emitter: dict[str, Any], variable: str, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAGLOSS_TRACES", variable)
    service = Service(emitter=emitter)
    service.post("/orders", headers=TRACED)
    assert service.traces() == ([TRACE] if is_kept else [])


def test_a_trace_that_begins_in_this_service_is_that_of_its_active_span() -> None:
    service = Service(emitter={"first": True}, missing="draw")
    with TracerProvider().get_tracer("test").start_as_current_span("POST") as span:
        service.post("/orders", headers={})
        service.post("/orders", headers={"traceparent": TRACED["traceparent"]})
        service.post("/orders", headers={"traceparent": "00-nonsense-01"})
    context = span.get_span_context()
    active = TraceContext(f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert sorted(service.traces()) == sorted([active, TRACE, active])


def test_without_a_span_a_request_has_no_trace() -> None:
    service = Service(emitter={"first": True}, missing="draw")
    service.post("/orders", headers={"traceparent": "00-nonsense-01"})
    service.post("/orders", headers={})
    assert service.traces() == []


def test_a_request_without_identity_is_served_and_counted() -> None:
    service = Service()
    assert service.post("/orders", headers={}).json() is None
    assert service.middleware.skipped == 1
    assert service.beacons() == {}


def test_an_identity_in_the_body_is_found_and_the_application_reads_it_all_the_same() -> None:
    service = Service(identity=from_json("id", "at"), max_body_bytes=100)
    body = {"id": "b", "at": NOW_MS}
    assert service.post("/orders", json=body).json() == ["b", NOW_MS, None, None]
    assert service.post("/refused", json={**body, "long": "x" * 100}).status_code == 422
    assert service.middleware.skipped == 1
    assert service.beacons() == {"shop.in": 1, "shop.out": 1}


def test_a_sender_that_gets_no_answer_has_its_message_back() -> None:
    service = Service()

    async def silent(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    service.middleware.app = silent
    with pytest.raises(AssertionError):
        asyncio.run(_ask_without_answer(service))
    assert service.beacons() == {"shop.in": 1, "shop.filtered no response": 1}


async def _ask_without_answer(service: Service) -> None:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(service.middleware), base_url="http://shop") as client:
        await client.post("/orders", headers=HEADERS)


def test_the_end_of_the_application_closes_the_emitter() -> None:
    service = Service()
    said: list[str] = []
    events = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> dict[str, Any]:
        return next(events)

    async def send(event: Any) -> None:
        said.append(event["type"])

    asyncio.run(service.middleware({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send))
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert not service.emitter.received("b", NOW_MS)


async def parts() -> AsyncIterator[bytes]:
    for part in (b"12345", b"", b"6789"):
        yield part


@pytest.mark.parametrize("identity", [from_headers, from_json("id", "at")])
@pytest.mark.parametrize(("checksum", "places"), [(False, set()), ("in", {"shop.in"}), (True, {"shop.in", "shop.out"})])
def test_checksums_of_the_body_are_sent_where_asked(checksum: Any, places: set[str], identity: Any) -> None:
    body = b'{"id": "a", "at": %d}' % NOW_MS
    service = Service(checksum=checksum, identity=identity)
    service.post("/refused", content=body)
    service.post("/read", content=body)
    crc = google_crc32c.value(body)
    assert service.checksums() == {place: [crc] * (1 + (place == "shop.in")) for place in places}


def test_a_body_that_comes_in_parts_has_the_checksum_of_the_whole() -> None:
    service = Service(checksum=True)
    service.post("/read", content=parts())
    assert service.checksums() == {"shop.in": [0xE3069283], "shop.out": [0xE3069283]}


def test_a_body_that_the_application_did_not_read_has_no_checksum() -> None:
    service = Service(checksum=True)
    service.post("/nowhere", content=b"x")
    assert service.checksums() == {}
