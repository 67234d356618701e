"""The beacon log as Kafka holds it: watermarks, offsets by time, ids, and the records of exact offset ranges."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from lagloss.broker.connection import KafkaConnection
from lagloss.broker.errors import BrokerRefusals, has_stale_metadata, is_of_group, kafka_error, needs
from lagloss.wire.format import OffsetRange
from lagloss_server.queries.offset_ranges import Watermarks

TIMEOUT_S = 10


class LogRecord(NamedTuple):
    """One record of a topic; `appended_ms` is when the log took it (epoch ms)."""

    key: bytes | None
    value: bytes
    appended_ms: int
    partition: int = 0
    offset: int = 0


def _is_of_the_moment(error: BaseException) -> bool:
    """Return whether a partition has no leader just now, or a new one: its broker has gone, or the partition or its
    topic, which is listed, is new."""
    codes = (KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.OFFSET_NOT_AVAILABLE)
    return isinstance(error, KafkaException) and (has_stale_metadata(error) or kafka_error(error).code() in codes)


class BeaconLog:
    """Metadata of one topic.

    Every method raises KafkaException when the broker does not answer within `timeout_s`.
    """

    def __init__(self, bootstrap: str, topic: str, timeout_s: float = TIMEOUT_S) -> None:
        self.topic = topic
        self._timeout_s = timeout_s
        self._known = 0
        """Partitions that the topic has at least."""
        self._refusals = BrokerRefusals()
        common = {"log_level": 0, "error_cb": self._refusals.take}
        connection = KafkaConnection.of(bootstrap)
        self._admin = AdminClient(connection.client({"socket.timeout.ms": int(timeout_s * 1000), **common}))
        self._consumer = Consumer(
            connection.client(
                {
                    "group.id": "lagloss-metadata",
                    "enable.auto.commit": False,
                    # By default librdkafka goes on at the end if retention passes a range's start: all would seem read.
                    "auto.offset.reset": "error",
                    # A fetch at the log's end is held back so long, and the next range's waits behind it; else 500.
                    "fetch.wait.max.ms": 10,
                    # Spark reads so, too: a transaction that stays open must hold up no read of what lies behind it.
                    "isolation.level": "read_uncommitted",
                    "enable.partition.eof": True,  # a range may end in a transaction's marker, which no poll returns
                    **common,
                }
            )
        )

    def know(self, partitions: int) -> None:
        """Expect so many partitions at least: the topic had them earlier, and loses none."""
        self._known = max(self._known, partitions)

    def partitions(self) -> list[int]:
        """Return the topic's partitions. Raise KafkaException if a broker names fewer than are known: it has not heard
        that the topic was widened, since it is cut off from the controller, or the topic is another one."""
        try:
            listed = self._admin.list_topics(self.topic, timeout=self._timeout_s).topics[self.topic]
        except KafkaException as error:
            raise self._explained(error) from error
        self._refusals.forget()
        if listed.error is not None:
            raise self._explained(KafkaException(listed.error))
        if len(listed.partitions) < self._known:
            what = f"{self.topic} has {self._known} partitions, and a broker knows of {len(listed.partitions)}"
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION, what))
        self.know(len(listed.partitions))
        return sorted(listed.partitions)

    def topic_id(self) -> str:
        """Return the topic's id: another one means that it was deleted and created anew."""
        topic = self._admin.describe_topics(TopicCollection([self.topic]), request_timeout=self._timeout_s)
        return str(self._answer(topic[self.topic]).topic_id)

    def ends(self) -> dict[int, int]:
        """Return the end offset of each partition."""
        return self._offsets(OffsetSpec.latest(), self.partitions())

    def watermarks(self) -> dict[int, Watermarks]:
        """Return the low and high watermark of each partition."""
        partitions = self.partitions()
        low, high = (self._offsets(spec, partitions) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
        return {partition: Watermarks(low[partition], high[partition]) for partition in high}

    def newest_ms(self) -> int:
        """Return the newest timestamp of all partitions (epoch ms); -1 if they hold no record."""
        newest = self._listed(OffsetSpec.max_timestamp(), self.partitions())
        return max(int(listed.timestamp) for listed in newest.values())

    def offsets_at(self, moment_ms: int) -> dict[int, int]:
        """Return for each partition the offset of the first record appended at or after this moment; its end if there
        is none."""
        places = [TopicPartition(self.topic, partition, moment_ms) for partition in self.partitions()]
        offsets = self._consumer.offsets_for_times(places, timeout=self._timeout_s)
        ends: Mapping[int, int] = self.ends() if any(place.offset < 0 for place in offsets) else {}
        return {place.partition: place.offset if place.offset >= 0 else ends[place.partition] for place in offsets}

    def records(self, ranges: Sequence[OffsetRange]) -> Generator[LogRecord]:
        """Read the records in these ranges, which must be merged and held by the broker (see `clamp`).

        Raises:
            KafkaException: the broker does not respond in time, refuses, or does not hold a range any more.
        """
        try:
            for item in ranges:
                place = TopicPartition(self.topic, item.partition, item.first)
                self._consumer.assign([place])
                next_offset = item.first
                while next_offset <= item.last:
                    message = self._consumer.poll(self._timeout_s)
                    if message is None:
                        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                    if (trouble := message.error()) is not None:
                        if is_of_group(trouble):
                            continue
                        if trouble.code() == KafkaError._PARTITION_EOF:
                            next_offset = max(next_offset, message.offset() or 0)
                            continue
                        raise KafkaException(needs(trouble, "READ", f"topic {self.topic}"))
                    offset = message.offset() or 0
                    next_offset = offset + 1
                    if offset <= item.last:
                        appended_ms = message.timestamp()[1]
                        yield LogRecord(message.key(), message.value() or b"", appended_ms, item.partition, offset)
        finally:  # whoever reads no further needs no fetches
            self._consumer.unassign()

    def close(self) -> None:
        self._consumer.close()

    def _offsets(self, spec: OffsetSpec, partitions: Iterable[int]) -> dict[int, int]:
        return {partition: listed.offset for partition, listed in self._listed(spec, partitions).items()}

    @retry(retry=retry_if_exception(_is_of_the_moment), wait=wait_fixed(0.2), stop=stop_after_delay(5), reraise=True)
    def _listed(self, spec: OffsetSpec, partitions: Iterable[int]) -> dict[int, Any]:
        specs = {TopicPartition(self.topic, partition): spec for partition in partitions}
        futures: dict[TopicPartition, Any] = self._admin.list_offsets(  # the type stubs are of an older version
            specs,
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=self._timeout_s,
        )
        return {place.partition: self._answer(future) for place, future in futures.items()}

    def _answer(self, future: Future[Any]) -> Any:
        try:
            return future.result(self._timeout_s)
        except TimeoutError:  # just before the client's own
            raise self._explained(KafkaException(KafkaError(KafkaError._TIMED_OUT))) from None
        except KafkaException as error:
            if has_stale_metadata(error):
                self._admin.list_topics(self.topic, timeout=self._timeout_s)
            raise self._explained(error) from error

    def _explained(self, error: KafkaException) -> KafkaException:
        """Return the error with why the brokers refuse this client, if they do."""
        self._admin.poll(0)  # for the refusals
        cause = self._refusals.explain(kafka_error(error))
        return KafkaException(needs(cause, "DESCRIBE", f"topic {self.topic}"))
