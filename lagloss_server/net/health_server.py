"""Health and metrics over HTTP, from a thread, for a service that answers no other requests."""

from __future__ import annotations

import threading
from collections.abc import Callable

from prometheus_client import CollectorRegistry


def serve_health(
    title: str,
    registry: CollectorRegistry,
    trouble: Callable[[], str | None],
    host: str,
    port: int,
    note: Callable[[], str] = lambda: "ok",
) -> Callable[[], None]:
    """Serve /healthz (200 with `note()`, or 503 with the text of `trouble()`) and /metrics; return a function that
    stops it."""
    # Imported here, at the start of the service: importing this module for its name should not wait for them.
    import uvicorn
    from fastapi import FastAPI, Response
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    app = FastAPI(title=title)

    @app.get("/healthz")
    def healthz() -> Response:
        found = trouble()
        return Response(found, 503) if found is not None else Response(note())

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    # in a thread other than the main one, uvicorn leaves signals alone
    server = uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, name="http", daemon=True)
    thread.start()

    def end() -> None:
        server.should_exit = True
        thread.join(5)

    return end
