"""What taps of a process share: looks at topics, and the log of commits."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from taps import commit_log
from taps.cluster_topics import TURN_S, ClusterTopics, SharedLook, TopicIs
from taps.commit_log import OFFSETS_TOPIC, Commit, CommitLog, partition_of_group
from taps.topic_reader import TopicReader
from tests.support.kafka_log import wait_for


class CountedTopics(ClusterTopics):
    """Counts how often the brokers are asked to describe topics."""

    asked = 0

    def _describe(self, topics: list[str]) -> dict[str, TopicIs | KafkaException]:
        self.asked += 1
        return super()._describe(topics)


@pytest.fixture
def admin(kafka_bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})


@pytest.fixture
def topics(kafka_bootstrap: str) -> CountedTopics:
    return CountedTopics(kafka_bootstrap)


@pytest.fixture
def readers(kafka_bootstrap: str, topics: CountedTopics) -> Iterator[list[TopicReader]]:
    """Three readers of each of two topics; of the second one nothing is there."""
    with ExitStack() as stack:
        names = [f"shared-{uuid.uuid4().hex[:8]}" for _ in range(2)]
        yield [
            stack.enter_context(closing(TopicReader(kafka_bootstrap, name, topics))) for name in names for _ in range(3)
        ]


def create(admin: AdminClient, topic: str, partitions: int) -> None:
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


NOT_READY = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,  # the controller has named a leader that does not know of it yet
)


def newest(reader: TopicReader) -> SharedLook | None:
    """Return the newest look, None while the topic does not exist or its leaders are not ready."""
    try:
        return reader.newest()
    except KafkaException as error:
        if error.args[0].code() not in NOT_READY:
            raise
        return None


def look_of(reader: TopicReader) -> SharedLook:
    """The first look at a topic that was created just now."""
    deadline = time.monotonic() + 20
    while (found := newest(reader)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def create_both(admin: AdminClient, readers: list[TopicReader]) -> None:
    create(admin, readers[0].topic, 2)
    create(admin, readers[3].topic, 1)
    for reader in readers:
        look_of(reader)


def test_readers_share_a_look_and_none_gets_one_twice(
    admin: AdminClient, topics: CountedTopics, readers: list[TopicReader]
) -> None:
    create_both(admin, readers)
    time.sleep(TURN_S)  # until no look is new enough
    topics.asked = 0
    began = time.monotonic()
    with ThreadPoolExecutor(len(readers)) as threads:
        looks = list(threads.map(TopicReader.newest, readers))
    assert (topics.asked, len({look.asked_at for look in looks})) == (1, 1)
    assert looks[0].asked_at > began
    again = readers[0].newest()
    assert again.asked_at > looks[0].asked_at
    assert topics.asked == 2
    assert readers[4].newest().asked_at == again.asked_at  # of another topic
    since = time.monotonic()
    assert readers[1].newest(since).asked_at > since
    assert topics.asked == 3


def test_a_look_has_what_was_written_before_it(
    kafka_bootstrap: str, admin: AdminClient, readers: list[TopicReader]
) -> None:
    create_both(admin, readers)
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    for count in range(1, 20):
        producer.produce(readers[0].topic, "x", partition=1)
        producer.flush()
        found = readers[0].newest(time.monotonic())
        assert found.look.logs[1].end == count
        assert found.look.at_ms <= time.time_ns() // 1_000_000


def test_a_topic_that_is_not_there_stops_no_other_and_is_seen_once_it_is(
    admin: AdminClient, topics: CountedTopics, readers: list[TopicReader]
) -> None:
    create(admin, readers[0].topic, 2)
    look_of(readers[0])
    assert newest(readers[3]) is None
    topics.asked = 0
    began = time.monotonic()
    assert (newest(readers[4]), newest(readers[5]), topics.asked) == (None, None, 0)  # nor is it asked for each
    assert newest(readers[0])
    assert time.monotonic() - began < TURN_S
    create(admin, readers[3].topic, 1)
    found = look_of(readers[3])
    assert list(found.look.logs) == [0]
    admin.create_partitions([NewPartitions(readers[3].topic, 3)])[readers[3].topic].result(30)
    wait_for(
        lambda: (found := newest(readers[4])) is not None and len(found.look.logs) == 3,
        timeout_s=20,
        what="partitions that were added",
    )
    admin.delete_topics([readers[3].topic])[readers[3].topic].result(30)
    wait_for(lambda: newest(readers[3]) is None, timeout_s=20, what="the deletion")
    assert newest(readers[0])
    create(admin, readers[3].topic, 1)
    assert look_of(readers[3]).topic_id != found.topic_id


def test_every_tap_gets_every_commit_wherever_it_is(
    kafka_bootstrap: str, admin: AdminClient, topics: CountedTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taps that begin at different places, stand still and go back, with little kept and little read in one turn."""
    monkeypatch.setattr(commit_log, "MAX_KEPT", 3)
    monkeypatch.setattr(commit_log, "MAX_RECORDS", 5)
    chance = random.Random(7)
    topic, group = f"committed-{uuid.uuid4().hex[:8]}", f"group-{uuid.uuid4().hex[:8]}"
    create(admin, topic, 1)
    consumer = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": group, "log_level": 0})
    with closing(consumer), closing(CommitLog.of_groups(kafka_bootstrap, topics)) as log:
        consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
        partition = partition_of_group(group, len(log.partitions()))
        begin = topics.look(OFFSETS_TOPIC, [partition]).logs[partition].end - 1
        places = [begin] * 4
        found: list[list[Commit]] = [[] for _ in places]
        committed = 1
        while min(map(len, found)) < 60:
            if committed < 60 and chance.random() < 0.5:
                for _ in range(chance.randint(1, 9)):
                    consumer.commit(offsets=[TopicPartition(topic, 0, committed)], asynchronous=False)
                    committed += 1
            tap = chance.randrange(len(places))
            read = log.read({partition: places[tap]}, time.monotonic() - chance.random())
            assert places[tap] <= read.reached[partition] <= read.look.look.logs[partition].stable_end
            found[tap] += [logged.value for logged in read.records if logged.value.group == group]
            places[tap] = read.reached[partition]
            if chance.random() < 0.02:
                places[tap], found[tap] = begin, []
        for commits in found:
            assert [commit.offset for commit in commits] == list(range(len(commits)))
