"""Health and metrics over HTTP, from a thread, for a service that answers no other requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from starlette.requests import Request

from lagloss_server.net.clients import is_local, is_loopback
from lagloss_server.net.exposition import exposed
from lagloss_server.net.origins import Origins, OwnOrigins
from lagloss_server.net.shared_call import SharedCall

if TYPE_CHECKING:
    from fastapi import FastAPI

LEASE: Final = "lease"
"""What a stand-by lacks, as `/readyz?exclude=` names it; the Kubernetes API server has the same parameter."""
READY_S: Final = 3.0
"""Time after which a service that has not said whether it is ready is not."""


def serve_health(
    title: str,
    registry: CollectorRegistry,
    trouble: Callable[[], str | None],
    host: str,
    port: int,
    note: Callable[[], str] = lambda: "ok",
    hung: Callable[[], str | None] = lambda: None,
    stands_by: Callable[[], bool] = lambda: False,
    own_url: str = "",
    url_setting: str = "",
    more: Callable[[FastAPI], None] = lambda _: None,
) -> Callable[[], None]:
    """Serve readiness and liveness; return a function that stops it. `own_url`: its address as others reach it, which
    `url_setting` gives. `more` adds routes.

    /readyz and /healthz: 200 with `note()`, or 503 with the text of `trouble()`, as of a stand-by. With
    `?exclude=lease`, 200 also for a process that `stands_by()`: all that it lacks is the lease. A peer that is not on
    this machine gets that text up to the first ": ": in what follows servers name hosts and users. /livez: 200, or 503
    with the text of `hung()`: only a restart would help. That must not wait for anything, as the others may.
    /metrics: for Prometheus.
    """
    # Imported here, at the start of the service: importing this module for its name should not wait for them.
    from fastapi import FastAPI, Header, Response

    from lagloss_server.net.http_server import HttpServer

    app = FastAPI(title=title, docs_url=None, redoc_url=None, openapi_url=None)
    origins = Origins(own_url, loopback_only=is_loopback(host), setting=url_setting)
    app.add_middleware(OwnOrigins, origins=origins)
    state = SharedCall(lambda: (trouble(), note(), stands_by()), "health")

    @app.get("/healthz")
    @app.get("/readyz")
    async def ready(request: Request, exclude: str = "") -> Response:
        try:
            answer, all_is_well, lacks_lease = await state.result_of(READY_S)
        except TimeoutError:
            return Response("the service does not respond, so its state is unknown", 503)
        if answer is None:
            return Response(all_is_well)
        text = answer if is_local(request) else answer.partition(": ")[0]
        return Response(text, 200 if exclude == LEASE and lacks_lease else 503)

    @app.get("/livez")
    async def live() -> Response:
        hung_ = hung()
        return Response(hung_, 503) if hung_ is not None else Response("ok")

    @app.get("/metrics")
    async def metrics(accept: str = Header("")) -> Response:
        body, content_type = await asyncio.to_thread(exposed, registry, accept)
        return Response(body, media_type=content_type)

    more(app)
    server = HttpServer(app, host, port)  # in a thread other than the main one, uvicorn leaves signals alone
    thread = threading.Thread(target=server.run, name="http", daemon=True)
    thread.start()

    def end() -> None:
        server.should_exit = True
        thread.join(5)

    return end
