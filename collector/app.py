"""The collector's routes: they translate between HTTP and the SDK."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from collector.emitters import MAX_BUFFERED, Busy, Emitters, misplaced
from collector.metrics import Metrics
from collector.models import Accepted, Batch, Problem
from lagloss.emitter import Emitter

MAX_BODY_BYTES: Final = 1024 * 1024
ACK_TIMEOUT_S: Final = 10.0
RETRY_AFTER_S: Final = 5
HEALTH_TIMEOUT_S: Final = 2.0


class TooLarge(Exception):
    """The body is longer than a batch may be."""


def create_app(bootstrap: str, *, ack_timeout_s: float = ACK_TIMEOUT_S, emitters: Emitters | None = None) -> FastAPI:
    """The application, on the broker at `bootstrap`.

    Args:
        ack_timeout_s: how long a batch waits for the broker before it is answered 503.
        emitters: instead of its own, for tests.
    """
    metrics = Metrics()
    served = emitters or Emitters(
        lambda pipeline, node, first: Emitter(
            pipeline, node, bootstrap, first=first, final=False, max_buffered=MAX_BUFFERED
        )
    )
    metrics.emitters.set_function(lambda: len(served))
    answers = _health_of(bootstrap)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await served.close()

    app = FastAPI(title="lagloss collector", lifespan=lifespan)

    @app.post(
        "/v1/beacons",
        status_code=202,
        response_model=Accepted,
        responses={code: {"model": Problem} for code in (413, 422, 503)},
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _batch_schema()}}}},
    )
    async def post_beacons(request: Request) -> Response:
        """Takes a batch whole or not at all; 202 once the broker has acknowledged every beacon of it."""
        response = await _answer(request, served, metrics, ack_timeout_s)
        metrics.batches.labels(response.status_code).inc()
        return response

    @app.get("/healthz")
    async def healthz() -> Response:
        """200 while the broker answers."""
        found = await asyncio.to_thread(answers)
        return JSONResponse({"kafka": found or "ok"}, 503 if found else 200)

    @app.get("/metrics")
    async def show_metrics() -> Response:
        """For Prometheus."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


async def _answer(request: Request, served: Emitters, metrics: Metrics, ack_timeout_s: float) -> Response:
    try:
        batch = Batch.model_validate_json(await _body(request))
    except TooLarge:
        response = problem(413, "Batch too large", f"expected at most {MAX_BODY_BYTES} bytes; send smaller batches")
        response.headers["Connection"] = "close"  # the rest of the body is not worth reading
        return response
    except ValidationError as error:
        return _invalid(error)
    except ClientDisconnect:
        return problem(400, "Incomplete body", "the client went away")
    received = time.time()
    if (position := misplaced(batch, received * 1000)) is not None:
        detail = "expected an event_time of the last 7 days, ahead of the clock by less than " + (
            "60 s at the first node" if batch.first else "a day"
        )
        return problem(422, "Bad beacon", detail, position, "event_time")
    started = time.perf_counter()
    try:
        await served.put(batch, ack_timeout_s)
    except Busy as error:
        response = problem(503, "Not acknowledged", f"{error}; send the batch again later")
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
        return response
    metrics.acknowledgement.observe(time.perf_counter() - started)
    metrics.beacons.inc(len(batch.beacons))
    return JSONResponse(Accepted(accepted=len(batch.beacons)).model_dump(), 202)


async def _body(request: Request) -> bytes:
    """The body, read no further than it may be long, whatever its Content-Length says."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > MAX_BODY_BYTES:
        raise TooLarge
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise TooLarge
    return bytes(body)


def problem(
    status: int, title: str, detail: str, position: int | None = None, field: str | None = None
) -> JSONResponse:
    """An RFC 9457 document."""
    document = Problem(title=title, status=status, detail=detail, position=position, field=field)
    return JSONResponse(document.model_dump(exclude_none=True), status, media_type="application/problem+json")


def _invalid(error: ValidationError) -> JSONResponse:
    """Names the first thing that is wrong."""
    found = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = found["loc"]
    if place[:1] == ("beacons",) and len(place) > 1 and isinstance(place[1], int):
        field = ".".join(map(str, place[2:])) or None
        return problem(422, "Bad beacon", found["msg"], place[1], field)
    return problem(422, "Bad batch", found["msg"], field=".".join(map(str, place)) or None)


def _batch_schema() -> dict[str, Any]:
    return Batch.model_json_schema(ref_template="#/components/schemas/{model}") | {"title": "Batch"}


def _health_of(bootstrap: str) -> Callable[[], str | None]:
    """Asks the broker; what is wrong, or None."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def ask() -> str | None:
        try:
            admin.list_topics(timeout=HEALTH_TIMEOUT_S)
        except KafkaException as error:
            return str(error.args[0])
        return None

    return ask
