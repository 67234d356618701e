"""What becomes of a transaction, whatever the client says to each step of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.kafka import transactional_producer
from pipeline_under_test.stream.kafka.transactional_producer import Aborted, TransactionalProducer

TO_ABORT = KafkaError(KafkaError.INVALID_PRODUCER_EPOCH, "aborted", txn_requires_abort=True)
AGAIN = KafkaError(KafkaError._TIMED_OUT, "not yet", retriable=True)
FENCED = KafkaError(KafkaError._FENCED, "fenced", fatal=True)
AWAY = KafkaError(KafkaError._MSG_TIMED_OUT, "no answer")
TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large")
PLACE = [TopicPartition("in", 0, 7)]


class Client:
    """Stands in for the client library's producer: fails a step as often as it is told to, and notes the others."""

    def __init__(self, _config: object = None) -> None:
        self.steps: list[str] = []
        self.fails: dict[str, list[KafkaError]] = {}
        self._reports: list[tuple[Callable[..., None], KafkaError | None]] = []

    def __getattr__(self, step: str) -> Callable[..., None]:
        def take(*_arguments: object) -> None:
            self._fail(step)
            self.steps.append(step)

        return take

    def produce(self, _topic: str, _value: bytes, key: bytes, *, on_delivery: Callable[..., None], **_: object) -> None:
        self._fail("produce")
        self.steps.append(f"produce {key.decode()}")
        refusals = self.fails.get("deliver")
        self._reports.append((on_delivery, refusals.pop(0) if refusals else None))

    def poll(self, _timeout_s: float) -> None:
        reports, self._reports = self._reports, []
        for report, error in reports:
            report(error, None)

    def _fail(self, step: str) -> None:
        if errors := self.fails.get(step):
            raise KafkaException(errors.pop(0))


class Group:
    """Stands in for the consumer."""

    def consumer_group_metadata(self) -> object:
        return object()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()
    monkeypatch.setattr(transactional_producer, "Producer", lambda _config: made)
    return made


@pytest.fixture
def producer(client: Client) -> TransactionalProducer:
    return TransactionalProducer("nowhere:1", "test", "test.0")


def commit(producer: TransactionalProducer) -> None:
    group: Any = Group()
    producer.commit(PLACE, group)


def send(producer: TransactionalProducer, name: str) -> list[str]:
    """What is told of an event that is sent."""
    told: list[str] = []
    producer.send("out", Event(name, 0, b"body"), lambda: told.append("acknowledged"), told.append)
    return told


@pytest.mark.parametrize("step", ["send_offsets_to_transaction", "commit_transaction"])
def test_a_transaction_that_cannot_be_committed_is_aborted_and_the_next_one_begins(
    producer: TransactionalProducer, client: Client, step: str
) -> None:
    client.fails[step] = [TO_ABORT]
    producer.begin()
    with pytest.raises(Aborted, match="aborted"):
        commit(producer)
    producer.abort()
    producer.begin()
    commit(producer)
    ends = ["send_offsets_to_transaction", "commit_transaction"]
    assert client.steps == [
        "begin_transaction",
        *ends[: ends.index(step)],
        "abort_transaction",
        "begin_transaction",
        *ends,
    ]


def test_a_step_that_may_pass_is_tried_again(producer: TransactionalProducer, client: Client) -> None:
    client.fails = {step: [AGAIN, AGAIN] for step in ("init_transactions", "commit_transaction", "abort_transaction")}
    producer.take_over()
    producer.begin()
    commit(producer)
    producer.begin()
    producer.abort()
    ends = ["begin_transaction", "send_offsets_to_transaction", "commit_transaction"]
    assert client.steps == ["init_transactions", *ends, "begin_transaction", "abort_transaction"]


def test_a_producer_that_is_shut_out_ends_its_process(producer: TransactionalProducer, client: Client) -> None:
    client.fails["commit_transaction"] = [FENCED]
    producer.begin()
    with pytest.raises(KafkaException, match="fenced"):
        commit(producer)


def test_a_record_that_is_not_acknowledged_aborts_and_is_sent_again_in_the_next_transaction(
    producer: TransactionalProducer, client: Client
) -> None:
    client.fails["deliver"] = [AWAY]
    producer.begin()
    told = send(producer, "a")
    with pytest.raises(Aborted, match="no answer"):
        producer.poll()
    producer.abort()
    producer.begin()
    again = send(producer, "a")
    producer.poll()
    assert (told, again) == ([], ["acknowledged"])


def test_a_record_that_no_broker_takes_is_rejected_in_the_next_transaction_and_the_others_are_not(
    producer: TransactionalProducer, client: Client
) -> None:
    client.fails["deliver"] = [TOO_LARGE]
    producer.begin()
    told = send(producer, "large")
    with pytest.raises(Aborted, match="too large"):
        producer.poll()
    producer.abort()
    producer.begin()
    told += send(producer, "large")
    other = send(producer, "small")
    producer.poll()
    commit(producer)
    assert (told, other) == (["out did not accept the record: too large"], ["acknowledged"])
    assert client.steps.count("produce large") == 1


def test_a_record_that_the_client_itself_does_not_take_is_rejected_at_once(
    producer: TransactionalProducer, client: Client
) -> None:
    client.fails["produce"] = [TOO_LARGE]
    producer.begin()
    assert send(producer, "large") == ["out did not accept the record: too large"]
    producer.poll()
    commit(producer)


def test_in_a_transaction_that_has_failed_further_records_are_out_of_place(
    producer: TransactionalProducer, client: Client
) -> None:
    client.fails["produce"] = [KafkaError(KafkaError._STATE, "in error")]
    producer.begin()
    with pytest.raises(Aborted, match="in error"):
        send(producer, "a")


def test_nothing_is_aborted_where_nothing_was_begun(producer: TransactionalProducer, client: Client) -> None:
    producer.abort()
    assert client.steps == []
