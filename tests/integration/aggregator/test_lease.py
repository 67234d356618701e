"""One aggregator at a time writes: who has lost the lease commits nothing more."""

from __future__ import annotations

from contextlib import closing

import pytest
from sqlalchemy import insert, select, text

from aggregator.outage import LeaseHeld, is_outage
from aggregator.service import LEASE, Lease
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store

PRUNED = tables.table_of(tables.PrunedRow)


def names(store: Store) -> set[str]:
    with store.engine.connect() as connection:
        return set(connection.execute(select(PRUNED.c.table_name)).scalars())


def end_holder(store: Store) -> None:
    """As a network does that is cut off: the holder's backend ends, and the holder does not hear of it."""
    with store.engine.connect() as connection:
        connection.execute(
            text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = :key"),
            {"key": LEASE},
        )


def test_who_lost_the_lease_in_the_middle_of_a_transaction_commits_nothing(database_url: str, store: Store) -> None:
    with closing(Store(database_url)) as mine, closing(Lease(mine)) as lease, closing(Lease(store)) as other:
        assert lease.is_held()
        assert not other.is_held()
        with lease.fencing(mine.engine):
            with mine.engine.begin() as connection:
                connection.execute(insert(PRUNED).values(table_name="held", before_s=0))

            def paused() -> None:
                with mine.engine.begin() as connection:
                    connection.execute(insert(PRUNED).values(table_name="paused", before_s=0))
                    end_holder(store)
                    assert other.is_held()

            with pytest.raises(LeaseHeld) as lost:
                paused()
            assert is_outage(lost.value)
        assert names(store) == {"held"}
        with mine.engine.begin() as connection:  # what stands outside is no concern of the lease
            connection.execute(insert(PRUNED).values(table_name="outside", before_s=0))
        assert names(store) == {"held", "outside"}


def test_after_a_migration_a_process_of_the_older_version_commits_nothing(database_url: str, store: Store) -> None:
    """As in an upgrade on Kubernetes, which migrates while the old pods still run."""
    with closing(Store(database_url)) as mine, closing(Lease(mine)) as lease:
        assert lease.is_held()
        with lease.fencing(mine.engine):

            def overtaken() -> None:
                with mine.engine.begin() as connection:
                    connection.execute(insert(PRUNED).values(table_name="older", before_s=0))
                    with store.engine.begin() as migration:
                        migration.execute(text("UPDATE alembic_version SET version_num = '9999'"))

            with pytest.raises(LeaseHeld, match="9999") as refused:
                overtaken()
            assert is_outage(refused.value)  # which begins anew, and ends when it finds the tables newer
        assert names(store) == set()
