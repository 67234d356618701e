"""Retention on a real PostgreSQL and broker: what is old goes whole, what is needed stays, nobody waits for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import func, insert, select, text, update

from aggregator.closing import unfinished
from aggregator.closing.closer import Closer
from aggregator.closing.definitions import DefinitionRegistry
from aggregator.kernel.spark_reader import BlockReader
from aggregator.maintenance import rollups
from aggregator.maintenance.retention import CONSUMER_LAG, HISTORY, NAMES, TALLY, WINDOW, Retention, days_of
from aggregator.maintenance.rollups import SETTLE_MS
from aggregator.maintenance.tasks import MaintenanceLoop
from aggregator.metrics import AggregatorMetrics
from aggregator.set_aside import SetAside
from lagloss.broker.topics import BEACONS, create_topics
from lagloss.wire.format import Progress
from lagloss_server.base.settings import Settings
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.runs.run_store import RunReport, StateAt, record
from lagloss_server.store.partitions import DAY_S, ensure_days
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.audit import AuditTrailRow
from lagloss_server.store.schema.repair import RepairMessageRow, RepairRow
from lagloss_server.store.schema.runs import DagRunRow, TaskTryRow
from lagloss_server.store.schema.taps import LostAfterwardsMessageRow, LostAfterwardsRow
from lagloss_server.store.store import Store
from tests.support.closers import wait_until
from tests.support.lost_rows import store_lost
from tests.support.stored_windows import NOW_MS, TODAY_S, Stored, days_ago
from tests.support.window_documents import documents, store_missing

DAY_MS = DAY_S * 1000


@dataclass(kw_only=True)
class Pruned(Stored):
    """A database with the closer and the retention that work on it."""

    watch: DefinitionRegistry
    closer: Closer
    metrics: AggregatorMetrics
    retention: Retention

    def days(self, table: Any) -> list[int]:
        """The days, counted back from today, that a table has partitions for."""
        with self.store.engine.connect() as connection:
            return [TODAY_S // DAY_S - day for day in days_of(connection, table)]

    def count(self, model: type[tables.Base]) -> int:
        with self.store.engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(tables.table_of(model))).scalar_one()

    def roll_up(self) -> None:
        """Hours, and then their days."""
        for at in (10, 20):
            rollups.roll_up(self.store.engine, NOW_MS + at * SETTLE_MS, SetAside(self.store.engine))

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def pruned(spark: SparkSession, kafka_bootstrap: str, store: Store) -> Iterator[Pruned]:
    create_topics(kafka_bootstrap)
    beacons = BeaconLog(kafka_bootstrap, BEACONS)
    engine, metrics = store.engine, AggregatorMetrics()
    watch = DefinitionRegistry(engine, store, metrics)
    closer = Closer(engine, watch, BlockReader(spark, kafka_bootstrap, BEACONS, 8), beacons, metrics, SetAside(engine))
    retention = Retention(engine, closer, watch, metrics, Settings())
    yield Pruned(store=store, watch=watch, closer=closer, metrics=metrics, retention=retention)
    beacons.close()


def test_old_days_vanish_whole_and_newer_ones_stay(pruned: Pruned) -> None:
    for days in (0, 6, 9, 34, 37, 40):
        pruned.close(days_ago(days, hour=0), lost=days)
        with pruned.store.engine.begin() as connection:
            store_missing(connection, "chain", days_ago(days, hour=0), f"m{days}", kind="lost", place="mid", last="x")
    pruned.roll_up()
    pruned.retention.round(NOW_MS)
    assert (pruned.days(WINDOW), pruned.days(HISTORY)) == ([34, 9, 6, 0], [34, 9, 6, 0])
    assert pruned.days(CONSUMER_LAG) == [34, 9, 6, 0]
    assert pruned.days(NAMES) == [6, 0]
    assert pruned.days(TALLY) == [6, 0]  # sealed by age before
    assert pruned.metric("lagloss_days_dropped_total", table="window") == 2


def test_a_pruned_hour_keeps_its_rollup_even_if_a_window_comes_back_to_it(pruned: Pruned) -> None:
    hour, day = days_ago(40), days_ago(40, hour=0)
    for at in range(60):
        pruned.close(hour + 60 * at, lost=1)
    pruned.roll_up()
    pruned.retention.round(NOW_MS)
    assert documents(pruned.store.windows("chain", hour, hour + 3_600)) == []
    pruned.close(hour + 120, messages=7)
    pruned.close(days_ago(20))
    pruned.roll_up()
    for period, start in (("hour", hour), ("day", day)):
        (found,) = pruned.store.rollups("chain", period, start, start + 60).values()  # type: ignore[arg-type]
        assert (found.windows, found.messages, found.lost_max) == (60, 6_000, 60)
    with pruned.store.engine.connect() as connection:
        assert rollups.pruned_before(connection) == day + DAY_S
    pruned.retention.round(NOW_MS)
    assert pruned.days(WINDOW) == [20]


def test_minutes_wait_for_their_rollups(pruned: Pruned) -> None:
    pruned.close(days_ago(40))
    pruned.retention.round(NOW_MS)
    assert pruned.days(WINDOW) == [40]
    failures = SetAside(pruned.store.engine)
    rollups.roll_up(pruned.store.engine, NOW_MS + SETTLE_MS, failures)  # the hour, which marks the day
    pruned.retention.round(NOW_MS)
    assert pruned.days(WINDOW) == [40]
    pruned.roll_up()
    pruned.retention.round(NOW_MS)
    assert pruned.days(WINDOW) == []


@pytest.mark.parametrize("days", [3, 9])
def test_tallies_stay_while_a_window_of_their_day_is_not_closed_or_has_changed(pruned: Pruned, days: int) -> None:
    first, second = days_ago(days), days_ago(days, minute=1)
    pruned.report("one", first * 1000 + 70_000, [first])
    pruned.close(first)
    pruned.seal(first)
    pruned.report("one", first * 1000 + 130_000, [second])
    pruned.retention.round(NOW_MS)
    assert pruned.days(TALLY) == [days]  # the second is still open
    pruned.close(second)
    pruned.report("one", first * 1000 + 190_000, [second], beacons=120)
    pruned.retention.round(NOW_MS)
    assert pruned.days(TALLY) == [days]  # and now dirty
    pruned.close(second, messages=120)
    pruned.retention.round(NOW_MS)
    assert pruned.days(TALLY) == ([3] if days == 3 else [])  # it may change still, unless it is too old
    pruned.seal(second)
    pruned.retention.round(NOW_MS)
    assert pruned.days(TALLY) == []
    assert [window["state"] for window in documents(pruned.store.windows("chain", first, first + 120))] == [
        "sealed",
        "sealed",
    ]


def test_tallies_of_a_pipeline_without_definition_stay_as_long_as_their_blocks(pruned: Pruned) -> None:
    for days in (9, 3):
        pruned.report("one", days_ago(days) * 1000, [days_ago(days)], pipeline="stranger")
    pruned.retention.round(NOW_MS)
    assert pruned.days(TALLY) == [3]


def test_windows_of_a_deleted_pipeline_hold_no_day_back(pruned: Pruned) -> None:
    never_closed, dirty = days_ago(9), days_ago(9, minute=1)
    pruned.close(dirty)
    pruned.report("one", dirty * 1000 + 70_000, [never_closed, dirty])
    pruned.retention.round(NOW_MS)
    assert pruned.days(TALLY) == [9]
    pruned.store.delete("chain")
    pruned.retention.round(NOW_MS)
    assert pruned.days(TALLY) == []
    assert [window["state"] for window in documents(pruned.store.windows("chain", dirty, dirty + 60))] == ["sealed"]


def test_tallies_go_in_order_so_that_later_ones_can_tell_of_older_windows(pruned: Pruned) -> None:
    pruned.report("one", days_ago(4) * 1000, [days_ago(4)])
    pruned.report("one", days_ago(3) * 1000, [days_ago(3)])
    pruned.close(days_ago(3))
    pruned.seal(days_ago(3))
    pruned.retention.round(NOW_MS)
    assert pruned.days(TALLY) == [4, 3]


def test_a_window_that_is_sealed_by_age_is_off_the_agenda(pruned: Pruned) -> None:
    start = days_ago(9)
    pruned.report("one", start * 1000 + 70_000, [start])
    pruned.close(start)
    pruned.watch.refresh()
    pruned.retention.round(NOW_MS)
    with pruned.store.engine.connect() as connection:
        assert unfinished.read_states(connection, [("chain", start)]) == {("chain", start): "sealed"}
    assert start not in pruned.watch.schedules["chain"].to_close(NOW_MS, NOW_MS)


def test_a_window_is_not_sealed_by_a_broker_that_does_not_name_the_partition_of_its_blocks(
    pruned: Pruned,
) -> None:
    start, window = days_ago(1), tables.WindowRow
    pruned.close(start)
    with pruned.store.engine.begin() as connection:
        connection.execute(update(window).where(window.window_start == start).values(log_start=[[8, 5]]))
    pruned.closer.sealing.seal_gone()  # the topic has partitions 0 to 7, as far as this broker knows
    with pruned.store.engine.connect() as connection:
        assert unfinished.read_states(connection, [("chain", start)]) == {("chain", start): "closed"}


def test_a_day_in_use_is_left_for_the_next_round(pruned: Pruned) -> None:
    start = days_ago(9)
    pruned.report("one", start * 1000, [start])
    pruned.close(start)
    pruned.roll_up()
    with pruned.store.engine.begin() as other:
        other.execute(text("SELECT count(*) FROM tally"))
        began = time.monotonic()
        pruned.retention.round(NOW_MS)
        assert time.monotonic() - began < 5
        assert pruned.days(TALLY) == [9]
    pruned.retention.round(NOW_MS)
    assert pruned.days(TALLY) == []


def test_a_report_followed_while_a_day_was_looked_at_keeps_it(pruned: Pruned) -> None:
    start = days_ago(9)
    pruned.report("one", start * 1000, [start])
    pruned.close(start)
    with pruned.store.engine.begin() as other:
        other.execute(text("LOCK TABLE reports_position IN EXCLUSIVE MODE"))
        thread = threading.Thread(target=pruned.retention.round, args=(NOW_MS,))
        other.execute(update(TALLY).values(changed_basis=10))
        thread.start()
        wait_until(pruned.waiting_backend)  # it has looked, and waits for its turn
    thread.join(20)
    assert pruned.days(TALLY) == [9]


def test_following_into_old_days_and_dropping_them_do_not_lock_each_other_out(pruned: Pruned) -> None:
    starts, enough, trouble = [days_ago(days) for days in (12, 11, 10, 9)], threading.Event(), list[BaseException]()

    def dropped() -> float:
        return pruned.metric("lagloss_days_dropped_total", table="tally") or 0

    def follow() -> None:
        try:
            while not enough.is_set():
                for start in starts:
                    pruned.report("one", start * 1000 + 70_000, [start], pipeline="stranger")
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    deadline = time.monotonic() + 30
    while dropped() < 3 and thread.is_alive() and time.monotonic() < deadline:
        pruned.retention.round(NOW_MS)
    enough.set()
    thread.join()
    assert trouble == []
    assert dropped() >= 3
    pruned.retention.round(NOW_MS)
    assert pruned.days(TALLY) == []


def work_in_hand(until_ms: int) -> list[Progress]:
    return [Progress("snk.out", "", until_ms)]


def emitters(pruned: Pruned) -> set[str]:
    with pruned.store.engine.connect() as connection:
        return {name.decode().strip() for name in connection.execute(select(tables.EmitterRow.emitter)).scalars()}


def lanes(pruned: Pruned) -> set[str]:
    """The lanes: an ordered one's name, or whose work in hand it is."""
    with pruned.store.engine.connect() as connection:
        rows = connection.execute(select(tables.LaneRow.lane, tables.LaneRow.holder))
        return {row.lane or row.holder.decode().strip() for row in rows}


