"""A topic that was deleted and created anew: earlier windows stay, following begins anew."""

from __future__ import annotations

from sqlalchemy import insert, select

from aggregator.reports.batch import ReportRecord
from aggregator.reports.consumer import ReportConsumer
from aggregator.reports.report_tables import known_partitions, notice_recreated_topics
from lagloss.wire.format import EmitterReport, Progress, encode_report
from lagloss_server.queries.emitters import read_whole_from
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store

NOW_MS = 1_780_000_000_000


def followed(store: Store, topic_id: str) -> ReportConsumer:
    """A follower that has followed one report of a topic with this id."""
    follower = ReportConsumer(store.engine, "reports", topic_id)
    report = EmitterReport("p", "src", bytes(16), "here", 1, 0, 0, False, 0, (Progress("src.in", "t/0", 900),))
    follower.follow([ReportRecord(0, 41, 1_000, encode_report(report))], {})
    return follower


def test_the_same_topics_change_nothing(store: Store) -> None:
    follower = followed(store, "reports-1")
    assert not notice_recreated_topics(store.engine, "beacons-1", "reports-1", NOW_MS)
    assert follower.positions() == {0: 42}


def test_partitions_are_known_by_the_positions_in_them_until_the_topic_is_another(store: Store) -> None:
    assert known_partitions(store.engine) == (0, 0)
    followed(store, "reports-1")
    with store.engine.begin() as connection:
        connection.execute(insert(tables.AuditedRow).values(topic_partition=8, next_offset=1, topic_id="beacons-1"))
    assert known_partitions(store.engine) == (9, 1)
    assert notice_recreated_topics(store.engine, "beacons-2", "reports-1", NOW_MS)
    assert known_partitions(store.engine) == (0, 0)


def test_another_topic_is_followed_from_its_start(store: Store) -> None:
    followed(store, "reports-1")
    assert notice_recreated_topics(store.engine, "beacons-1", "reports-2", NOW_MS)
    assert ReportConsumer(store.engine, "reports", "reports-2").positions() == {}
    with store.engine.connect() as connection:
        assert connection.execute(select(tables.TallyRow.pipeline)).all() == []
        assert read_whole_from(connection) == NOW_MS


def test_reports_that_are_followed_again_since_the_beacons_have_another_topic_count_again(store: Store) -> None:
    followed(store, "reports-1")
    with store.engine.begin() as connection:
        connection.execute(insert(tables.AuditedRow).values(topic_partition=0, next_offset=1, topic_id="beacons-1"))
    assert notice_recreated_topics(store.engine, "beacons-2", "reports-1", NOW_MS)
    followed(store, "reports-1")
    with store.engine.connect() as connection:
        assert connection.execute(select(tables.LaneRow.until)).scalars().all() == [900]
        assert read_whole_from(connection) == 0
