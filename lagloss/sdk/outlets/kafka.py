"""Outlets of an emitter's records, each of which is acknowledged at an offset or given up, exactly once.

`KafkaOutlet` is the real one, `MemoryOutlet` keeps a log in memory for tests of services that use the SDK.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.broker.errors import BrokerRefusals, kafka_error, needs
from lagloss.broker.fork_gate import fork_gate
from lagloss.broker.sampling_topic import SampleTable
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.wire.format import SAMPLE_ALL

log = logging.getLogger("lagloss")

METADATA_REFRESH_S: Final = 60.0
METADATA_TIMEOUT_S: Final = 2.0
RETRY_S: Final = 1.0
"""Pause before a record that the client gave up is produced again."""
STUCK_S: Final = 60.0
"""How much later a record can be sent than one that is not acknowledged, and be so itself, before the client is
replaced: it has lost that one, or the way to the leader of its partition."""
PERMANENT: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
    }
)
"""Errors that a retry cannot mend. After any other, the record is retried until the broker takes it or the emitter
closes."""

Done = Callable[[int | None, int], None]
"""Called with the partition and offset of an acknowledged record, or with (None, -1) for one that was given up."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """A record in flight. Without a partition its key decides."""

    topic: str
    key: bytes
    value: bytes
    done: Done
    partition: int = -1


class Outlet(Protocol):
    """A destination of records. Used by one thread only; callbacks run inside `poll` and `abandon`."""

    @property
    def last_error(self) -> str | None:
        """Return why nothing is acknowledged, as the newest error says; None if there was none."""

    def partitions(self) -> int | None:
        """Return the number of partitions of the beacons topic, None while it is unknown."""

    def sample(self, pipeline: str) -> int:
        """Return the sample of this pipeline: it takes ids whose hash modulo 2^32 is below it."""

    def send(self, record: Outgoing) -> None:
        """Take a record; never blocks and never refuses."""

    def poll(self, timeout_s: float) -> None:
        """Send and receive for at most this long, less if something was acknowledged."""

    def abandon(self) -> None:
        """Give up all unacknowledged records."""

    def close(self) -> None:
        """Close at once."""

    def detach_after_fork(self) -> None:
        """Forget the parent's connections without touching them, in a forked child."""


