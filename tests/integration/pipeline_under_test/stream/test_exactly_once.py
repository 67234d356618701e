"""event-norm in transactions: every event once, whenever its process is killed, and an account without holes."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from lagloss.broker.topics import create_topics
from lagloss.wire.format import hash_id
from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.events.schema import packaged
from pipeline_under_test.stream.kafka.clients import consumer_for
from pipeline_under_test.stream.kafka.topics import PARTITIONS
from pipeline_under_test.stream.kafka.transactional_producer import Aborted, TransactionalProducer
from pipeline_under_test.stream.nodes import transaction
from pipeline_under_test.stream.nodes.process import PROCESSES
from pipeline_under_test.stream.nodes.transaction import TransactionalLoop
from pipeline_under_test.stream.nodes.worker import EventOutlet
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import EVENT_NORM, EVENT_ROUTER, dead_topic, group_of, topic_of
from tests.integration.pipeline_under_test.stream.test_reference_pipeline import Finished, read_beacons, run_pipeline
from tests.support.closers import wait_until
from tests.support.event_topics import backlog, configure, events_in, idle_pipeline, put
from tests.support.node_process import at_commit, running

A_LOAD = 300
"""Events that wait when a process is killed: several batches."""
FAULTS = (
    "lose:link:event-norm->event-router:0.05",
    "lose:node:event-norm:0.05",
    "filter:event-norm:0.05",
    "dead:event-norm:0.05",
    "duplicate:event-norm:0.05",
    "delay:event-norm:300ms:0.01",
    "corrupt:event-norm->event-router:0.05",
)


def some_events(name: str, count: int) -> list[Event]:
    now_ms = int(time.time() * 1000)
    body = packaged().encode({"url": "https://shop.example/cart", "kind": "Click"})
    return [Event(f"{name}-{number}", now_ms, body) for number in range(count)]


@retry(retry=retry_if_exception_type(KafkaException), stop=stop_after_delay(20), wait=wait_fixed(0.1), reraise=True)
def written(settings: ReferenceSettings, isolation: IsolationLevel) -> int:
    """Where event-router's topic ends, all partitions together, for readers of what is committed or of everything.
    A broker that does not lead a new topic yet is asked again."""
    topic = topic_of(settings.pipeline, EVENT_ROUTER)
    latest = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(PARTITIONS)}
    admin = AdminClient({"bootstrap.servers": settings.bootstrap})  # kept: its questions end with it
    asked = admin.list_offsets(latest, isolation_level=isolation)
    return sum(int(future.result(10).offset) for future in asked.values())


def is_amid_a_transaction(settings: ReferenceSettings) -> bool:
    everything = written(settings, IsolationLevel.READ_UNCOMMITTED)
    return everything > written(settings, IsolationLevel.READ_COMMITTED)


@pytest.mark.slow
def test_every_event_is_there_once_however_often_its_process_is_killed_around_a_commit(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    create_topics(kafka_bootstrap)
    settings = idle_pipeline(kafka_bootstrap, tmp_path).model_copy(update={"exactly_once": True})
    settings.save()
    sent = []
    for kill, point in enumerate(("before_the_commit", "after_the_commit", "before_the_commit")):
        events = some_events(f"load-{kill}", A_LOAD)
        put(settings, topic_of(settings.pipeline, EVENT_NORM), events)
        sent += events
        with at_commit(settings, point):
            assert is_amid_a_transaction(settings) == (point == "before_the_commit")
    with running(settings, "node", EVENT_NORM):
        wait_until(lambda: backlog(settings, EVENT_NORM) == 0, 60, "for all to be committed")
    found = Counter(event.id for event in events_in(kafka_bootstrap, topic_of(settings.pipeline, EVENT_ROUTER)))
    assert found == {event.id: 1 for event in sent}
    beacons = read_beacons(kafka_bootstrap, settings.pipeline)
    ids = {hash_id(event.id) for event in sent}
    assert beacons.ids["event-norm.out"] <= beacons.ids["event-norm.in"] == ids
    assert beacons.counts["event-norm.out"] == len(beacons.ids["event-norm.out"]), "what is aborted was told of"
    assert beacons.counts["event-norm.in"] > len(ids), "no process was killed between its beacons and its commit"


@pytest.fixture(scope="module")
def faulty(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Ten seconds at 100 events a second with every fault that a node has."""
    options = ["--exactly-once", "--rate", "100", "--minutes", "0.17", "--settle", "0"]
    options += [word for fault in FAULTS for word in ("--fault", fault)]
    began = time.monotonic()
    ended = run_pipeline(kafka_bootstrap, tmp_path_factory.mktemp("faulty"), options)
    assert time.monotonic() - began < 90, "the markers of transactions are taken for records under way"
    return ended


