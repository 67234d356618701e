"""A small application behind the dashboard's login, served on a real port, and people who ask it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
from fastapi import FastAPI, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.responses import HTMLResponse, PlainTextResponse
from starlette.types import ASGIApp

from dashboard.login import protect
from dashboard.queries.services import Services
from dashboard.request.current_user import asking, require_operator
from lagloss_server.base.errors import NotAllowed
from lagloss_server.base.settings import Settings
from lagloss_server.net.http_server import HttpServer
from lagloss_server.ops.processes import choose_port
from lagloss_server.store.store import Store

PASSWORD = "correct horse battery"
SCRIPT_HASH = "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
NAVIGATION = {"accept": "text/html", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def application() -> FastAPI:
    """Says who asks, in each way that the dashboard is asked."""
    app = FastAPI(openapi_url=None)

    @app.get("/")
    async def page() -> HTMLResponse:
        person = asking()
        form = '<form method="post" action="/logout"><button>Log out</button></form>'
        return HTMLResponse(f"<h1>Dashboard</h1><p id=who>{person.name}, {person.role}</p>{form}")

    @app.get("/api/v1/who")
    async def who() -> dict[str, str]:
        return {"name": asking().name, "role": asking().role}

    @app.get("/api/v1/sees")
    async def sees() -> list[str] | None:
        pipelines = asking().grants.sees
        return None if pipelines is None else sorted(pipelines)

    @app.post("/api/v1/act")
    async def act(request: Request) -> Response:
        try:
            return PlainTextResponse(require_operator().name)
        except NotAllowed as error:
            return PlainTextResponse(str(error), 403)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok", "detail": "PostgreSQL 18 at db-7"}

    @app.get("/assets/lagloss.css")
    async def asset() -> Response:
        return Response("", media_type="text/css", headers={"Cache-Control": "public, max-age=600"})

    @app.get("/fault")
    async def fault() -> None:
        raise RuntimeError("a bug")

    @app.websocket("/ws")
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        try:
            while True:
                await socket.receive_text()
                await socket.send_text(f"{asking().name}, {asking().role}")
        except WebSocketDisconnect:
            pass

    return app


def _small(services: Services) -> ASGIApp:
    return protect(application(), services, [SCRIPT_HASH])


@contextmanager
def serving(store: Store, make: Callable[[Services], ASGIApp] = _small, **given: Any) -> Iterator[str]:
    """The small application behind a login with these settings, or another; its address. PORT in a setting becomes the
    port."""
    port = choose_port("the login under test")
    values = {
        name: value.replace("PORT", str(port)) if isinstance(value, str) else value for name, value in given.items()
    }
    services = Services(store, Settings(database_url="", **values))
    server = HttpServer(make(services), "127.0.0.1", port, websockets=True)
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
        services.threads.close()


@contextmanager
def browser_like(url: str) -> Iterator[httpx2.Client]:
    """A client that keeps cookies and says where its forms are from, as browsers do."""
    with httpx2.Client(base_url=url, headers={"origin": url}, timeout=20) as client:
        yield client


def log_in(client: httpx2.Client, name: str = "ann", password: str = PASSWORD, next_path: str = "/") -> httpx2.Response:
    return client.post("/login", data={"name": name, "password": password, "next": next_path})
