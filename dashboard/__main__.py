"""`python -m dashboard`: serves the pages, and mails reports, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from typing import Final

from sqlalchemy.exc import OperationalError

from dashboard.login import check_binding
from dashboard.queries.services import Services
from dashboard.reports.schedule.file import load_reports
from dashboard.reports.schedule.scheduler import Scheduler
from dashboard.web.server import create_server
from lagloss.errors import LaglossError
from lagloss_server.base import logs
from lagloss_server.base.ending import end_in_time
from lagloss_server.base.settings import Settings
from lagloss_server.net.http_server import HttpServer
from lagloss_server.ops.processes import choose_port
from lagloss_server.store.migrate import demand_newest
from lagloss_server.store.store import Store

STATEMENT_TIMEOUT: Final = "300s"
"""Reports read months in one statement."""
_COLLECT_AFTER: Final = 50_000
"""New objects until garbage is looked for: by Python's own 700, half of the time to read ten thousand pipelines is."""
_KEEP_ALIVE_S: Final = 75
"""Pages refresh each few seconds."""


def main() -> int:
    gc.set_threshold(_COLLECT_AFTER, 20, 50)
    try:
        settings = Settings.load()
        logs.configure(settings)
        end_in_time()
        check_binding(settings)
        store = Store(settings.require_database(), statement_timeout=STATEMENT_TIMEOUT)
        services = Services(store, settings)
        with suppress(OperationalError):  # it starts without PostgreSQL, too
            demand_newest(services.store.engine)
        file = load_reports(settings)
        server = create_server(services, Scheduler(services.store, services.settings, file) if file else None)
        port = choose_port("The dashboard", settings.dashboard_port)
    except LaglossError as error:
        print(f"dashboard: {error}", file=sys.stderr)  # noqa: T201  # the log is not set up before the settings are read
        return error.exit_code
    print(f"dashboard: http://{settings.bind_address}:{port}", flush=True)  # noqa: T201
    HttpServer(server, settings.bind_address, port, keep_alive_s=_KEEP_ALIVE_S, websockets=True).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
