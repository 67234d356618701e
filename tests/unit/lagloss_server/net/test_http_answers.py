"""Answers of other servers have a limit, whoever reads them, in whatever pieces and packing they come."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from lagloss_server.base.errors import ServerNotReady
from lagloss_server.base.settings import Settings
from lagloss_server.net import http_answers
from lagloss_server.net.http_answers import BOUNDED, MAX_ANSWER_BYTES, keep_answer_async
from lagloss_server.ops import doctor, recompute, supervisor
from tests.fakes.http_receiver import HttpReceiver, Reply
from tests.fakes.raw_server import drip, raw_server, request_of

AT_LIMIT = b"x" * MAX_ANSWER_BYTES
PAST_IT = AT_LIMIT + b"x"
GZIP = {"content-encoding": "gzip"}


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with HttpReceiver() as receiver:
        yield receiver


def get(url: str) -> httpx2.Response:
    with httpx2.Client(event_hooks=BOUNDED, follow_redirects=True) as client:
        return client.get(url)


def get_async(url: str) -> httpx2.Response:
    async def asked() -> httpx2.Response:
        hooks: dict[str, Any] = {"response": [keep_answer_async]}
        async with httpx2.AsyncClient(event_hooks=hooks, follow_redirects=True) as client:
            return await client.get(url)

    return asyncio.run(asked())


@pytest.mark.parametrize("ask", [get, get_async])
def test_an_answer_is_kept_up_to_its_limit_also_unpacked(
    receiver: HttpReceiver, ask: Callable[[str], httpx2.Response]
) -> None:
    receiver.replies = [Reply(200, AT_LIMIT), Reply(200, gzip.compress(AT_LIMIT), GZIP)]
    assert [ask(receiver.url).content == AT_LIMIT for _ in range(2)] == [True, True]
    to = {"location": f"{receiver.url}/elsewhere"}
    for too_large in (Reply(200, PAST_IT), Reply(500, gzip.compress(PAST_IT), GZIP), Reply(302, PAST_IT, to)):
        receiver.replies = [too_large]
        with pytest.raises(httpx2.ReadError, match=f"expected up to {MAX_ANSWER_BYTES} bytes"):
            ask(receiver.url)


@pytest.mark.parametrize("ask", [get, get_async])
def test_an_answer_that_is_kept_has_so_much_time(
    ask: Callable[[str], httpx2.Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    def behave(connection: socket.socket, over: threading.Event) -> None:
        request_of(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n")
        drip(connection, over, b"x" * 20, 0.02)

    with raw_server(behave) as port:
        assert ask(f"http://127.0.0.1:{port}").content == b"x" * 20
        monkeypatch.setattr(http_answers, "ANSWER_S", 0.1)
        with pytest.raises(httpx2.ReadTimeout, match="took too long"):
            ask(f"http://127.0.0.1:{port}")


def test_whoever_looks_after_a_service_takes_an_answer_past_the_limit_as_none(receiver: HttpReceiver) -> None:
    settings = Settings(aggregator_url=receiver.url)
    receiver.replies = [Reply(200, AT_LIMIT)] * 3 + [Reply(200, PAST_IT)] * 3
    assert supervisor._status(receiver.url, 10) == 200
    assert doctor._check_service("aggregator", settings).verdict == "ok"
    recompute.check_aggregator(settings)
    assert supervisor._status(receiver.url, 10) is None
    check = doctor._check_service("aggregator", settings)
    assert (check.verdict, f"expected up to {MAX_ANSWER_BYTES} bytes" in check.finding) == ("fail", True)
    with pytest.raises(ServerNotReady, match=f"expected up to {MAX_ANSWER_BYTES} bytes"):
        recompute.check_aggregator(settings)
