"""The receiver: stands in for the vendors. It accepts batches, notes each event in the ledger, and counts."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator

from fastapi import FastAPI
from pydantic import BaseModel

from pipeline_under_test.ledger import Entry
from pipeline_under_test.settings import Settings

RECEIVER = "receiver"


class VendorEvent(BaseModel):
    """An event as a vendor gets it; `event_time` in ms since the epoch."""

    event_id: str
    event_time: int
    content: dict[str, object]


class VendorBatch(BaseModel):
    events: list[VendorEvent]


def create_app(settings: Settings) -> FastAPI:
    """`POST /v1/VENDOR/events` takes a batch; `GET /counts` gives events accepted by vendor, repeated ones included."""
    counts: Counter[str] = Counter()
    ledger = settings.ledger_of(RECEIVER)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        ledger.close()

    app = FastAPI(title=RECEIVER, lifespan=lifespan)

    @app.post("/v1/{vendor}/events")
    async def accept(vendor: str, batch: VendorBatch) -> dict[str, int]:
        ledger.write(Entry("delivered", event.event_id, event.event_time, f"vendor {vendor}") for event in batch.events)
        counts[vendor] += len(batch.events)
        return {"accepted": len(batch.events)}

    @app.get("/counts")
    async def totals() -> dict[str, int]:
        return dict(counts)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    return app
