"""The receiver: stands in for the vendors. It takes batches, and fails as faults say.

What it takes it notes in the ledger before it answers. A fault `receiver:VENDOR:ANSWER:SHARE` hits a share of the
*requests* while it is on; which ones is drawn anew for each, so that a try after it may end otherwise. An answer in the
400s or 500s takes nothing; `slow` takes all of it, later; `timeout` takes all of it and never says so; `reset` closes
the connection in the middle of the answer; `partial` takes the first half. A fault `refuse:VENDOR:SHARE` hits *events*:
no request that holds one of them is ever taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from pipeline_under_test.harness.faults import Fault
from pipeline_under_test.harness.ledger import LedgerEntry, place_of_vendor
from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.nodes.serving import beating
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import VENDORS

RECEIVER: Final = "receiver"
FOREVER_S: Final = 60.0
"""How long `timeout` says nothing; connectors wait for less."""


class VendorEvent(BaseModel):
    """An event as a vendor gets it; `event_time` in ms since the epoch."""

    event_id: str
    event_time: int
    content: dict[str, object]


class VendorBatch(BaseModel):
    events: list[VendorEvent]


class RequestReceiver:
    """Events that the vendors have taken, and how they answer now."""

    def __init__(self, settings: ReferenceSettings) -> None:
        self.requests: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()
        self._injections = settings.injections()
        self._faults = {vendor: settings.faults_of(vendor) for vendor in VENDORS}
        self._ledger = settings.ledger_of(RECEIVER)
        self._random = random.Random(settings.seed)

    def fault(self, vendor: str) -> Fault | None:
        """Return the fault that this request meets: of those that are on, the first that hits it."""
        for injection in self._injections.holding("receiver", time.time() * 1000):
            fault = injection.fault
            if fault.node == vendor and self._random.random() < fault.share:
                return fault
        return None

    def refuses(self, vendor: str, events: Sequence[VendorEvent]) -> bool:
        """Return whether one of these events is such that this request, and any other with it, is refused."""
        plan = self._faults[vendor].plan
        return any(plan(Event(event.event_id, event.event_time, b"")).refused for event in events)

    def take(self, vendor: str, events: Sequence[VendorEvent]) -> None:
        """Take these events, for good."""
        place = place_of_vendor(vendor)
        self._ledger.write(LedgerEntry("delivered", event.event_id, event.event_time, place) for event in events)
        self.taken[vendor] += len(events)

    def close(self) -> None:
        self._ledger.close()


def create_app(settings: ReferenceSettings) -> FastAPI:
    """`POST /v1/VENDOR/events` takes a batch; `GET /counts` gives, by vendor, requests, whatever became of them, and
    events taken, repeated ones included."""
    receiver = RequestReceiver(settings)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with beating(settings):
            yield
        receiver.close()

    app = FastAPI(title=RECEIVER, lifespan=lifespan)

    @app.post("/v1/{vendor}/events")
    async def accept(vendor: str, batch: VendorBatch) -> Response:
        if vendor not in VENDORS:
            return JSONResponse({"detail": f"expected one of the vendors {', '.join(VENDORS)}"}, HTTPStatus.NOT_FOUND)
        receiver.requests[vendor] += 1
        if fault := receiver.fault(vendor):
            return await _answer(receiver, vendor, batch.events, fault)
        if receiver.refuses(vendor, batch.events):
            return Response(status_code=HTTPStatus.BAD_REQUEST)
        return _taken(receiver, vendor, batch.events)

    @app.get("/counts")
    async def counts() -> dict[str, dict[str, int]]:
        return {vendor: {"requests": receiver.requests[vendor], "events": receiver.taken[vendor]} for vendor in VENDORS}

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    return app


def _taken(receiver: RequestReceiver, vendor: str, events: Sequence[VendorEvent]) -> Response:
    receiver.take(vendor, events)
    return JSONResponse({"accepted": list(range(len(events)))})


async def _answer(receiver: RequestReceiver, vendor: str, events: Sequence[VendorEvent], fault: Fault) -> Response:
    """Return the answer that a fault makes of a request."""
    match fault.answer:
        case "slow":
            await asyncio.sleep(fault.seconds)
            return _taken(receiver, vendor, events)
        case "timeout":
            receiver.take(vendor, events)
            await asyncio.sleep(FOREVER_S)
            return JSONResponse({}, HTTPStatus.GATEWAY_TIMEOUT)
        case "reset":
            return StreamingResponse(_torn(), headers={"Content-Length": "1000"})
        case "partial":
            half = len(events) // 2
            receiver.take(vendor, events[:half])
            return JSONResponse({"accepted": list(range(half))}, HTTPStatus.MULTI_STATUS)
        case "429" if fault.seconds:
            return Response(status_code=HTTPStatus.TOO_MANY_REQUESTS, headers={"Retry-After": f"{fault.seconds:.0f}"})
        case status if status.startswith("2"):
            return _taken(receiver, vendor, events)
        case status:
            return Response(status_code=int(status))


def _torn() -> Iterator[bytes]:
    """Less than was promised: the server closes the connection, and the client has half an answer."""
    yield b"{"
