"""The way out by HTTP, against receivers that behave badly."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from alerting.delivery.transports.dns_pinning import PinnedNetwork
from alerting.delivery.transports.http import MAX_ANSWER_BYTES, MAX_BODY_BYTES, HttpAnswer, HttpTarget
from lagloss_server.net.deadline import Deadline
from lagloss_server.net.outcome import Refused, Sent, TryLater
from tests.fakes.certificates import certificate, server_context
from tests.fakes.http_receiver import HttpReceiver, Reply
from tests.fakes.raw_server import drip, raw_server, request_of

PATH = "/hooks/s3cret-path?token=s3cret-token"
OTHER = "127.0.0.2"
SECRETS = ("s3cret-path", "s3cret-token", "s3cret-user", "s3cret-word", "s3cret-key", "127.0.0.1")


def target(port: int, *, allow_private: bool = True, timeout_s: float = 10, user: str = "") -> HttpTarget:
    url = f"http://{user}127.0.0.1:{port}{PATH}"
    return HttpTarget(url, allow_private=allow_private, secrets=["s3cret-key"], timeout_s=timeout_s)


def assert_tells_no_secret(outcome: object) -> str:
    assert isinstance(outcome, Refused | TryLater)
    assert not [secret for secret in SECRETS if secret in outcome.error]
    return outcome.error


def test_a_post_arrives_with_host_login_and_body_and_no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with HttpReceiver() as receiver:
        assert target(receiver.port, user="s3cret-user:s3cret-word@").post(b'{"a":1}', {"x-a": "b"}) == Sent()

    assert not [secret for secret in SECRETS[:5] if secret in caplog.text]
    (request,) = receiver.requests
    assert (request.path, request.json()) == (PATH, {"a": 1})
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert request.headers["authorization"] == "Basic czNjcmV0LXVzZXI6czNjcmV0LXdvcmQ="
    assert (request.headers["x-a"], request.headers["content-type"]) == ("b", "application/json")


def test_an_address_that_is_not_public_is_refused_unless_allowed_and_nothing_is_sent() -> None:
    with HttpReceiver() as receiver:
        error = assert_tells_no_secret(target(receiver.port, allow_private=False).post(b"{}", {}))
    assert "allowPrivate" in error
    assert receiver.requests == []


@pytest.fixture
def other_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    """The internet, for tests that must not go there."""
    monkeypatch.setattr("alerting.delivery.transports.http.is_public", lambda address: address == OTHER)


@pytest.mark.usefixtures("other_is_public")
def test_of_a_hosts_addresses_only_the_public_ones_are_tried() -> None:
    with HttpReceiver() as private, HttpReceiver(host=OTHER, port=private.port) as public:
        mixed = HttpTarget(f"http://name.example:{private.port}/", resolver=lambda *_: ["127.0.0.1", "::1", OTHER])
        assert mixed.post(b"{}", {}) == Sent()
    assert (len(private.requests), len(public.requests)) == (0, 1)


@pytest.mark.usefixtures("other_is_public")
def test_a_name_that_resolves_to_another_address_after_the_check_is_not_followed() -> None:
    """The name is asked for once a sending, and the connection goes to what was checked."""
    asked: list[str] = []
    answers = iter([[OTHER], ["127.0.0.1"]])

    def rebinding(host: str, _port: int) -> Sequence[str]:
        asked.append(host)
        return next(answers)

    with HttpReceiver() as private:
        found = HttpTarget(f"http://localhost:{private.port}/", resolver=rebinding)
        assert isinstance(found.post(b"{}", {}), TryLater)  # nobody listens at the address that was checked
        assert asked == ["localhost"]
        assert isinstance(found.post(b"{}", {}), Refused)  # it is checked each time
    assert private.requests == []


def test_an_address_that_does_not_answer_leaves_time_for_the_next() -> None:
    with HttpReceiver() as receiver, socket.create_server((OTHER, receiver.port), backlog=0) as full:
        waiting = [socket.socket() for _ in range(2)]  # as many as its queue takes; the next hears nothing
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        url = f"http://name.example:{receiver.port}/"
        found = HttpTarget(url, allow_private=True, resolver=lambda *_: [OTHER, "127.0.0.1"], timeout_s=1)
        began = time.monotonic()
        assert found.post(b"{}", {}) == Sent()
        assert time.monotonic() - began > 0.4
        for each in waiting:
            each.close()
    assert receiver.requests[0].headers["host"] == f"name.example:{receiver.port}"


def test_a_redirect_is_refused_and_not_followed() -> None:
    with HttpReceiver() as receiver:
        to = {"location": f"{receiver.url}/elsewhere"}
        receiver.replies = [Reply(301, b"", to), Reply(307, b"", to)]
        for status in (301, 307):
            error = assert_tells_no_secret(target(receiver.port).post(b"{}", {}))
            assert error.startswith(f"HTTP {status}: redirects are not followed")
    assert len(receiver.requests) == 2


def test_of_a_refusal_as_much_is_read_as_its_limit() -> None:
    read: list[str] = []

    def meaning(answer: HttpAnswer) -> Refused:
        read.append(answer.text)
        return Refused("")

    with HttpReceiver() as receiver:
        receiver.replies = [Reply(403, b"x" * MAX_ANSWER_BYTES), Reply(403, b"x" * MAX_ANSWER_BYTES + b"y")]
        for _ in range(2):
            target(receiver.port).post(b"{}", {}, meaning=meaning)
    assert len(read[0]) == MAX_ANSWER_BYTES > len(read[1])  # where it was cut, there may be half a secret
    assert {*read[1]} == {"x"}


def test_a_refusal_shows_what_was_said_without_the_secrets_in_it() -> None:
    echo = f"no hook at http://127.0.0.1{PATH} for s3cret-key\r\n<b>S3CRET-TOKEN</b> " + "x" * 70_000
    with HttpReceiver() as receiver:
        receiver.replies = [
            Reply(403, echo.encode()),
            Reply(500, json.dumps({"at": PATH}).replace("/", "\\/").encode()),
        ]
        error = assert_tells_no_secret(target(receiver.port).post(b"{}", {}))
        assert error.startswith("HTTP 403: no hook at ")
        assert "S3CRET-TOKEN" not in error
        assert_tells_no_secret(target(receiver.port).post(b"{}", {}))


@pytest.mark.parametrize(("status", "header", "after_s"), [(429, "7", 7.0), (503, "99999", 3600.0), (500, None, None)])
def test_a_receiver_that_is_busy_says_when_to_come_again(
    status: int, header: str | None, after_s: float | None
) -> None:
    with HttpReceiver() as receiver:
        receiver.replies = [Reply(status, b"busy", {"retry-after": header} if header else {})]
        assert target(receiver.port).post(b"{}", {}) == TryLater(f"HTTP {status}: busy", after_s)


def test_a_message_that_is_too_long_is_refused_before_it_is_sent() -> None:
    with HttpReceiver() as receiver:
        outcome = target(receiver.port).post(b" " * (MAX_BODY_BYTES + 1), {})
        assert isinstance(outcome, Refused)
        assert target(receiver.port).post(b" " * MAX_BODY_BYTES, {}) == Sent()
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    "text", [b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 100, b"HTTP/1.1 500 No\r\n\r\n" + b"x" * 500]
)
def test_an_answer_that_drips_ends_at_the_limit_for_the_whole_sending(text: bytes) -> None:
    with raw_server(lambda connection, over: drip(connection, over, text, 0.05)) as port:
        began = time.monotonic()
        outcome = target(port, timeout_s=0.6).post(b"{}", {})
        assert time.monotonic() - began < 1.5
    assert_tells_no_secret(outcome)
    assert isinstance(outcome, TryLater)


def test_a_receiver_that_takes_the_request_slowly_is_given_up_at_the_limit() -> None:
    def read_slowly(connection: socket.socket, over: threading.Event) -> None:
        while connection.recv(65_536) and not over.wait(0.02):
            pass

    with raw_server(read_slowly) as port:
        began = time.monotonic()
        stream = PinnedNetwork(["127.0.0.1"], Deadline(0.6)).connect_tcp("name.example", port)
        with pytest.raises(TimeoutError):
            stream.write(b" " * 40_000_000)  # far more than the system takes on its own account
        stream.close()
        assert time.monotonic() - began < 1.5


@pytest.mark.parametrize("head", ["HTTP/1.1 400 No\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n"])
def test_an_answer_without_end_is_read_by_its_beginning_only(head: str) -> None:
    sent: list[int] = []

    def pour(connection: socket.socket, over: threading.Event) -> None:
        request_of(connection)
        connection.sendall(head.encode())
        while not over.is_set():
            connection.sendall(b"s3cret-key " * 1_000)
            sent.append(11_000)

    with raw_server(pour) as port:
        outcome = target(port).post(b"{}", {})
    assert sum(sent) < 20_000_000  # what fits into the buffers between
    if "200" in head:
        assert outcome == Sent()
    else:
        assert assert_tells_no_secret(outcome).startswith("HTTP 400: *** *** ")


@pytest.mark.parametrize("text", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200\r\nbad header\r\n\r\n", b"\0" * 200])
def test_what_is_no_answer_is_tried_later(text: bytes) -> None:
    def hang_up(connection: socket.socket, _over: threading.Event) -> None:
        request_of(connection)
        connection.sendall(text)

    with raw_server(hang_up) as port:
        outcome = target(port).post(b"{}", {})
    assert_tells_no_secret(outcome)
    assert isinstance(outcome, TryLater)


def test_nobody_listening_is_tried_later() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    outcome = target(port).post(b"{}", {})
    assert "refused" in assert_tells_no_secret(outcome)
    assert isinstance(outcome, TryLater)


def test_a_name_that_is_not_resolved_in_time_or_at_all_is_tried_later() -> None:
    over = threading.Event()

    def hanging(_host: str, _port: int) -> Sequence[str]:
        over.wait(30)
        return []

    def failing(host: str, _port: int) -> Sequence[str]:
        raise socket.gaierror(-2, f"Name or service not known: {host}")

    began = time.monotonic()
    for found in (hanging, failing, lambda *_: []):
        outcome = HttpTarget("https://s3cret-user.example/", resolver=found, timeout_s=0.3).post(b"{}", {})
        assert_tells_no_secret(outcome)
        assert isinstance(outcome, TryLater)
    assert time.monotonic() - began < 2
    over.set()


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpReceiver() as proxy, HttpReceiver() as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert target(receiver.port).post(b"{}", {}) == Sent()
    assert (len(proxy.requests), len(receiver.requests)) == (0, 1)


def test_the_authorities_of_the_machine_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = certificate(tmp_path, "right.example")
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with HttpReceiver(server_context(path)) as receiver:
        url = f"https://right.example:{receiver.port}/"
        assert HttpTarget(url, allow_private=True, resolver=lambda *_: ["127.0.0.1"]).post(b"{}", {}) == Sent()


def test_the_certificate_is_checked_against_the_name_although_the_address_is_pinned(tmp_path: Path) -> None:
    path = certificate(tmp_path, "right.example")
    with HttpReceiver(server_context(path)) as receiver:
        outcomes = {
            (name, ca): HttpTarget(
                f"https://{name}:{receiver.port}/", allow_private=True, ca_file=ca, resolver=lambda *_: ["127.0.0.1"]
            ).post(b"{}", {})
            for name, ca in (("right.example", path), ("wrong.example", path), ("right.example", None))
        }
    assert outcomes.pop(("right.example", path)) == Sent()
    for outcome in outcomes.values():
        assert isinstance(outcome, TryLater)
        assert "CERTIFICATE_VERIFY_FAILED" in outcome.error
        assert "example" not in outcome.error
    assert [request.headers["host"] for request in receiver.requests] == [f"right.example:{receiver.port}"]
