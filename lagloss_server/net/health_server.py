"""Health and metrics over HTTP, from a thread, for a service that answers no other requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry
from starlette.requests import Request

from lagloss_server.net.clients import THIS_MACHINE, peer
from lagloss_server.net.exposition import exposed

LEASE: Final = "lease"
"""What a stand-by lacks, as `/readyz?exclude=` names it; the Kubernetes API server has the same parameter."""


def serve_health(
    title: str,
    registry: CollectorRegistry,
    trouble: Callable[[], str | None],
    host: str,
    port: int,
    note: Callable[[], str] = lambda: "ok",
    hung: Callable[[], str | None] = lambda: None,
    stands_by: Callable[[], bool] = lambda: False,
) -> Callable[[], None]:
    """Serve readiness and liveness; return a function that stops it.

    /readyz and /healthz: 200 with `note()`, or 503 with the text of `trouble()`, as of a stand-by. With
    `?exclude=lease`, 200 also for a process that `stands_by()`: all that it lacks is the lease. A peer that is not on
    this machine gets that text up to the first ": ": in what follows servers name hosts and users. /livez: 200, or 503
    with the text of `hung()`: only a restart would help. /metrics: for Prometheus.
    """
    # Imported here, at the start of the service: importing this module for its name should not wait for them.
    import uvicorn
    from fastapi import FastAPI, Header, Response

    app = FastAPI(title=title, docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/healthz")
    @app.get("/readyz")
    def ready(request: Request, exclude: str = "") -> Response:
        found = trouble()
        if found is None:
            return Response(note())
        text = found if peer(request) in THIS_MACHINE else found.partition(": ")[0]
        return Response(text, 200 if exclude == LEASE and stands_by() else 503)

    @app.get("/livez")
    def live() -> Response:
        found = hung()
        return Response(found, 503) if found is not None else Response("ok")

    @app.get("/metrics")
    def metrics(accept: str = Header("")) -> Response:
        body, content_type = exposed(registry, accept)
        return Response(body, media_type=content_type)

    # in a thread other than the main one, uvicorn leaves signals alone
    server = uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning", log_config=None))
    thread = threading.Thread(target=server.run, name="http", daemon=True)
    thread.start()

    def end() -> None:
        server.should_exit = True
        thread.join(5)

    return end
