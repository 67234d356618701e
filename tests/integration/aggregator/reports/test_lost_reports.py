"""Reports that Kafka lost before they were followed: they are passed over, and from when on all are there is noted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import select

from aggregator.clock import Catchup
from aggregator.outage import ReportsLost
from aggregator.reports import deferral
from aggregator.reports.batch import ReportRecord
from aggregator.reports.consumer import ReportConsumer
from aggregator.reports.feed import ReportFeed
from lagloss.wire.format import EmitterReport, encode_report
from lagloss_server.model.definition import parse_definition
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.emitters import read_whole_from
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store, read_basis
from tests.support.closers import wait_until
from tests.support.cut_logs import cut, log_file
from tests.support.worlds_in_kafka import make_topics

DEFINITION = "{apiVersion: lagloss/v1, kind: Pipeline, metadata: {name: p}, spec: {nodes: [{name: src}]}}"
KNOWN = {"p": frozenset(["src.in"])}
APPENDED_MS = 1_780_000_000_000


def report(seq: int) -> bytes:
    return encode_report(EmitterReport("p", "src", bytes(16), "here", seq, 0, 0, False, 0))


def produce(bootstrap: str, topic: str, seqs: Sequence[int], partition: int = 0) -> None:
    """Produce reports with these seqs one by one: each is a batch."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
    for seq in seqs:
        producer.produce(topic, report(seq), partition=partition, timestamp=APPENDED_MS + seq)
        assert producer.flush(20) == 0


