"""The sender of a repair: transactions that hold both the records and how far the plan has come.

The transactional id is that of the repair, so a second process shuts out the first. How far the plan has come is an
offset of a consumer group that no consumer is a member of, committed in the same transaction as the records: Kafka has
both or neither.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.broker.errors import kafka_error, needs
from lagloss_server.repair.ledger import TakenOver
from lagloss_server.repair.records import TopicRecord

CALL_TIMEOUT_S: Final = 60.0
GIVE_UP_S: Final = 180.0
"""A call that is tried again for longer fails; the next run learns what became of it."""
TRANSACTION_TIMEOUT_S: Final = 30
"""A transaction of a process that was killed holds committed readers back for so long."""
PARTITION_UA: Final = -1
"""librdkafka's partitioner chooses."""
_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})
_REFUSED: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_MSG}
)
_MAX_RECORD_BYTES: Final = 256 * 1024 * 1024
"""The topic's own limit counts."""


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record to send into a topic, with its headers there. `keeps_partition`: it goes into the partition that it is
    in."""

    target: str
    record: TopicRecord
    headers: list[tuple[str, Any]]
    keeps_partition: bool


class BatchRefused(Exception):
    """The broker takes no such records, by their indexes in the batch; the transaction is aborted."""

    def __init__(self, indexes: Collection[int]) -> None:
        super().__init__(indexes)
        self.indexes = indexes


class RepairSender:
    """Sends records of one repair. Methods raise KafkaException when the brokers do not answer, or refuse.

    Args:
        repair_id: the repair's id.
        name: value of the header `lagloss-replay`.
        topic: a topic that is sent into, whose partition 0 the position stands for.

    Raises:
        TakenOver: another process sends for the same repair.
    """

    def __init__(self, cluster: Cluster, repair_id: str, name: str, topic: str) -> None:
        self._id, self._name = repair_id, name
        group = f"lagloss-{name}"
        # without a callback, a fatal error would be raised in the midst of another one's
        common = {"log_level": 0, "error_cb": lambda _error: None}
        connection = KafkaConnection.of(cluster)
        self._failed: dict[int, KafkaError] = {}
        self._place = TopicPartition(topic, 0)
        self._consumer = Consumer(
            connection.client(
                {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed", **common}
            )
        )
        self._producer = Producer(
            connection.client(
                {
                    "transactional.id": group,
                    "transaction.timeout.ms": TRANSACTION_TIMEOUT_S * 1_000,
                    "message.max.bytes": _MAX_RECORD_BYTES,
                    "compression.type": "lz4",  # what came compressed may be too large without
                    "batch.num.messages": 1,  # the broker refuses batches, and it is to name the record
                    "partitioner": "murmur2_random",
                    **common,
                }
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.purge()
        self._consumer.close()

    def begin(self) -> int | None:
        """Shut out every other sender of the repair, and return how far it came; None if nothing was ever committed, or
        that is forgotten."""
        self._call(self._producer.init_transactions, CALL_TIMEOUT_S)
        (place,) = self._consumer.committed([self._place], timeout=CALL_TIMEOUT_S)
        if place.error is not None:
            raise KafkaException(needs(place.error, "READ", f"group lagloss-{self._name}"))
        return place.offset if place.offset >= 0 else None

    def send(self, records: Sequence[OutgoingRecord], position: int) -> None:
        """Send records, each into its topic, and commit them together with the position of the plan behind them.

        Raises:
            BatchRefused: some of them are not taken, and none is sent.
        """
        self._failed.clear()
        self._call(self._producer.begin_transaction)
        for index, record in enumerate(records):
            if self._failed:
                break
            self._produce(index, record)
        self._call(self._producer.flush, CALL_TIMEOUT_S)
        if self._failed:
            self._call(self._producer.abort_transaction, CALL_TIMEOUT_S)
            if refused := [index for index, error in self._failed.items() if error.code() in _REFUSED]:
                raise BatchRefused(refused)
            raise KafkaException(next(iter(self._failed.values())))
        offset = TopicPartition(self._place.topic, self._place.partition, position)
        group = self._consumer.consumer_group_metadata()
        self._call(self._producer.send_offsets_to_transaction, [offset], group, CALL_TIMEOUT_S)
        self._call(self._producer.commit_transaction, CALL_TIMEOUT_S)

    def _produce(self, index: int, outgoing: OutgoingRecord) -> None:
        """Send a record into its own partition; one of another topic into that of its key, as Java's clients do."""
        record = outgoing.record
        while True:
            try:
                self._producer.produce(
                    outgoing.target,
                    record.value,
                    record.key,
                    partition=record.partition if outgoing.keeps_partition else PARTITION_UA,
                    on_delivery=partial(self._delivered, index),
                    timestamp=max(0, record.timestamp_ms),
                    headers=outgoing.headers,
                )
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException:
                self._producer.poll(0)
                if not self._failed:  # by an earlier record of the transaction
                    raise
                return
            else:
                self._producer.poll(0)
                return

    def _delivered(self, index: int, error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            self._failed[index] = error

    def _call(self, method: Any, *values: Any) -> None:
        """Call a method of the producer until it is through: what can be tried again goes on where it was."""
        deadline = time.monotonic() + GIVE_UP_S
        while True:
            try:
                method(*values)
            except (KafkaException, SystemError) as error:
                # the client calls back although an error is set already, which Python makes a SystemError of
                raised = error.__cause__ if isinstance(error, SystemError) else error
                if not isinstance(raised, KafkaException):
                    raise
                cause = kafka_error(raised)
                if cause.code() in _FENCED:
                    raise TakenOver(id=self._id) from error
                if cause.retriable() and time.monotonic() < deadline:
                    continue
                if cause.txn_requires_abort():
                    self._producer.abort_transaction(CALL_TIMEOUT_S)
                raise
            return