def test_emitters_that_no_window_knows_any_more_go_with_their_work_in_hand(pruned: Pruned) -> None:
    ago = {days: NOW_MS - days * DAY_MS for days in (1, 10, 11, 12)}
    pruned.report("killed", ago[12], progress=[*work_in_hand(ago[12]), Progress("snk.in", "topic/3", ago[12])])
    pruned.report("of no node", ago[12], node="gone", progress=[Progress("gone.in", "topic/4", ago[12])])
    pruned.report("ended before", ago[11], closed=True, progress=work_in_hand(ago[11]))
    pruned.report("ended last", ago[10], closed=True, progress=work_in_hand(ago[10]))
    pruned.report("silent", ago[1], progress=work_in_hand(ago[1]))
    pruned.report("lives", NOW_MS, [days_ago(1)], progress=work_in_hand(NOW_MS))
    pruned.watch.refresh()
    pruned.retention.round(NOW_MS)
    assert emitters(pruned) == {"ended last", "silent", "lives"}
    # what waits in partition 3 is late, however long nobody takes it in; no definition has a node `gone`
    assert lanes(pruned) == {"ended last", "silent", "lives", "topic/3"}


def test_an_emitter_stays_while_a_window_of_its_time_waits_to_be_closed(pruned: Pruned) -> None:
    start = days_ago(9)
    pruned.report("one", start * 1000, [start], progress=work_in_hand(start * 1000))
    pruned.report("two", start * 1000 + 60_000, [], progress=work_in_hand(start * 1000))
    pruned.retention.round(NOW_MS)
    assert emitters(pruned) == lanes(pruned) == {"one", "two"}
    pruned.close(start)
    pruned.retention.round(NOW_MS)
    assert emitters(pruned) == lanes(pruned) == set()