@pytest.fixture
def log(kafka_bootstrap: str, store: Store) -> Iterator[BeaconLog]:
    """A log of ten reports in the first of two partitions, the first of which is at offset 0."""
    store.apply(parse_definition(DEFINITION))
    (topic,) = make_topics(kafka_bootstrap, "reports", partitions=2)
    produce(kafka_bootstrap, topic, range(10))
    with closing(BeaconLog(kafka_bootstrap, topic)) as found:
        yield found


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    """Let the broker forget what is before an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for done in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        done.result(20)


def consumer(store: Store, log: BeaconLog) -> ReportConsumer:
    return ReportConsumer(store.engine, log.topic, log.topic_id())


def followed(store: Store, log: BeaconLog, before: int) -> ReportConsumer:
    """A consumer that has followed the reports before an offset."""
    follower = consumer(store, log)
    records = [ReportRecord(0, offset, APPENDED_MS + offset, report(offset)) for offset in range(before)]
    follower.follow(records, KNOWN)
    return follower


def pass_over(bootstrap: str, follower: ReportConsumer) -> None:
    """Let a feed meet what is lost."""

    def meets(feed: ReportFeed) -> bool:
        try:
            feed.check()
        except ReportsLost:
            return True
        return False

    with ReportFeed(bootstrap, follower, lambda: KNOWN) as feed:
        wait_until(lambda: meets(feed), what="for lost reports to be met")


def follow_all(bootstrap: str, store: Store, log: BeaconLog) -> None:
    follower = consumer(store, log)
    with ReportFeed(bootstrap, follower, lambda: KNOWN) as feed:

        def has_all() -> bool:
            feed.check()
            return all(follower.positions().get(at, 0) >= end for at, end in log.ends().items())

        wait_until(has_all, what="for all reports to be followed")


def whole_from(store: Store) -> int:
    with store.engine.connect() as connection:
        return read_whole_from(connection)


def basis(store: Store) -> int:
    with store.engine.connect() as connection:
        return read_basis(connection)


def newest_seq(store: Store) -> int:
    with store.engine.connect() as connection:
        return connection.execute(select(tables.EmitterRow.seq)).scalar_one()


@pytest.mark.parametrize("before", [0, 3])
def test_what_retention_deleted_before_it_was_followed_is_passed_over_and_noted(
    store: Store, log: BeaconLog, kafka_bootstrap: str, before: int
) -> None:
    follower = followed(store, log, before)
    delete_before(kafka_bootstrap, log.topic, 6)
    pass_over(kafka_bootstrap, follower)
    assert consumer(store, log).positions() == {0: 6}
    assert whole_from(store) == APPENDED_MS + 6
    follow_all(kafka_bootstrap, store, log)
    assert newest_seq(store) == 9
    assert whole_from(store) == APPENDED_MS + 6


def test_a_log_of_which_nothing_is_left_is_caught_up_with_and_incomplete_until_now(
    store: Store, log: BeaconLog, kafka_bootstrap: str
) -> None:
    follower = followed(store, log, 3)
    delete_before(kafka_bootstrap, log.topic, 10)
    assert Catchup().update(1, follower.positions(), log.ends) == 0
    pass_over(kafka_bootstrap, follower)
    assert Catchup().update(1, consumer(store, log).positions(), log.ends) == 1
    assert APPENDED_MS + 10 <= whole_from(store) < time.time() * 1000


def test_what_was_followed_before_retention_deletes_it_is_not_lost(
    store: Store, log: BeaconLog, kafka_bootstrap: str
) -> None:
    followed(store, log, 6)
    delete_before(kafka_bootstrap, log.topic, 6)
    follow_all(kafka_bootstrap, store, log)
    assert (newest_seq(store), whole_from(store)) == (9, 0)


def test_deferred_reports_that_retention_deleted_are_passed_over_and_noted(
    store: Store, log: BeaconLog, kafka_bootstrap: str
) -> None:
    follower = followed(store, log, 8)
    with store.engine.begin() as connection:
        deferral.defer(connection, [("p", ReportRecord(0, 2, APPENDED_MS, None))])
    before = basis(store)
    delete_before(kafka_bootstrap, log.topic, 5)
    with pytest.raises(ReportsLost):
        follower.follow_deferred(log, lambda: KNOWN)
    assert whole_from(store) == APPENDED_MS + 5
    assert basis(store) > before
    follower = consumer(store, log)
    assert follower.positions() == {0: 8}
    with store.engine.connect() as connection:
        assert deferral.read_deferred(connection) == {"p": {0: 5}}
    assert follower.follow_deferred(log, lambda: KNOWN)
    assert not follower.follow_deferred(log, lambda: KNOWN)


KEPT, LOST, NEW = 3, 9, 30


@pytest.mark.slow
@pytest.mark.parametrize("new", [4, NEW])
def test_reports_that_take_the_offsets_of_a_lost_tail_are_followed(store: Store, tmp_path: Path, new: int) -> None:
    """As after an unclean election: the log is shorter than what was followed, or has grown beyond it since."""
    store.apply(parse_definition(DEFINITION))
    with EmbeddedKafka(tmp_path / "kafka") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        topic = NewTopic("cut", 1, 1, config={"message.timestamp.type": "LogAppendTime"})
        admin.create_topics([topic])["cut"].result(20)
        produce(broker.bootstrap, "cut", range(KEPT))
        file = log_file(tmp_path / "kafka", "cut", 0)
        size = file.stat().st_size
        produce(broker.bootstrap, "cut", range(KEPT, KEPT + LOST))
        with closing(BeaconLog(broker.bootstrap, "cut")) as log:
            follow_all(broker.bootstrap, store, log)
            assert (newest_seq(store), whole_from(store)) == (KEPT + LOST - 1, 0)
            cut(broker, file, size)
            produce(broker.bootstrap, "cut", range(100, 100 + new))
            follower, before, now_ms = consumer(store, log), basis(store), int(time.time() * 1000)
            if new < LOST:  # longer, it looks as it should until the feed asks for an epoch
                assert Catchup().update(1, follower.positions(), log.ends) == 0
            pass_over(broker.bootstrap, follower)
            assert consumer(store, log).positions()[0] <= KEPT
            assert now_ms <= whole_from(store)
            assert basis(store) > before
            follow_all(broker.bootstrap, store, log)
            assert newest_seq(store) == 100 + new - 1
            assert consumer(store, log).positions() == {0: KEPT + new}
