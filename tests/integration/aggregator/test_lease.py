"""One aggregator at a time writes: who has lost the lease commits nothing more."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, insert, select, text
from sqlalchemy.exc import OperationalError

from aggregator.outage import LeaseHeld, is_outage
from aggregator.service import LEASE_S, fencing
from lagloss.broker.topics import create_topics
from lagloss_server.store.ownership import AGGREGATOR, Lease, OwnerSession
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from tests.integration.aggregator.test_aggregator_process import aggregator, health, stands_by
from tests.integration.aggregator.test_outages import MESSAGES, Minutes
from tests.support.closers import wait_until

PRUNED = tables.table_of(tables.PrunedRow)


def names(store: Store) -> set[str]:
    with store.engine.connect() as connection:
        return set(connection.execute(select(PRUNED.c.table_name)).scalars())


def end_session(store: Store, owner: OwnerSession) -> None:
    """As a network does that is cut off: the holder's backend ends, and the holder does not hear of it."""
    with store.engine.connect() as connection:
        ended = text("SELECT pg_terminate_backend(:pid, 20000)")
        assert connection.execute(ended, {"pid": owner.connection.info.backend_pid}).scalar_one()


@pytest.fixture
def sessions(database_url: str) -> Iterator[list[OwnerSession]]:
    """Two processes."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(OwnerSession(database_url, LEASE_S))) for _ in range(2)]


def test_who_lost_the_lease_in_the_middle_of_a_transaction_commits_nothing(
    database_url: str, store: Store, sessions: list[OwnerSession]
) -> None:
    lease, other = (Lease(AGGREGATOR, session) for session in sessions)
    with closing(Store(database_url)) as mine:
        assert lease.acquire()
        assert not other.acquire()
        with fencing(mine.engine, lease):
            with mine.engine.begin() as connection:
                connection.execute(insert(PRUNED).values(table_name="held", before_s=0))

            def paused() -> None:
                with mine.engine.begin() as connection:
                    connection.execute(insert(PRUNED).values(table_name="paused", before_s=0))
                    end_session(store, lease.session)
                    assert other.acquire()

            with pytest.raises(LeaseHeld) as lost:
                paused()
            assert is_outage(lost.value)
        assert names(store) == {"held"}
        with mine.engine.begin() as connection:  # what stands outside is no concern of the lease
            connection.execute(insert(PRUNED).values(table_name="outside", before_s=0))
        assert names(store) == {"held", "outside"}


def test_nobody_takes_over_between_the_check_and_the_commit(
    database_url: str, store: Store, sessions: list[OwnerSession]
) -> None:
    lease, other = (Lease(AGGREGATOR, session) for session in sessions)
    assert lease.acquire()
    with ThreadPoolExecutor(1) as threads:
        with store.engine.begin() as connection:
            assert lease.is_held(connection)
            connection.execute(insert(PRUNED).values(table_name="held", before_s=0))
            end_session(store, lease.session)
            taken = threads.submit(other.acquire)
            with pytest.raises(TimeoutError):
                taken.result(0.5)
        assert taken.result(10)
    with store.engine.begin() as connection:
        assert not lease.is_held(connection)
        assert other.is_held(connection)


def test_one_that_is_stopped_in_the_middle_of_a_copy_locks_nothing_once_another_takes_over(
    database_url: str, store: Store, sessions: list[OwnerSession]
) -> None:
    """PostgreSQL waits for the rest of what is copied without any time-out."""
    lease, other = (Lease(AGGREGATOR, session) for session in sessions)
    assert lease.acquire()
    locked = threading.Event()

    def take_over() -> None:
        end_session(store, lease.session)
        assert other.acquire()
        with store.engine.begin() as successor:
            successor.execute(text("SET LOCAL lock_timeout = '20s'"))
            successor.execute(text("LOCK TABLE reports_position IN SHARE ROW EXCLUSIVE MODE"))
            locked.set()

    def stop_in_a_copy(engine: Engine) -> None:
        with engine.connect() as connection:
            connection.execute(text("LOCK TABLE reports_position IN SHARE ROW EXCLUSIVE MODE"))
            driver = connection.connection.driver_connection
            assert driver is not None
            with driver.cursor() as cursor, cursor.copy("COPY pruned FROM STDIN") as copying:
                copying.write_row(("half", 0))
                take_over()

    with closing(Store(database_url)) as mine:
        lease.session.attend(mine.engine)
        with pytest.raises(OperationalError):
            stop_in_a_copy(mine.engine)
    assert locked.is_set()
    assert names(store) == set()


def test_a_take_over_ends_no_session_but_those_of_the_former_owner(
    database_url: str, store: Store, sessions: list[OwnerSession]
) -> None:
    lease, other = (Lease(AGGREGATOR, session) for session in sessions)
    with closing(Store(database_url)) as mine:
        other.session.attend(mine.engine)
        with mine.engine.connect() as connection, store.engine.connect() as outside:
            for attended in (connection, outside):
                attended.execute(text("SELECT 1"))
            assert lease.acquire()
            end_session(store, lease.session)
            assert other.acquire()
            assert other.acquire()
            for attended in (connection, outside):
                attended.execute(text("SELECT 1"))


WRITTEN_BY = """
    CREATE TABLE written_by (name text);
    CREATE FUNCTION note_writer() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO written_by VALUES (current_setting('application_name')); RETURN NULL; END $$