@pytest.mark.slow
def test_what_is_lost_by_a_node_that_works_in_transactions_is_what_the_ledger_says(faulty: Finished) -> None:
    beacons = faulty.beacons
    on_link = beacons.out("event-norm", "event-router") - beacons.ids["event-router.in"]
    assert on_link == faulty.lost_at("link event-norm->event-router")
    at_node = beacons.ids["event-norm.in"] - beacons.exits("event-norm")
    assert at_node == faulty.lost_at("node event-norm")
    assert on_link
    assert at_node
    assert [window["unaccounted"] for window in faulty.windows if window["unaccounted"]] == []
    assert all(faulty.total(what) > 0 for what in ("filtered", "dead", "delivered"))


@pytest.mark.slow
def test_only_what_is_doubled_on_purpose_is_doubled(faulty: Finished) -> None:
    beacons = faulty.beacons
    assert beacons.counts["event-norm.in"] == len(beacons.ids["event-norm.in"])
    twice = beacons.counts["event-norm.out"] - len(beacons.ids["event-norm.out"])
    assert 0 < twice <= faulty.total("duplicated")


def test_what_was_sent_in_a_transaction_that_is_aborted_nobody_reads(kafka_bootstrap: str, tmp_path: Path) -> None:
    settings = idle_pipeline(kafka_bootstrap, tmp_path)
    topic, group = topic_of(settings.pipeline, EVENT_ROUTER), group_of(settings.pipeline, EVENT_NORM)
    first, second = some_events("output", 2)
    consumer = consumer_for(kafka_bootstrap, group, "test")
    try:
        producer = TransactionalProducer(kafka_bootstrap, "test", f"{group}.0")
        producer.take_over()
        producer.begin()
        producer.send(topic, first, lambda: None, lambda reason: None)
        producer.abort()
        producer.begin()
        producer.send(topic, second, lambda: None, pytest.fail)
        producer.commit([], consumer)
    finally:
        consumer.close()
    assert [event.id for event in events_in(kafka_bootstrap, topic)] == [second.id]


