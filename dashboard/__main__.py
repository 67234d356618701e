"""`python -m dashboard`: serves the page until SIGTERM or Ctrl-C."""

from __future__ import annotations

import sys

import uvicorn

from dashboard.app import create_server
from lagloss import logs
from lagloss.errors import LaglossError
from lagloss.processes import choose_port
from lagloss.settings import Settings
from lagloss.store import Store


def main() -> int:
    settings = Settings.load()
    logs.configure(settings)
    try:
        store = Store(settings.require_database())
        port = choose_port("The dashboard", settings.dashboard_port)
    except LaglossError as error:
        print(f"dashboard: {error}", file=sys.stderr)  # noqa: T201  # the log is not set up before the settings are read
        return error.exit_code
    print(f"dashboard: http://{settings.bind_address}:{port}", flush=True)  # noqa: T201
    uvicorn.run(
        create_server(store),
        host=settings.bind_address,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=3,  # browsers keep a WebSocket open
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
