"""What a client without a name can do to the HTTP server of each service: take no more than its share."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2
import pytest

from lagloss_server.net import exposition, http_server
from tests.support.five_services import HOST, SERVICES, answer, five_services

ROOT = Path(__file__).resolve().parents[4]
HEAD_S = 1.5
MANY = 20_000_000
"""Bytes: several times what the system buffers between two processes."""
SOON_S = 2.0
LINES = b"Host: 127.0.0.1\r\nAccept: */*\r\n"


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORWARDED_ALLOW_IPS", "*")
        patch.setattr(http_server, "HEAD_S", HEAD_S)
        patch.setattr(http_server, "BODY_S", HEAD_S)
        patch.setattr(http_server, "MAX_CONNECTIONS", 60)
        with five_services() as found:
            yield found


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def port(ports: dict[str, int], service: str) -> int:
    return ports[service]


def connected(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=20)


def status(received: bytes) -> int:
    return int(received.split(b" ", 2)[1]) if received.startswith(b"HTTP/1.1 ") else 0


def asked(port: int, request: bytes) -> tuple[int, bytes]:
    with connected(port) as connection:
        connection.sendall(request)
        received = answer(connection)
    return status(received), received


def get(port: int, path: str, timeout: float = 20, **headers: str) -> httpx2.Response:
    return httpx2.get(f"http://{HOST}:{port}{path}", headers={"connection": "close", **headers}, timeout=timeout)


def lives(port: int) -> bool:
    began = time.monotonic()
    return get(port, "/livez").status_code == 200 and time.monotonic() < began + SOON_S


def counted(port: int, metric: str, **labels: str) -> float:
    """A service's count, as its /metrics shows it; 0 before the first."""
    shown = ",".join(f'{name}="{value}"' for name, value in labels.items())
    lines = get(port, "/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{metric}{{{shown}}} "))


def refused(port: int, reason: str) -> float:
    return counted(port, "lagloss_http_refused_total", reason=reason)


