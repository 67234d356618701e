"""Ownership on a real database: when a session ends, and with it what it owns; and what a claim holds."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from lagloss_server.store.ownership import Lease, OwnerSession
from lagloss_server.store.store import Store
from tests.support.closers import wait_until

PROCESS = """
import sys, time
from lagloss_server.store.ownership import Lease, OwnerSession
assert Lease("work", OwnerSession(sys.argv[1], 60)).acquire()
print("owned", flush=True)
time.sleep(600)
"""


@pytest.fixture
def lease(database_url: str, store: object) -> Iterator[Callable[..., Lease]]:
    """Return the lease of one more process."""
    with ExitStack() as stack:

        def add(lost_after_s: float = 60, is_well: Callable[[], bool] = lambda: True) -> Lease:
            return Lease("work", stack.enter_context(closing(OwnerSession(database_url, lost_after_s, is_well))))

        yield add


def test_one_session_owns_a_work_and_asks_for_it_as_often_as_it_likes(lease: Callable[..., Lease]) -> None:
    mine, other = lease(), lease()
    assert mine.acquire()
    assert mine.acquire()
    assert not other.acquire()
    mine.session.close()
    assert mine.session.has_ended
    wait_until(other.acquire, 5, "for the work to be free")


def test_a_work_whose_row_names_a_session_that_has_ended_is_held_no_more(
    store: Store, lease: Callable[..., Lease]
) -> None:
    mine = lease()
    assert mine.acquire()
    with store.engine.begin() as connection:
        assert mine.is_held(connection)
    mine.session.close()  # as by a failover; its row is there still, or again by a backup
    with store.engine.begin() as connection:
        assert connection.execute(text("SELECT owner FROM lease")).scalars().all() == [mine.session.name]
        assert not mine.is_held(connection)


def test_a_session_lives_while_its_process_gives_signs_of_life_and_ends_soon_after(lease: Callable[..., Lease]) -> None:
    signs: list[bool] = [True]
    mine, other = lease(1, lambda: bool(signs)), lease()
    assert mine.acquire()
    until = time.monotonic() + 3
    while time.monotonic() < until:  # three times as long as a session without a sign of life has
        assert not other.acquire()
        time.sleep(0.1)
    mine.session.check()
    signs.clear()
    wait_until(other.acquire, 5, "for the session to be ended")
    with pytest.raises(OperationalError, match="idle-session timeout"):
        mine.session.check()
    assert mine.session.has_ended


def test_what_a_process_that_was_killed_owns_is_free_at_once(database_url: str, lease: Callable[..., Lease]) -> None:
    other = lease()
    with subprocess.Popen([sys.executable, "-c", PROCESS, database_url], stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"owned\n"
        assert not other.acquire()
        killed.kill()
        began = time.monotonic()
        wait_until(other.acquire, 5, "for the work to be free")
    print(f"free after {time.monotonic() - began:.2f} s")