class KafkaOutlet:
    """An idempotent producer that survives its own fatal errors, records that it forgets, and a missing topic.

    Args:
        cluster: its addresses, or a connection. What is wrong with the environment's is noted at each try to connect.
        config: more librdkafka properties; they override the ones set here.
    """

    def __init__(self, cluster: Cluster, config: Mapping[str, Any] | None = None) -> None:
        self._cluster = cluster
        self._config: dict[str, Any] = {
            "client.id": "lagloss-emitter",
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": 0,  # never: an outage longer than any time-out is the case that matters
            "message.max.bytes": 1_000_000,
            "reconnect.backoff.max.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 30_000,
            "log_level": 2,
            **(config or {}),
            "error_cb": self._on_error,
        }
        self._refusals = BrokerRefusals()
        self._samples = SampleTable(cluster, config)
        self._producer: Producer | None = None
        self._unsent: deque[Outgoing] = deque()
        self._in_flight: dict[Outgoing, float] = {}
        """When the client got them (monotonic s), oldest first."""
        self._acknowledged_of = 0.0
        """When the client got the newest record that was acknowledged."""
        self._not_before = 0.0
        self._partitions: int | None = None
        self._asked_at = -METADATA_REFRESH_S
        self._fatal = False
        self._is_failing = False
        self.last_error: str | None = None
        self.retried = 0

    def partitions(self) -> int | None:
        if time.monotonic() - self._asked_at < METADATA_REFRESH_S and self._partitions:
            return self._partitions
        try:
            # Asked for by name, a missing topic could be created by the broker, with the wrong settings.
            listed = self._connected().list_topics(
                topic=BEACONS if self._partitions else None, timeout=METADATA_TIMEOUT_S
            )
        except KafkaException as error:
            self._connected().poll(0)  # for the refusals
            self._note(self._refusals.explain(kafka_error(error)).str())
            return self._partitions
        self._refusals.forget()
        topic = listed.topics.get(BEACONS)
        if topic is None or topic.error is not None or not topic.partitions:
            self._note(f"topic {BEACONS} does not exist, or an ACL for DESCRIBE on it is missing")
            return self._partitions
        self._asked_at = time.monotonic()
        self._partitions = len(topic.partitions)
        return self._partitions

    def sample(self, pipeline: str) -> int:
        return self._samples.current(pipeline)

    def send(self, record: Outgoing) -> None:
        self._unsent.append(record)
        self._push()

    def poll(self, timeout_s: float) -> None:
        if self._fatal or self._is_stuck:
            self._start_over()
        self._push()
        try:
            self._connected().poll(timeout_s)
        except KafkaException as error:  # fatal, as where no ACL lets an idempotent producer in
            cause = needs(kafka_error(error), "WRITE", f"topics {BEACONS} and {REPORTS}")
            self._note(cause.str())
            self._fatal = True
            self._not_before = time.monotonic() + RETRY_S

    def abandon(self) -> None:
        given_up = [*self._in_flight, *self._unsent]
        self._in_flight.clear()
        self._unsent.clear()
        self._disconnect()
        for record in given_up:
            record.done(None, -1)

    def close(self) -> None:
        self._disconnect()
        self._samples.close()

    def detach_after_fork(self) -> None:
        self._samples.detach_after_fork()
        # Destroying the handle would wait for threads that do not exist on this side of the fork.
        if self._producer is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._producer))
        self._producer = None

    def _connected(self) -> Producer:
        if self._producer is None:
            with fork_gate:
                self._producer = Producer(KafkaConnection.of(self._cluster).client(self._config))
        return self._producer

    def _disconnect(self) -> None:
        """Close the client, discarding unsent records."""
        with fork_gate:
            producer, self._producer = self._producer, None
            if producer is not None:
                with contextlib.suppress(KafkaException):
                    producer.purge()
            del producer  # which ends its threads

    def _push(self) -> None:
        """Hand the client as many unsent records as it takes, in order."""
        producer = self._connected()
        if time.monotonic() < self._not_before:
            return
        while self._unsent:
            record = self._unsent[0]
            try:
                producer.produce(
                    record.topic,
                    key=record.key,
                    value=record.value,
                    partition=record.partition,
                    on_delivery=self._listener(record, producer),
                )
            except BufferError:
                return
            except KafkaException as error:
                self._unsent.popleft()
                self._failed(record, kafka_error(error))
                return
            self._unsent.popleft()
            self._in_flight[record] = time.monotonic()

    def _listener(self, record: Outgoing, producer: Producer) -> Callable[[KafkaError | None, Message], None]:
        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if self._producer is not producer or record not in self._in_flight:
                return  # the client was replaced, and the next one has its records
            sent_at = self._in_flight.pop(record)
            if error is not None:
                self._failed(record, error)
                return
            if self._is_failing:
                self._is_failing = False
                log.warning("lagloss: the broker responds again")
            self._acknowledged_of = max(self._acknowledged_of, sent_at)
            record.done(message.partition() or 0, message.offset() or 0)

        return on_delivery

    def _failed(self, record: Outgoing, error: KafkaError) -> None:
        self._note(needs(error, "WRITE", f"topic {record.topic}").str())
        if error.code() in PERMANENT:
            record.done(None, -1)
            return
        self.retried += 1
        self._unsent.append(record)
        self._not_before = time.monotonic() + RETRY_S
        self._fatal = self._fatal or error.fatal() or error.code() == KafkaError._FATAL

    @property
    def _is_stuck(self) -> bool:
        return bool(self._in_flight) and self._acknowledged_of - next(iter(self._in_flight.values())) > STUCK_S

    def _start_over(self) -> None:
        """Replace a producer that failed fatally, or is stuck: the next one sends the unacknowledged records again.

        Records that arrive twice by this have the same emitter and seq, and count once.
        """
        self._fatal = False
        again = [*self._in_flight, *self._unsent]
        self._in_flight.clear()
        self._unsent = deque(again)
        self._disconnect()

    def _on_error(self, error: KafkaError) -> None:
        self._refusals.take(error)
        self._note(self._refusals.explain(error).str())
        self._fatal = self._fatal or error.fatal()

    def _note(self, error: str) -> None:
        self.last_error = error
        if not self._is_failing:
            self._is_failing = True
            log.warning("lagloss: buffering beacons until the broker responds: %s", error)


@dataclass(slots=True)
class MemoryOutlet:
    """A log in memory that acknowledges at the next poll, or not at all while `down`."""

    partition_count: int = 8
    down: bool = False
    sampled: int = SAMPLE_ALL
    """The sample of every pipeline, of 2^32."""
    records: list[tuple[str, int, bytes, bytes]] = field(default_factory=list)
    """(topic, partition, key, value) in the order of acknowledgement; a record's offset is its place in its
    partition."""
    last_error: str | None = None
    _waiting: deque[Outgoing] = field(default_factory=deque)
    _ends: Counter[tuple[str, int]] = field(default_factory=Counter)

    def partitions(self) -> int | None:
        return None if self.down else self.partition_count

    def sample(self, pipeline: str) -> int:
        return self.sampled

    def send(self, record: Outgoing) -> None:
        self._waiting.append(record)

    def poll(self, timeout_s: float) -> None:
        if self.down or not self._waiting:
            time.sleep(min(timeout_s, 0.01))
            return
        while self._waiting:
            record = self._waiting.popleft()
            partition = max(record.partition, 0)
            offset = self._ends[record.topic, partition]
            self._ends[record.topic, partition] += 1
            self.records.append((record.topic, partition, record.key, record.value))
            record.done(partition, offset)

    def abandon(self) -> None:
        while self._waiting:
            self._waiting.popleft().done(None, -1)

    def close(self) -> None:
        """Keep the records, for assertions afterwards."""

    def detach_after_fork(self) -> None:
        self._waiting.clear()

    def values(self, topic: str) -> list[bytes]:
        return [value for message, _, _, value in self.records if message == topic]
