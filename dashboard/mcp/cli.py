"""`lagloss mcp`, which `lagloss` runs as `python -m dashboard.mcp.cli`."""

from __future__ import annotations

import signal

import anyio
import typer

from dashboard.mcp.server import create_server
from dashboard.mcp.stdio import serve_stdio
from dashboard.queries.services import Services
from dashboard.request.current_user import LOCAL, answer_for
from lagloss_server.base import logs
from lagloss_server.base.settings import Settings
from lagloss_server.cli.main import run_app
from lagloss_server.cli.options import DataDir, open_store

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def mcp(data_dir: DataDir = None) -> None:
    """Serve read-only tools to an agent by the Model Context Protocol, on stdin and stdout, until the end of input.

    Logs go to stderr. Exit codes: 0 end of input, 2 usage, 3 PostgreSQL cannot be reached at the start.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler would wait for the thread that reads stdin
    settings = Settings.load(data_dir=data_dir)
    logs.configure(settings)
    with open_store(settings) as store:
        services = Services(store, settings)
        answer_for(LOCAL)  # who runs this has the database's password
        try:
            anyio.run(serve_stdio, create_server(services.scoped()))
        finally:
            services.threads.close()


def main() -> None:
    run_app(app, "lagloss mcp")


if __name__ == "__main__":
    main()
