"""`python -m dashboard`: serves the pages, and mails reports, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from dashboard.report.schedule_file import load_reports
from dashboard.report.scheduler import Scheduler
from dashboard.server import create_server
from dashboard.services import Services
from lagloss import logs
from lagloss.errors import LaglossError
from lagloss.processes import choose_port
from lagloss.settings import Settings
from lagloss.store import Store


def main() -> int:
    settings = Settings.load()
    logs.configure(settings)
    try:
        services = Services(Store(settings.require_database()), settings)
        file = load_reports(settings)
        scheduler = Scheduler(services, file) if file else None
        port = choose_port("The dashboard", settings.dashboard_port)
    except LaglossError as error:
        print(f"dashboard: {error}", file=sys.stderr)  # noqa: T201  # the log is not set up before the settings are read
        return error.exit_code
    print(f"dashboard: http://{settings.bind_address}:{port}", flush=True)  # noqa: T201
    server = create_server(services)
    if scheduler is not None:
        _run_beside(server, scheduler)
    uvicorn.run(
        server,
        host=settings.bind_address,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=3,  # browsers keep a WebSocket open
    )
    services.threads.close()
    return 0


def _run_beside(server: FastAPI, scheduler: Scheduler) -> None:
    """The scheduler runs for as long as the server does. (uvicorn ends by the signal that it got: what stands behind it
    is not reached.)"""
    inner = server.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Any]:
        async with inner(app) as state:
            scheduler.start()
            try:
                yield state
            finally:
                await asyncio.to_thread(scheduler.stop)

    server.router.lifespan_context = lifespan


if __name__ == "__main__":
    sys.exit(main())