"""
FOLLOWED_AND_CLOSED = ("window", "missing_message", "tally", "emitter", "progress", "reports_position", "rollup")


@pytest.mark.slow
def test_one_that_is_stopped_in_a_commit_is_succeeded_and_writes_nothing_when_it_goes_on(
    kafka_bootstrap: str, database_url: str, store: Store, tmp_path: Path
) -> None:
    """SIGSTOP for longer than the lease, with rows written and locked, and SIGCONT after another has closed them."""
    create_topics(kafka_bootstrap)
    with store.engine.begin() as connection:
        connection.exec_driver_sql(WRITTEN_BY)
        for table in FOLLOWED_AND_CLOSED:
            trigger = f'CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON "{table}" FOR EACH ROW'
            connection.exec_driver_sql(f"{trigger} EXECUTE FUNCTION note_writer()")
    marker, permit, module = tmp_path / "stands", tmp_path / "may", "tests.support.short_lease"
    urls = {name: f"{database_url}&application_name={name}" for name in ("stopped", "successor")}

    def writers() -> set[str]:
        with store.engine.connect() as connection:
            return set(connection.execute(text("SELECT name FROM written_by")).scalars())

    with ExitStack() as stack:
        minutes = stack.enter_context(closing(Minutes(kafka_bootstrap)))
        minutes.define(store)
        minutes.send()
        minutes.flush()
        words = (module, marker, permit)
        stopped = stack.enter_context(aggregator(kafka_bootstrap, urls["stopped"], tmp_path / "stopped", words))
        wait_until(marker.exists, 90, "for its first commit")
        os.killpg(stopped.pid, signal.SIGSTOP)
        stack.callback(os.killpg, stopped.pid, signal.SIGCONT)  # else it could not be ended
        began = time.monotonic()
        successor = stack.enter_context(aggregator(kafka_bootstrap, urls["successor"], tmp_path / "next", (module,)))
        wait_until(lambda: len(minutes.closed(store)) == 1, 120, "for the window")
        wait_until(lambda: health(successor) == (200, "ok"), 60, "for all to be well")
        print(f"succeeded after {time.monotonic() - began:.1f} s")
        with store.engine.begin() as connection:
            connection.execute(text("TRUNCATE written_by"))
        permit.touch()
        os.killpg(stopped.pid, signal.SIGCONT)
        wait_until(lambda: stands_by(stopped), 90, "for it to stand by")
        minutes.send()
        minutes.flush()
        wait_until(lambda: len(minutes.closed(store)) == 2, 60, "for the next window")
        assert writers() == {"successor"}
        assert stands_by(stopped)
    assert [window["messages"] for window in minutes.closed(store)] == [MESSAGES] * 2


def test_after_a_migration_a_process_of_the_older_version_commits_nothing(
    database_url: str, store: Store, sessions: list[OwnerSession]
) -> None:
    """As in an upgrade on Kubernetes, which migrates while the old pods still run."""
    lease = Lease(AGGREGATOR, sessions[0])
    with closing(Store(database_url)) as mine:
        assert lease.acquire()
        with fencing(mine.engine, lease):

            def overtaken() -> None:
                with mine.engine.begin() as connection:
                    connection.execute(insert(PRUNED).values(table_name="older", before_s=0))
                    with store.engine.begin() as migration:
                        migration.execute(text("UPDATE alembic_version SET version_num = '9999'"))

            with pytest.raises(LeaseHeld, match="9999") as refused:
                overtaken()
            assert is_outage(refused.value)  # which begins anew, and ends when it finds the tables newer
        assert names(store) == set()
