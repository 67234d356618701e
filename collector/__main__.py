"""`python -m collector`: serves until SIGTERM or SIGINT."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final

from psycopg.conninfo import make_conninfo
from sqlalchemy.exc import OperationalError

from collector.app import create_app
from lagloss.errors import LaglossError
from lagloss_server.base import logs
from lagloss_server.base.ending import end_in_time
from lagloss_server.base.settings import Settings
from lagloss_server.net.http_server import HttpServer
from lagloss_server.ops.processes import choose_port
from lagloss_server.store.migrate import demand_newest
from lagloss_server.store.store import Store

SWITCH_S: Final = 0.0005
"""The event loop waits this long for the interpreter while an emitter's thread packs; Python's default is 5 ms. A
quarter more requests by it, with 32 connections."""
DATABASE_TIMEOUT_S: Final = 5
STATEMENT_TIMEOUT: Final = "30s"


def main() -> int:
    try:
        settings = Settings.load()
        logs.configure(settings)
        end_in_time()
        database_url = settings.require_database() if settings.database_url else ""
        app = create_app(
            settings.require_kafka(),
            _store(database_url) if database_url else None,
            bind_address=settings.bind_address,
            own_url=settings.collector_url,
            database_url=database_url,
            spool_dir=settings.spool_dir,
        )
        port = choose_port("the collector", settings.collector_port)
    except LaglossError as error:
        print(f"collector: {error}", file=sys.stderr)  # noqa: T201  # the log is not set up before the settings are read
        return error.exit_code
    sys.setswitchinterval(SWITCH_S)
    print(f"collector: http://{settings.bind_address}:{port}", flush=True)  # noqa: T201
    HttpServer(app, settings.bind_address, port, max_body_bytes=None).run()  # each of its routes has a limit
    return 0


def _store(database_url: str) -> Store:
    store = Store(make_conninfo(database_url, connect_timeout=DATABASE_TIMEOUT_S), statement_timeout=STATEMENT_TIMEOUT)
    with suppress(OperationalError):  # it starts without PostgreSQL, too
        demand_newest(store.engine)
    return store


if __name__ == "__main__":
    sys.exit(main())
