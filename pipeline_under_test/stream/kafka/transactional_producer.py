"""A producer whose records are seen all together with the offsets that they came of, or not at all.

The transactional id is that of the process's place among its node's (`Slot`): the process that takes a dead one's place
ends what that one had begun. It fences no process that lives on without its partitions: that is what the consumer's
group metadata does, which goes with the offsets (KIP-447).
"""

from __future__ import annotations

import fcntl
import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.kafka.clients import NEVER_TAKEN, Acknowledged, Rejected, is_fatal, producer_config

log = logging.getLogger(__name__)

CALL_TIMEOUT_S: Final = 10.0
TRANSACTION_TIMEOUT_S: Final = 30
"""After this the broker ends the transaction of a process that has died and has no successor. Until then consumers do
not read past it."""
BUFFER_WAIT_S: Final = 0.1


class Aborted(Exception):
    """The transaction was aborted: read its input again."""


class TransactionalProducer:
    """Sends events in transactions, one at a time. Errors that end the producer are KafkaExceptions: so they end its
    process, and the next one takes over."""

    def __init__(self, bootstrap: str, client_id: str, transactional_id: str) -> None:
        self._producer = Producer(
            {
                **producer_config(bootstrap, client_id),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_S * 1000,
            }
        )
        self._is_begun = False
        self._failure: KafkaError | None = None
        self._never_taken: dict[str, str] = {}

    def take_over(self) -> None:
        """End what the process that was here before has left open."""
        self._call(self._producer.init_transactions, CALL_TIMEOUT_S)

    def begin(self) -> None:
        """Begin a transaction."""
        self._failure = None
        self._producer.begin_transaction()
        self._is_begun = True

    def send(self, topic: str, event: Event, acknowledged: Acknowledged, rejected: Rejected) -> None:
        """Send `event` in this transaction; `acknowledged` is called from `poll`, once all in-sync replicas have it, or
        `rejected` with the reason, if no broker will ever take it.

        Raises:
            Aborted: if the transaction has failed.
        """
        if event.id in self._never_taken:
            rejected(self._never_taken[event.id])
            return

        def report(error: KafkaError | None, _record: Message) -> None:
            if error is None:
                acknowledged()
            elif is_fatal(error):
                raise KafkaException(error)
            else:  # so has the transaction; in the next one we know better
                self._failure = error
                if error.code() in NEVER_TAKEN:
                    self._never_taken[event.id] = f"{topic} did not accept the record: {error.str()}"

        while True:
            try:
                self._producer.produce(
                    topic, event.body, event.id.encode(), headers=event.headers(), on_delivery=report
                )
            except BufferError:
                self.poll(BUFFER_WAIT_S)
            except KafkaException as problem:
                if _error_of(problem).code() not in NEVER_TAKEN:
                    raise self._aborted_or_fatal(problem) from problem
                rejected(f"{topic} did not accept the record: {_error_of(problem).str()}")
                return
            else:
                return

    def poll(self, timeout_s: float = 0.0) -> None:
        """Handle what the broker answered, waiting up to `timeout_s` for the first answer.

        Raises:
            Aborted: if it has refused a record of this transaction.
        """
        self._producer.poll(timeout_s)
        if self._failure is not None:
            raise Aborted(self._failure.str())

    def commit(self, offsets: Sequence[TopicPartition], consumer: Consumer) -> None:
        """Commit the transaction, and with it these offsets of the consumer's.

        Raises:
            Aborted: if it cannot be committed: the partitions are another consumer's by now, say.
        """
        places = list(offsets)
        metadata = consumer.consumer_group_metadata()
        self._call(self._producer.send_offsets_to_transaction, places, metadata, CALL_TIMEOUT_S)
        self._call(self._producer.commit_transaction, CALL_TIMEOUT_S)
        self._is_begun = False
        self._never_taken.clear()

    def abort(self) -> None:
        """End the transaction, if one is begun, so that no consumer sees its records."""
        if self._is_begun:
            self._call(self._producer.abort_transaction, CALL_TIMEOUT_S)
            self._is_begun = False

    def _call(self, call: Callable[..., Any], *arguments: object) -> None:
        while True:
            try:
                call(*arguments)
            except KafkaException as problem:
                error = _error_of(problem)
                if error.txn_requires_abort() or not error.retriable():
                    raise self._aborted_or_fatal(problem) from problem
                log.warning("retrying: %s", error)
            else:
                return

    def _aborted_or_fatal(self, problem: KafkaException) -> Exception:
        """Return the error to raise for a failed call. In a transaction that has already failed, further calls are
        refused as out of place."""
        error = _error_of(problem)
        if not error.fatal() and (error.txn_requires_abort() or error.code() == KafkaError._STATE):
            return Aborted(error.str())
        return problem


def _error_of(problem: KafkaException) -> KafkaError:
    error = problem.args[0]
    return error if isinstance(error, KafkaError) else KafkaError(KafkaError._FAIL, str(error))


class Slot:
    """A process's place among those of its node: the lowest number that no other has while it lives.

    It is held by a lock on a file, which ends with the process, however that ends.
    """

    def __init__(self, directory: Path, node: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.number, self._locked = _lowest_free(directory, node)

    def close(self) -> None:
        """Release the slot to the next process."""
        self._locked.close()


def _lowest_free(directory: Path, node: str) -> tuple[int, IO[bytes]]:
    for number in itertools.count():
        file = (directory / f"{node}-{number}").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            return number, file
    raise AssertionError("unreachable: the counter is unbounded")
