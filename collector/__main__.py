"""`python -m collector`: serves until SIGTERM or SIGINT."""

from __future__ import annotations

import sys

import uvicorn

from collector.app import create_app
from lagloss import logs
from lagloss.errors import LaglossError
from lagloss.processes import choose_port
from lagloss.settings import Settings


def main() -> int:
    settings = Settings.load()
    logs.configure(settings)
    try:
        app = create_app(settings.require_kafka())
        port = choose_port("The collector", settings.collector_port)
    except LaglossError as error:
        print(f"collector: {error}", file=sys.stderr)  # noqa: T201  # the log is not set up before the settings are read
        return error.exit_code
    print(f"collector: http://{settings.bind_address}:{port}", flush=True)  # noqa: T201
    uvicorn.run(
        app,
        host=settings.bind_address,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=3,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