def test_rows_without_partitions_go_by_age(pruned: Pruned) -> None:
    def ago(days: int) -> Any:
        return func.to_timestamp(NOW_MS / 1000 - days * DAY_S)

    with pruned.store.engine.begin() as connection:
        for at, days in enumerate((6, 8)):
            bad = {"topic": "t", "topic_partition": 0, "topic_offset": at, "reason": "not_avro", "first_bytes": b""}
            connection.execute(insert(tables.QuarantinedRow).values(found_at=ago(days), **bad))
            asked: dict[str, Any] = {"pipeline": "chain", "from_s": 0, "to_s": 60, "requested_at": ago(days)}
            connection.execute(insert(tables.RecomputeRequestRow).values(asked))
            connection.execute(insert(tables.RecomputeRequestRow).values(**asked, answer={"windows": 1}))
        entry = {
            "actor": "ann",
            "known_by": "none",
            "object": "x",
            "pipelines": [],
            "detail": {},
            "action": "recompute",
        }
        for days in (399, 401, 500):
            connection.execute(insert(AuditTrailRow).values(at=ago(days), **entry))
        for days in (728, 732):
            due_ms = 1_000 * days_ago(days)
            run = RunReport("dag", f"r-{days}", due_ms, task="t", task_event=StateAt("success", due_ms, due_ms, due_ms))
            record(connection, [("chain", run)])
        for days, missed_days in ((728, 6), (732, 8)):
            store_lost(connection, "chain", days_ago(days), "a", missed_at=NOW_MS - missed_days * DAY_MS)
    for days in (728, 732):
        pruned.close(days_ago(days))
    pruned.roll_up()
    assert pruned.count(tables.RollupRow) == 4
    pruned.retention.round(NOW_MS)
    assert (pruned.count(tables.QuarantinedRow), pruned.count(tables.RecomputeRequestRow)) == (1, 3)
    assert (pruned.count(DagRunRow), pruned.count(TaskTryRow)) == (1, 1)
    assert (pruned.count(LostAfterwardsRow), pruned.count(LostAfterwardsMessageRow)) == (1, 1)
    with pruned.store.engine.connect() as connection:
        kept = connection.execute(select(func.count()).where(AuditTrailRow.object == "x")).scalar_one()
    assert kept == 1
    assert set(pruned.store.rollups("chain", "hour", 0, TODAY_S)) == {days_ago(728)}
    assert pruned.count(tables.RollupRow) == 2


