"""The HTTP servers of all five services, in this process. Their Kafka and PostgreSQL hang: they never answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from psycopg.conninfo import make_conninfo

from aggregator.results.newest import read_newest
from aggregator.service import Aggregator
from alerting.assembly import build
from collector.app import create_app
from dashboard.queries.services import Services
from dashboard.web.server import create_server
from lagloss_server.base.settings import Settings
from lagloss_server.net.health_server import serve_health
from lagloss_server.net.http_server import HttpServer
from lagloss_server.ops.processes import choose_port
from lagloss_server.store.store import Store
from taps.service import TapService

HOST = "127.0.0.1"
SERVICES = ("aggregator", "alerting", "collector", "dashboard", "taps")


@contextmanager
def five_services() -> Iterator[dict[str, int]]:
    """The port of each."""
    with ExitStack() as stack:
        silent, hang_up = silent_server()
        url, kafka = f"postgresql://lagloss@{HOST}:{silent}/lagloss", f"{HOST}:{silent}"
        settings = Settings(database_url=url, kafka_bootstrap=kafka, alert_webhook_url="http://127.0.0.1:1/")
        stores = [Store(url), Store(url), Store(make_conninfo(url, connect_timeout=1))]
        for store in stores:
            stack.callback(store.close)
        ports = {name: choose_port(name) for name in SERVICES}
        stack.callback(_aggregator(settings, stores[0], ports["aggregator"]))
        stack.callback(_alerting(settings, ports["alerting"]))
        taps = TapService(kafka, url)
        stack.callback(serve_health("lagloss taps", taps.metrics.registry, lambda: taps.trouble, HOST, ports["taps"]))
        services = Services(stores[1], settings)
        stack.callback(services.threads.close)
        page = HttpServer(create_server(services), HOST, ports["dashboard"], keep_alive_s=75, websockets=True)
        stack.callback(in_thread(page))
        collector = HttpServer(
            create_app(kafka, stores[2], database_url=url), HOST, ports["collector"], max_body_bytes=None
        )
        stack.callback(in_thread(collector))
        for port in ports.values():
            _await_port(port)
        yield ports
        hang_up()


def _aggregator(settings: Settings, store: Store, port: int) -> Callable[[], None]:
    aggregator = Aggregator(settings)
    showing = aggregator.metrics.showing(lambda: read_newest(store, store.pipelines()))
    showing.__enter__()
    health = (
        aggregator.health_problem,
        HOST,
        port,
        aggregator.health_note,
        aggregator.turns.hung,
        aggregator.stands_by,
    )
    return serve_health("lagloss aggregator", aggregator.metrics.registry, *health)


def _alerting(settings: Settings, port: int) -> Callable[[], None]:
    alerting = build(settings)
    return serve_health("lagloss alerting", alerting.metrics.registry, lambda: alerting.alerter.trouble, HOST, port)


def in_thread(server: HttpServer) -> Callable[[], None]:
    """Run a server in a thread; a function that ends it."""
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()

    def end() -> None:
        server.should_exit = True
        thread.join(10)

    return end


def answer(connection: socket.socket) -> bytes:
    """All that comes until the server hangs up; what was cut off by that may be missing."""
    received = b""
    with suppress(ConnectionError):
        while data := connection.recv(65_536):
            received += data
    return received


def _await_port(port: int) -> None:
    ends = time.monotonic() + 30
    while True:
        try:
            socket.create_connection((HOST, port), 1).close()
        except OSError:
            assert time.monotonic() < ends, f"nothing listens on {port}"
            time.sleep(0.02)
        else:
            return


def silent_server() -> tuple[int, Callable[[], None]]:
    """Start a server that hangs: it takes connections, and what is sent to it, and says nothing. Return its port, and
    a function that ends it."""
    server = socket.create_server((HOST, 0), backlog=128)
    taken: list[socket.socket] = []

    def take() -> None:
        with suppress(OSError):
            while True:
                taken.append(server.accept()[0])

    def end() -> None:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        for connection in taken:
            connection.close()

    threading.Thread(target=take, daemon=True).start()
    return server.getsockname()[1], end
