"""The collector's application: its services, put together, and its routes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from msgspec import UNSET, Struct, UnsetType

from collector import beacons, definitions, intake, runs, traces
from collector.access import Access
from collector.bodies import Bodies
from collector.emitters import MAX_BUFFERED, Emitters
from collector.fairness import Workers
from collector.idempotency import Repeats
from collector.log_writer import Writer
from collector.metadata_cache import MetadataCache
from collector.metrics import CollectorMetrics
from collector.services import CollectorServices
from lagloss.sdk.emitter import Emitter
from lagloss.sdk.outlets.kafka import KafkaOutlet
from lagloss.sdk.spool.recovery import RecoveryThread
from lagloss_server.base.turns import Turns
from lagloss_server.net import problem_details as problems
from lagloss_server.net.clients import is_loopback
from lagloss_server.net.exposition import exposed
from lagloss_server.net.origins import Origins, OwnOrigins
from lagloss_server.net.responses import Json, json_content
from lagloss_server.net.server_watch import kafka, postgresql, watching
from lagloss_server.store.store import Store

ACK_TIMEOUT_S: Final = 10.0
KAFKA: Final = "Kafka"
POSTGRESQL: Final = "PostgreSQL"
CLOSE_S: Final = 2.0


class Servers(Struct, omit_defaults=True):
    """`ok`, or what is wrong with each server. `set_aside`: rows that are unreadable; `knowledge_age_s`: of tokens and
    definitions where they are stale, null before the first."""

    kafka: str
    postgresql: str
    set_aside: list[str] | UnsetType = UNSET
    knowledge_age_s: float | UnsetType | None = UNSET


class Alive(Struct):
    """Nothing: that it answers is all there is to know."""


def create_app(
    bootstrap: str,
    store: Store | None = None,
    *,
    bind_address: str = "127.0.0.1",
    own_url: str = "",
    database_url: str = "",
    spool_dir: str = "",
    ack_timeout_s: float = ACK_TIMEOUT_S,
) -> FastAPI:
    """Return the application, on the broker at `bootstrap` and the database of `store`.

    Args:
        store: where tokens and definitions are; without one, clients on this machine alone are served, whatever
            pipeline they name.
        bind_address: where it listens; on anything but loopback, clients without a token are refused.
        own_url: its address as clients reach it.
        database_url: of the database of `store`, to see that it answers.
        spool_dir: where batches of clients without an account of their own are synced, and then answered 202; empty:
            nowhere.
        ack_timeout_s: how long a batch waits for the broker before it is answered 503.
    """
    turns, servers = Turns(), {KAFKA: kafka(bootstrap)}
    if store is not None:
        servers[POSTGRESQL] = postgresql(database_url)
    services = _services(bootstrap, Access(MetadataCache(store), bind_address), spool_dir, ack_timeout_s)
    origins = Origins(own_url, loopback_only=is_loopback(bind_address), setting="LAGLOSS_COLLECTOR_URL")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await services.knowledge.refresh()
        keeping = asyncio.create_task(services.knowledge.keep_fresh())
        recovery = RecoveryThread(Path(spool_dir), lambda: KafkaOutlet(bootstrap)) if spool_dir else None
        if recovery is not None:
            recovery.start()  # of all nodes: acknowledged beacons arrive even if their node never sends again
        with watching(turns, servers):
            yield
        if recovery is not None:
            recovery.stop()
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping
        await asyncio.gather(services.emitters.close(), asyncio.to_thread(services.writer.close, CLOSE_S))
        services.workers.close()

    app = FastAPI(title="lagloss collector", lifespan=lifespan, docs_url=None, redoc_url=None)
    problems.install(app, "the collector")
    app.add_middleware(OwnOrigins, origins=origins)
    for resource in (beacons, traces, intake, definitions, runs):
        resource.add_routes(app, services)

    away = {"description": "Kafka or PostgreSQL cannot be reached", "content": json_content(Servers)}

    @app.get("/readyz", include_in_schema=False)
    @app.get("/healthz", responses={**problems.documented(422), 503: away})
    async def healthz(request: Request, exclude: str = "") -> Json[Servers]:
        """Return 200 while the broker and PostgreSQL respond and cached tokens and definitions are a few seconds old
        or less; with `exclude=postgresql`, while the broker responds and callers can be authenticated."""
        knowledge = services.knowledge
        of_kafka = turns.problem_of(KAFKA)
        of_postgresql = turns.problem_of(POSTGRESQL) or knowledge.error
        if exclude == "postgresql":
            is_well = of_kafka is None and knowledge.is_trusted
        else:
            is_well = of_kafka is None and of_postgresql is None and not knowledge.is_stale
        is_local = services.access.is_local(request)
        if not is_local:  # what servers say names hosts and users
            of_kafka, of_postgresql = of_kafka and "away", of_postgresql and "away"
        state = Servers(of_kafka or "ok", "not given" if knowledge.is_open else of_postgresql or "ok")
        if is_local and (set_aside := [str(row) for row in knowledge.unreadable]):
            state.set_aside = set_aside
        if knowledge.is_stale:
            age_s = knowledge.age_s
            state.knowledge_age_s = round(age_s, 1) if math.isfinite(age_s) else None
        return Json(state, 200 if is_well else 503)

    @app.get("/livez")
    async def live() -> Json[Alive]:
        """Return 200 while the process responds."""
        return Json(Alive())

    @app.get("/metrics", response_class=PlainTextResponse)
    async def show_metrics(request: Request) -> Response:
        """Return the metrics in the format of Prometheus."""
        body, content_type = exposed(services.metrics.registry, request.headers.get("accept", ""))
        return Response(body, media_type=content_type)

    return app


def _services(bootstrap: str, access: Access, spool_dir: str, ack_timeout_s: float) -> CollectorServices:
    metrics, knowledge = CollectorMetrics(), access.knowledge

    def make_emitter(pipeline: str, node: str, first: bool) -> Emitter:
        return Emitter(
            pipeline,
            node,
            bootstrap,
            first=first,
            final=False,
            max_buffered=MAX_BUFFERED,
            spool=spool_dir or None,
            close_on_sigterm=False,
        )

    workers = Workers()
    services = CollectorServices(
        knowledge,
        access,
        Bodies(),
        Writer(lambda: KafkaOutlet(bootstrap, {"client.id": "lagloss-collector"}), ack_timeout_s),
        Emitters(make_emitter, ack_timeout_s, workers),
        Repeats(),
        metrics,
        workers,
    )
    metrics.emitters.set_function(lambda: len(services.emitters))
    metrics.waiting_bytes.set_function(lambda: services.writer.waiting_bytes)
    metrics.waiting_beacons.set_function(lambda: services.emitters.waiting_beacons)
    metrics.waiting_spans.set_function(lambda: services.pairing.waiting)
    metrics.set_aside.counts = knowledge.unreadable.counts
    metrics.knowledge_age.set_function(lambda: 0.0 if knowledge.is_open else knowledge.age_s)
    return services