def test_a_plan_of_a_repair_stays_while_it_can_go_on_or_its_windows_name_what_was_lost(pruned: Pruned) -> None:
    def plan(name: str, state: str, to_days: int, created_days: int) -> None:
        at = func.to_timestamp(NOW_MS / 1000 - created_days * DAY_S)
        window_s = days_ago(to_days)
        made = {
            "id": name, "pipeline": "chain", "place": "node a", "from_window": window_s - 60, "to_window": window_s,
            "with_perhaps": False, "cluster": "", "plan": {}, "set_hash": "", "created_at": at, "created_by": "ann",
            "state": state, "runner": "", "position": 0,
        }  # fmt: skip
        message = {
            "repair": name, "position": 0, "pipeline": "chain", "window_start": window_s - 60, "id_hash": 1,
            "kind": "lost", "state": "sent", "is_delivered": False,
        }  # fmt: skip
        connection.execute(insert(RepairRow).values(made))
        connection.execute(insert(RepairMessageRow).values(message))

    with pruned.store.engine.begin() as connection:
        plan("over", "finished", 9, 8)
        plan("stopped", "stopped", 9, 8)
        plan("named", "finished", 7, 8)
        plan("of today", "finished", 9, 1)
    pruned.retention.round(NOW_MS)
    with pruned.store.engine.connect() as connection:
        kept = set(connection.execute(select(RepairMessageRow.repair)).scalars())
    assert kept == {"stopped", "named", "of today"}
    assert pruned.count(RepairRow) == 4


def test_upkeep_rolls_up_and_prunes_beside_closing(pruned: Pruned) -> None:
    with pruned.store.engine.begin() as connection:
        ensure_days(connection, [days_ago(40)])
    pruned.close(days_ago(1), now_ms=NOW_MS - SETTLE_MS)
    failures = SetAside(pruned.store.engine)
    loop = MaintenanceLoop(pruned.store.engine, pruned.closer, pruned.watch, pruned.retention, pruned.metrics, failures)
    began_s = time.time()
    loop.tick(NOW_MS)
    assert list(pruned.store.rollups("chain", "hour", 0, TODAY_S)) == [days_ago(1)]
    # today's and tomorrow's are made ahead; midnight may have passed since this file was imported, or just now
    days_past = [int(at_s // DAY_S) - TODAY_S // DAY_S for at_s in (began_s, time.time())]
    assert set(pruned.days(WINDOW)) in [{1, -past, -past - 1} for past in days_past]
    # its day is next
    assert (pruned.metric("lagloss_rollups_computed_total"), pruned.metric("lagloss_rollups_dirty")) == (1, 1)
    assert pruned.metric("lagloss_days_kept", table="window") == 1
