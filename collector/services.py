"""Services shared by the routes, and the steps that all of them take."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import structlog
from fastapi import Request, Response
from sqlalchemy.exc import DataError

from collector.access import Access, Caller
from collector.batches import BeaconBatch
from collector.bodies import Bodies
from collector.emitters import Emitters
from collector.fairness import Workers
from collector.idempotency import Repeats
from collector.log_writer import Writer
from collector.metadata_cache import MetadataCache
from collector.metrics import CollectorMetrics
from collector.spans.pairing import Pairing
from lagloss.broker.topics import BEACONS
from lagloss_server.base.errors import UnreadableDefinition
from lagloss_server.net.problem_details import Problem, busy
from lagloss_server.store.engine import AWAY

BINARY: Final = {"type": "string", "format": "binary"}
"""The OpenAPI schema of a body that is no text."""
LOGGED_EACH_S: Final = 60.0
log = structlog.get_logger()
T = TypeVar("T")
R = TypeVar("R", bound=Response)


class RefusedRequests:
    """Logs whose requests are refused: metrics, which need no login, have no names. Of a token, route and status the
    first, then how many there were since, once a minute at most."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, int], tuple[float, int]] = {}
        """When it was last logged, and the number since."""

    def note(self, caller: Caller, route: str, status: int) -> None:
        """Count a refused request."""
        key, now = (caller.scope, route, status), time.monotonic()
        logged_at, count = self._seen.get(key, (-math.inf, 0))
        if now - logged_at < LOGGED_EACH_S:
            self._seen[key] = logged_at, count + 1
            return
        self._seen[key] = now, 0
        log.warning(
            "requests refused",
            pipeline=caller.tenant or None,
            token=caller.scope or None,
            route=route,
            status=status,
            number=count + 1,
        )


@dataclass(frozen=True, slots=True)
class CollectorServices:
    """One of each a process."""

    knowledge: MetadataCache
    access: Access
    bodies: Bodies
    writer: Writer
    emitters: Emitters
    repeats: Repeats
    metrics: CollectorMetrics
    workers: Workers
    pairing: Pairing = field(default_factory=Pairing)
    refusals: RefusedRequests = field(default_factory=RefusedRequests)

    def body(self, request: Request, caller: Caller, max_bytes: int) -> AbstractAsyncContextManager[bytes]:
        """Return the request's body as `Bodies.read` does, charged to its sender."""
        return self.bodies.read(request, max_bytes, caller.tenant, partial(self.access.charge, caller))

    async def work(self, caller: Caller, body: bytes, work: Callable[[], T], size: int = 0) -> T:
        """Return what `work` on a body returns, as `Workers.run` does. `size`: of what is in it, if that is more."""
        return await self.workers.run(caller.tenant, max(len(body), size), work, caller.has_gone)

    async def emit(self, batch: BeaconBatch) -> None:
        """Put a batch without a number by the collector's own emitter of its node, as `Emitters.put` does."""
        started = time.perf_counter()
        await self.emitters.put(batch)
        self.metrics.acknowledgement.observe(time.perf_counter() - started)
        self.metrics.beacons.inc(len(batch.seen))

    def partitions(self) -> int:
        """Return the number of partitions of the beacons topic; a Problem (503) while it is unknown."""
        if not self.writer.partitions:
            raise busy(f"cannot read the number of partitions of {BEACONS} from the broker; send again later")
        return self.writer.partitions

    async def answered(self, route: str, request: Request, handler: Callable[[Request], Awaitable[R]]) -> R:
        """Return the handler's response, or raise its problem; counted by status."""
        try:
            response = await handler(request)
        except Problem as error:
            problem = error
        except UnreadableDefinition as error:
            problem = busy(str(error))
        else:
            self.metrics.requests.labels(route, response.status_code).inc()
            return response
        self.metrics.requests.labels(route, problem.status).inc()
        self.refusals.note(getattr(request.state, "caller", Caller(None)), route, problem.status)
        # without the frames of the handler: they hold the body, for as long as the client takes to read the response
        problem.__context__ = None
        raise problem.with_traceback(None) from None


async def ask(question: Callable[[], T]) -> T:
    """Return the answer to a question that PostgreSQL is asked in a thread.

    Raises:
        Problem: 503 while it is away, 422 for a value that it cannot hold.
    """
    try:
        return await asyncio.to_thread(question)
    except AWAY:
        raise busy("PostgreSQL cannot be reached; send again later") from None
    except DataError as error:
        detail = str(error.orig).partition("\n")[0]
        raise Problem(422, "Bad value", f"expected values that PostgreSQL can store: {detail}") from None


def media_type(request: Request, *expected: str) -> str:
    """Return the body's type, without parameters.

    Raises:
        Problem: 415 for another, and for none: a browser leaves it out of what a page of any site may send.
    """
    type_ = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if type_ not in expected:
        raise Problem(415, "Unsupported media type", f"expected Content-Type {' or '.join(expected)}, found {type_!r}")
    return type_


def same_request(request: Request, kind: str, body: bytes) -> bytes:
    """Return what makes a request the same as another, by its content type and body."""
    return b"\0".join((request.url.path.encode(), kind.encode(), body))


def body_document(schemas: dict[str, Any]) -> dict[str, Any]:
    """Describe for OpenAPI the bodies that a route takes, by their type."""
    content = {kind: {"schema": _inlined(schema, schema.get("$defs", {}))} for kind, schema in schemas.items()}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(part: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema without references into itself, which would lead nowhere in a larger document."""
    if isinstance(part, list):
        return [_inlined(item, definitions) for item in part]
    if not isinstance(part, dict):
        return part
    target = part.get("$ref")
    whole = part | definitions[target.removeprefix("#/$defs/")] if isinstance(target, str) else part
    hidden = ("$ref", "$defs", "$schema")
    return {name: _inlined(item, definitions) for name, item in whole.items() if name not in hidden}