CHUNKED = b"POST /livez HTTP/1.1\r\n" + LINES + b"Transfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "request line": (b"GET /", b"x" * 65_536),
    "one header": (b"GET /livez HTTP/1.1\r\n" + LINES + b"X-Long: ", b"x" * 65_536),
    "one header's name": (b"GET /livez HTTP/1.1\r\n" + LINES, b"x" * 65_536),
    "headers": (b"GET /livez HTTP/1.1\r\n" + LINES, b"X-Short: y\r\n" * 5_000),
    "empty lines": (b"", b"\r\n" * 32_768),
    "trailers": (CHUNKED + b"0\r\n", b"X-Short: y\r\n" * 5_000),
    "one trailer": (CHUNKED + b"0\r\nX-Long: ", b"x" * 65_536),
    "chunk extension": (CHUNKED + b"1;", b"x" * 65_536),
    "requests": (b"", (b"GET /livez HTTP/1.1\r\n" + LINES + b"\r\n") * 1_000),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_what_never_becomes_a_request_is_cut_off(port: int, kind: str) -> None:
    begin, more = ENDLESS[kind]
    sent, reason = 0, "pipelined" if kind == "requests" else "head"
    before = refused(port, reason)
    with connected(port) as connection, suppress(ConnectionError):
        connection.sendall(begin)
        for _ in range(MANY // len(more)):
            connection.sendall(more)
            sent += len(more)
        pytest.fail(f"{sent} bytes were taken")
    assert lives(port)
    assert refused(port, reason) == before + 1


@pytest.mark.parametrize(("size", "expected"), [(15_000, 200), (17_000, 400), (60_000, 400)])
def test_a_head_has_16_kib_in_however_many_headers_it_comes(port: int, size: int, expected: int) -> None:
    ends = LINES + b"Connection: close\r\n\r\n"
    assert asked(port, b"GET /livez HTTP/1.1\r\nX-Long: " + b"x" * size + b"\r\n" + ends)[0] == expected
    assert asked(port, b"GET /livez HTTP/1.1\r\n" + b"X-Short: 12\r\n" * (size // 13) + ends)[0] == expected


HALF_OPEN = {
    "nothing": b"",
    "half a head": b"GET /livez HTTP/1.1\r\n" + LINES,
    "half a second head": b"GET /livez HTTP/1.1\r\n" + LINES + b"\r\nGET /livez HTTP/1.1\r\n",
    "half a body that nobody reads": b"POST /livez HTTP/1.1\r\nContent-Length: 100\r\n" + LINES + b"\r\n",
    "half a body": b"POST PATH HTTP/1.1\r\nContent-Length: 100\r\nContent-Type: application/json\r\n" + LINES + b"\r\n",
}
READS = {"collector": b"/v1/beacons", "dashboard": b"/_dash-update-component"}
"""Paths at which a body is read."""


def test_who_begins_and_does_not_go_on_is_hung_up_on(service: str, port: int) -> None:
    before = {reason: refused(port, reason) for reason in ("slow head", "slow body")}
    with ExitStack() as stack:
        half_open = {(kind, n): stack.enter_context(connected(port)) for kind in HALF_OPEN for n in range(6)}
        for (kind, _), connection in half_open.items():
            connection.sendall(HALF_OPEN[kind].replace(b"PATH", READS.get(service, b"/livez")))
        assert lives(port)
        ends = time.monotonic() + 5 * HEAD_S + 5
        while half_open:
            assert time.monotonic() < ends, f"still open: {sorted(half_open)}"
            time.sleep(HEAD_S / 5)
            half_open = {key: connection for key, connection in half_open.items() if goes_on(*key, connection)}
    slow_bodies = 6 if service in READS else 0
    assert refused(port, "slow head") >= before["slow head"] + 6 * (len(HALF_OPEN) - 2)
    assert refused(port, "slow body") == before["slow body"] + slow_bodies


def goes_on(kind: str, n: int, connection: socket.socket) -> bool:
    """Send another byte, as who is slow on purpose would; return whether the connection is open still."""
    connection.setblocking(False)
    try:
        if kind != "nothing" and n % 2:
            connection.send(b"a")
        while connection.recv(65_536):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


def test_a_connection_without_a_request_makes_room_for_one_with(port: int) -> None:
    before = refused(port, "connections")
    with ExitStack() as stack:
        half_open = []
        for _ in range(150):
            half_open.append(stack.enter_context(connected(port)))
            half_open[-1].sendall(b"GET /livez HTTP/1.1\r\n")
        assert lives(port)
        still_open = 0
        for connection in half_open:
            connection.settimeout(0.001)
            with suppress(ConnectionError):
                try:
                    still_open += connection.recv(1) != b""
                except TimeoutError:
                    still_open += 1
        assert still_open <= http_server.MAX_CONNECTIONS
    assert refused(port, "connections") >= before + 150 - http_server.MAX_CONNECTIONS


def test_a_body_that_is_too_large_is_refused_before_it_is_read(service: str, port: int) -> None:
    path = READS.get(service, b"/metrics")
    head = b"POST " + path + b" HTTP/1.1\r\nContent-Type: application/json\r\n" + LINES
    before = too_large(service, port)
    with connected(port) as connection:
        connection.sendall(head + b"Content-Length: 150000000\r\n\r\n")
        assert status(connection.recv(65_536)) == 413
    chunk, sent = b"10000\r\n" + b" " * 0x10000 + b"\r\n", 0
    with connected(port) as connection:
        connection.sendall(head + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
        with suppress(ConnectionError):
            for _ in range(MANY // len(chunk)):
                connection.sendall(chunk)
                sent += len(chunk)
            pytest.fail(f"{sent} bytes were taken")
    assert lives(port)
    assert too_large(service, port) >= before + 1


def too_large(service: str, port: int) -> float:
    """Bodies that were refused, as they are counted: the collector has limits of its own for each route."""
    if service == "collector":
        return counted(port, "lagloss_collector_requests_total", route="beacons", status="413")
    return refused(port, "body")


CLOSE = "Connection: close\r\n\r\n"
PATHS = ("/livez", "/readyz", "/healthz", "/metrics")


@pytest.mark.parametrize("path", PATHS)
def test_a_page_of_another_site_reads_nothing(port: int, path: str) -> None:
    assert get(port, path, host="evil.example").status_code == 421  # DNS rebinding
    assert get(port, path, **{"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}).status_code == 403
    assert asked(port, f"GET {path} HTTP/1.1\r\n{CLOSE}".encode())[0] == 400
    assert asked(port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n{CLOSE}".encode())[0] == 400


def test_names_of_this_machine_are_answered(port: int) -> None:
    for name in ("localhost", "127.0.0.1", "[::1]"):
        assert get(port, "/livez", host=f"{name}:{port}").status_code == 200


def test_no_answer_names_the_program_that_serves(port: int) -> None:
    for path in ("/livez", "/metrics", "/nothing"):
        assert "server" not in get(port, path).headers


def test_it_lives_and_shows_metrics_while_its_readiness_hangs(port: int) -> None:
    """Kafka and PostgreSQL are stopped, not dead; and sixty clients wait for what they say."""
    with ThreadPoolExecutor(50) as pool:
        asking = [pool.submit(get, port, "/readyz") for _ in range(50)]
        for _ in range(5):
            assert lives(port)
        began = time.monotonic()
        metrics = get(port, "/metrics")
        assert metrics.status_code == 200
        assert b"lagloss_build_info" in metrics.content
        assert time.monotonic() < began + SOON_S + exposition.WAIT_S
        assert {each.result().status_code for each in asking} == {503}
    began = time.monotonic()
    assert get(port, "/readyz").status_code == 503
    assert time.monotonic() < began + 6


SMUGGLED = {
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
    "length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "negative length": b"Content-Length: -1\r\n\r\n",
    "hex length": b"Content-Length: 0x5\r\n\r\nabcde",
    "other coding last": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "space before the colon": b"Content-Length : 5\r\n\r\nabcde",
    "folded line": b"X-A: b\r\n folded\r\n\r\n",
    "bare line feed in a value": b"X-A: b\nX-B: c\r\n\r\n",
    "NUL": b"X-A: \0\r\n\r\n",
    "chunk size that is none": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
}


@pytest.mark.parametrize("kind", SMUGGLED)
def test_what_a_proxy_might_read_otherwise_is_refused(port: int, kind: str) -> None:
    begin = b"POST /livez HTTP/1.1\r\n" + LINES + b"Connection: close\r\n"
    with connected(port) as connection:
        connection.sendall(begin + SMUGGLED[kind])
        received = answer(connection)
    # a bad body is noticed after the route is answered
    assert status(received) in ((400, 405) if kind.startswith("chunk") else (400,)), received


TARGETS = (
    b"*",
    b"//",
    b"http://evil.example",
    b"/%00",
    b"/%",
    b"/\xff",
    b"/../../etc/passwd",
    b"/livez/..",
    b"evil:80",
)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("method", [b"GET", b"OPTIONS", b"CONNECT", b"HEAD", b"TRACE"])
def test_no_target_is_a_fault_of_ours(port: int, method: bytes, target: bytes) -> None:
    code, received = asked(port, method + b" " + target + b" HTTP/1.1\r\n" + LINES + b"Connection: close\r\n\r\n")
    assert 200 <= code < 500, received


SCRIPTS = "/_dash-component-suites"


@pytest.mark.parametrize(
    "path", [f"{SCRIPTS}/../../x", f"{SCRIPTS}/dash/../../x", f"{SCRIPTS}/dash/nothing.js", f"{SCRIPTS}/os/path.py"]
)
def test_a_script_that_is_none_of_the_dashboards_is_404(ports: dict[str, int], path: str) -> None:
    ends = LINES + b"Connection: close\r\n\r\n"
    assert asked(ports["dashboard"], f"GET {path} HTTP/1.1\r\n".encode() + ends)[0] == 404
    assert asked(ports["dashboard"], f"GET {path} HTTP/1.1\r\n".replace("..", "%2e%2e").encode() + ends)[0] == 404


def test_no_service_has_another_server() -> None:
    packages = ("aggregator", "alerting", "canary", "collector", "dashboard", "lagloss_server", "taps")
    texts = {path: path.read_text("utf-8") for package in packages for path in (ROOT / package).rglob("*.py")}
    using = [path for path, text in texts.items() if re.search(r"(import|from) uvicorn", text)]
    assert using == [ROOT / "lagloss_server/net/http_server.py"]
