"""Progress of groups in a real PostgreSQL: what the watch keeps, and what alerter, backtest and dashboard read."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace
from sqlalchemy import insert, select

from aggregator.consumer_lag.progress import PartitionHistory, PartitionKey, read_histories
from aggregator.consumer_lag.rows import GROUPS_KEPT_MS, keep, keep_groups
from aggregator.node_groups import NodeGroup, PartitionLag, PartitionOffsets, PartitionProgress
from lagloss_server.groups.consumer_groups import GroupDescription
from lagloss_server.groups.progress import GroupPartition, newest
from lagloss_server.groups.progress_store import read_deleted, read_groups, read_partition_minutes, read_partitions
from lagloss_server.groups.velocity import OffsetReading, Velocity
from lagloss_server.store.partitions import ensure_days
from lagloss_server.store.schema.core import ConsumerLagRow, table_of
from lagloss_server.store.store import Store

MINUTE = 1_795_250_400
MID = NodeGroup("orders", "mid", "g")
OF = GroupPartition("mid", "g", "in", 0)
PROGRESS = PartitionProgress(Velocity(1.5, 2.0), "warning", "time", 7, 9, 3, deleted=2)


def lag(committed: int | None = 5, start: int = 0, deleted: int = 2, partition: int = 0) -> PartitionLag:
    at, progress = PartitionOffsets(committed, start, 20), replace(PROGRESS, deleted=deleted)
    return PartitionLag(MID, "in", partition, 15, 1_000, at=at, progress=progress)


def kept(store: Store, at_s: float, *lags: PartitionLag) -> None:
    with store.engine.begin() as connection:
        ensure_days(connection, [int(at_s)])
        keep(connection, round(1_000 * at_s), lags)


def test_a_reading_comes_back_with_all_that_was_judged_of_it(store: Store) -> None:
    kept(store, MINUTE + 10, lag())
    with store.engine.connect() as connection:
        (found,) = read_partitions(connection, "orders", MINUTE + 20)
        assert read_partitions(connection, "orders", MINUTE + 300) == []
        assert read_partitions(connection, "others", MINUTE + 20) == []
    assert (found.of, found.asked_ms, found.lag, found.behind_ms) == (OF, 1_000 * (MINUTE + 10), 15, 1_000)
    assert (found.committed, found.log_start, found.log_end) == (5, 0, 20)
    assert (found.velocity, found.status, found.kept_by) == (Velocity(1.5, 2.0), "warning", "time")
    assert (found.deletes_ms, found.loss_ms, found.at_risk, found.deleted) == (7, 9, 3, 2)


def test_what_was_deleted_stays_counted_where_a_later_reading_of_the_minute_knows_nothing(store: Store) -> None:
    kept(store, MINUTE + 10, lag(deleted=2))
    kept(store, MINUTE + 20, PartitionLag(MID, "in", 0, None, None))
    kept(store, MINUTE + 70, lag(deleted=4), lag(deleted=0, partition=1))
    with store.engine.connect() as connection:
        now = read_partitions(connection, "orders", MINUTE + 80)
        assert [one.deleted for one in now] == [6, 0]
        assert read_deleted(connection, "orders", MINUTE, MINUTE + 120) == {("mid", "g"): 6}
        assert read_deleted(connection, "orders", MINUTE, MINUTE + 60) == {("mid", "g"): 2}
        minutes = read_partition_minutes(connection, "orders", MINUTE, MINUTE + 120)
    assert {at: len(readings) for at, readings in minutes.items()} == {MINUTE: 1, MINUTE + 60: 2}
    assert newest([*minutes[MINUTE], *minutes[MINUTE + 60]]) == now


def test_queues_and_what_is_not_known_to_this_version_are_passed_over(store: Store) -> None:
    kept(store, MINUTE, PartitionLag(NodeGroup("orders", "db", "https://q/in", "sqs:"), "in", 0, 3, None, 1))
    row = {"pipeline": "orders", "window_start": MINUTE, "node": "mid", "consumer_group": "g", "topic": "in"}
    with store.engine.begin() as connection:
        values = {**row, "topic_partition": 0, "asked_at": 1_000 * MINUTE, "status": "dizzy"}
        connection.execute(insert(table_of(ConsumerLagRow)).values(values))
        (found,) = read_partitions(connection, "orders", MINUTE)
    assert (found.of, found.status, found.knows_retention) == (OF, None, False)


def test_a_history_goes_on_with_the_newest_minutes_there_are(store: Store) -> None:
    for at, committed in ((0, 1), (400, 3), (460, 4), (700, 5)):
        kept(store, MINUTE + at, lag(committed=committed, deleted=committed))
    kept(store, MINUTE + 705, PartitionLag(MID, "in", 1, None, None))
    found = read_histories(store.engine, "orders")
    readings = tuple(OffsetReading(1_000 * (MINUTE + at), of, 0, 20) for at, of in ((400, 3), (460, 4), (700, 5)))
    assert found == {PartitionKey("orders", "mid", "g", "in", 0): PartitionHistory(readings, deleted=5)}
    assert read_histories(store.engine, "others") == {}


def test_a_group_keeps_the_time_since_which_it_is_in_its_state_and_goes_a_day_after_it_was_last_described(
    store: Store,
) -> None:
    other = NodeGroup("orders", "snk", "h")
    stable, empty = GroupDescription("Stable", 2, 4, "consumer"), GroupDescription("Empty", protocol="consumer")

    def described(at_ms: int, **groups: GroupDescription) -> list[tuple[str, str, int, int]]:
        named = {"mid": MID, "snk": other}
        with store.engine.begin() as connection:
            keep_groups(connection, at_ms, {named[name]: found for name, found in groups.items()})
            return [(each.node, each.state, each.since_ms, each.members) for each in read_groups(connection, "orders")]

    assert described(100, mid=stable) == [("mid", "Stable", 100, 2)]
    assert described(200, mid=dataclasses.replace(stable, members=3)) == [("mid", "Stable", 100, 3)]
    assert described(150, mid=empty) == [("mid", "Stable", 100, 3)]  # an older description
    assert described(300, mid=empty, snk=stable) == [("mid", "Empty", 300, 0), ("snk", "Stable", 300, 2)]
    assert described(300 + GROUPS_KEPT_MS, snk=stable)[-1] == ("snk", "Stable", 300, 2)
    assert [row[0] for row in described(301 + GROUPS_KEPT_MS, snk=stable)] == ["snk"]


def test_rows_of_the_table_have_all_columns_of_an_upsert(store: Store) -> None:
    kept(store, MINUTE, lag(deleted=1))
    kept(store, MINUTE + 5, lag(committed=None, start=3, deleted=1))
    with store.engine.connect() as connection:
        row = connection.execute(select(table_of(ConsumerLagRow))).one()
    assert (row.committed, row.log_start, row.log_end, row.at_risk, row.deleted) == (None, 3, 20, 3, 1)