def test_who_takes_a_dead_process_s_place_ends_what_it_left_open_and_shuts_it_out(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    settings = idle_pipeline(kafka_bootstrap, tmp_path)
    topic, name = topic_of(settings.pipeline, EVENT_ROUTER), group_of(settings.pipeline, EVENT_NORM) + ".0"
    before = TransactionalProducer(kafka_bootstrap, "test", name)
    before.take_over()
    before.begin()
    acknowledged: list[str] = []
    (event,) = some_events("left", 1)
    before.send(topic, event, lambda: acknowledged.append(event.id), pytest.fail)
    wait_until(lambda: before.poll(0.1) or acknowledged, 30, "for the record to be in the log")
    assert is_amid_a_transaction(settings)
    TransactionalProducer(kafka_bootstrap, "test", name).take_over()
    wait_until(lambda: not is_amid_a_transaction(settings), 30, "for the transaction to end")
    consumer = consumer_for(kafka_bootstrap, "anybody", "test")
    with pytest.raises(KafkaException, match="fenced"):
        before.commit([], consumer)
    consumer.close()
    assert events_in(kafka_bootstrap, topic) == []


@contextmanager
def at_work(worker: TransactionalLoop, outlet: EventOutlet) -> Iterator[None]:
    """A worker in a thread of ours; at the end it is told to end, and does."""
    thread = threading.Thread(target=worker.run, args=(outlet,))
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(30)
        assert not thread.is_alive()


def worker_with(settings: ReferenceSettings, events: Sequence[Event]) -> tuple[TransactionalLoop, EventOutlet]:
    """An event-norm that has these to do."""
    put(settings, topic_of(settings.pipeline, EVENT_NORM), events)
    worker, outlet = PROCESSES[EVENT_NORM](settings)
    assert isinstance(worker, TransactionalLoop)
    return worker, outlet


@pytest.mark.slow
def test_a_batch_whose_transaction_is_aborted_is_read_again_and_told_of_once(
    kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topics(kafka_bootstrap)
    settings = idle_pipeline(kafka_bootstrap, tmp_path, exactly_once=True)
    events = some_events("again", 30)
    worker, outlet = worker_with(settings, events)
    commit, aborted = worker.producer.commit, list[bool]()

    def at_the_third(offsets: Sequence[TopicPartition], consumer: Consumer) -> None:
        if len(aborted) < 2:
            aborted.append(is_amid_a_transaction(settings))
            raise Aborted("the test says so")
        commit(offsets, consumer)

    monkeypatch.setattr(worker.producer, "commit", at_the_third)
    with at_work(worker, outlet):
        wait_until(lambda: backlog(settings, EVENT_NORM) == 0, 60, "for all to be committed")
    assert aborted == [True, True]
    found = Counter(event.id for event in events_in(kafka_bootstrap, topic_of(settings.pipeline, EVENT_ROUTER)))
    assert found == {event.id: 1 for event in events}
    beacons = read_beacons(kafka_bootstrap, settings.pipeline)
    assert beacons.ids["event-norm.in"] == beacons.ids["event-norm.out"] == {hash_id(event.id) for event in events}
    assert beacons.counts["event-norm.in"] > beacons.counts["event-norm.out"] == len(events)
    assert [report.closed for report in beacons.last_reports.values()] == [True]


@pytest.mark.slow
def test_a_batch_that_cannot_be_finished_in_time_is_aborted_at_the_end_and_left_to_the_next_process(
    kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topics(kafka_bootstrap)
    settings = idle_pipeline(kafka_bootstrap, tmp_path, exactly_once=True)
    events = some_events("left", 30)
    worker, outlet = worker_with(settings, events)
    monkeypatch.setattr(worker.emitter, "acknowledged", lambda _mark: False)
    monkeypatch.setattr(transaction, "FINISH_TIMEOUT_S", 0.5)
    with at_work(worker, outlet):
        wait_until(lambda: is_amid_a_transaction(settings), 60, "for a transaction")
    assert not is_amid_a_transaction(settings)
    assert events_in(kafka_bootstrap, topic_of(settings.pipeline, EVENT_ROUTER)) == []
    assert backlog(settings, EVENT_NORM) == len(events)
    beacons = read_beacons(kafka_bootstrap, settings.pipeline)
    assert beacons.ids["event-norm.in"]
    assert not beacons.ids["event-norm.out"]
    assert [report.unfinished for report in beacons.last_reports.values()] == [True]


@pytest.mark.slow
def test_an_event_that_no_broker_takes_is_dead_and_its_batch_is_not_held_up(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    create_topics(kafka_bootstrap)
    settings = idle_pipeline(kafka_bootstrap, tmp_path).model_copy(update={"exactly_once": True})
    settings.save()
    configure(kafka_bootstrap, topic_of(settings.pipeline, EVENT_ROUTER), max_message_bytes="20000")
    noise = random.Random(1).randbytes(60_000).hex()  # which cannot be made much smaller: batches are compressed
    large = packaged().encode({"url": f"https://shop.example/{noise}", "kind": "click"})
    events = [*some_events("small", 5), some_events("large", 1)[0].with_body(large)]
    put(settings, topic_of(settings.pipeline, EVENT_NORM), events)
    with running(settings, "node", EVENT_NORM):
        wait_until(lambda: backlog(settings, EVENT_NORM) == 0, 60, "for all to be committed")
    passed = Counter(event.id for event in events_in(kafka_bootstrap, topic_of(settings.pipeline, EVENT_ROUTER)))
    dead = Counter(event.id for event in events_in(kafka_bootstrap, dead_topic(settings.pipeline)))
    assert passed + dead == {event.id: 1 for event in events}
    assert "large-0" in dead
