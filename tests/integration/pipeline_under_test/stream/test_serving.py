"""Processes that serve over HTTP on one socket: whoever of them ends, nobody who asks is turned away."""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline_under_test.harness.group import Group
from pipeline_under_test.stream.nodes.receiver import RECEIVER
from pipeline_under_test.stream.nodes.serving import listening_socket, url_of
from pipeline_under_test.stream.settings import ReferenceSettings

pytestmark = pytest.mark.slow

CLIENTS = 8
PAUSE_S = 0.01
TIMEOUT_S = 30


@pytest.fixture
def url_and_group(tmp_path: Path) -> Iterator[tuple[str, Group]]:
    """Two processes of the receiver."""
    settings = ReferenceSettings(data_dir=tmp_path)
    settings.save()
    with listening_socket() as listening:
        words = (RECEIVER, "--fd", str(listening.fileno()), "--data-dir", str(tmp_path))
        folders = settings.log_dir, settings.beats_dir
        group = Group(RECEIVER, words, *folders, least=2, most=2, pass_fds=(listening.fileno(),))
        tend_until(group, lambda: group.is_ready)
        yield url_of(listening), group
        group.end()


def tend_until(group: Group, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        group.tend()
        time.sleep(0.01)


@contextmanager
def asked(url: str) -> Iterator[Counter[str]]:
    """Asked by several clients while the block lasts, half of which keep their connections; what came of it."""
    found: Counter[str] = Counter()
    ended = threading.Event()

    def ask(keeps: bool) -> None:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=TIMEOUT_S)
        while not ended.wait(PAUSE_S):
            try:
                connection.request("GET", "/healthz")
                response = connection.getresponse()
                response.read()
                found[str(response.status)] += 1
            except (OSError, http.client.HTTPException) as error:
                found[type(error).__name__] += 1
                connection.close()
            if not keeps:
                connection.close()
        connection.close()

    threads = [threading.Thread(target=ask, args=(number % 2 == 0,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_a_rolling_restart_under_load_fails_no_request(url_and_group: tuple[str, Group]) -> None:
    url, group = url_and_group
    old = group.pids
    with asked(url) as found:
        group.roll()
        tend_until(group, lambda: not group.is_rolling and len(group.pids) == 2)
    assert not set(old) & set(group.pids)
    assert found.keys() == {"200"}
    assert found["200"] > 100


def test_who_asks_while_no_process_is_there_is_answered_by_the_next(url_and_group: tuple[str, Group]) -> None:
    url, group = url_and_group
    group.is_held = True
    tend_until(group, lambda: not group.pids)
    with asked(url) as found:
        group.is_held = False
        tend_until(group, lambda: group.is_ready and bool(found))
    assert found.keys() == {"200"}
