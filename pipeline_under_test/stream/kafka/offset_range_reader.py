"""A reader of offset ranges: what lies between two offsets of each partition, read once, beside the consumers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final, Self

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Message, TopicPartition
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from pipeline_under_test.stream.kafka.clients import consumer_for
from pipeline_under_test.stream.kafka.topics import ADMIN_TIMEOUT_S

MAX_BATCH: Final = 200
POLL_S: Final = 0.1

Offsets = Mapping[int, int]
"""An offset for each partition's number."""
PASSING: Final = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
"""Passing errors of a broker, of a topic or a group that is new or has just moved."""


def _passes(error: BaseException) -> bool:
    cause = error.args[0] if isinstance(error, KafkaException) else None
    return isinstance(cause, KafkaError) and cause.code() in PASSING


_asked_again = retry(
    retry=retry_if_exception(_passes), stop=stop_after_delay(ADMIN_TIMEOUT_S), wait=wait_fixed(0.2), reraise=True
)


class OffsetRangeReader:
    """Reader of a topic's offset ranges. It joins no group: it only commits in the name of one, if asked to.

    Raises:
        KafkaException: if there is no such topic, or the broker cannot be reached.
    """

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._consumer = consumer_for(bootstrap, group, group)
        self._topic = topic
        metadata = self._consumer.list_topics(topic, ADMIN_TIMEOUT_S).topics[topic]
        if metadata.error is not None:
            raise KafkaException(metadata.error)
        self._numbers = sorted(metadata.partitions)

    def ends(self) -> Offsets:
        """Past the last record of each partition."""
        return {number: self._bounds(number)[1] for number in self._numbers}

    @_asked_again
    def at(self, time_s: float) -> Offsets:
        """Return the first records that were appended at this time (epoch seconds) or later; the ends where there are
        none."""
        places = [TopicPartition(self._topic, number, int(time_s * 1000)) for number in self._numbers]
        offsets = self._consumer.offsets_for_times(places, ADMIN_TIMEOUT_S)
        ends = self.ends()
        return {place.partition: place.offset if place.offset >= 0 else ends[place.partition] for place in offsets}

    @_asked_again
    def committed(self) -> Offsets:
        """Return where the group has come to; the oldest records where it has committed nothing, or what is gone."""
        places = [TopicPartition(self._topic, number) for number in self._numbers]
        offsets = self._consumer.committed(places, ADMIN_TIMEOUT_S)
        return {place.partition: max(place.offset, self._bounds(place.partition)[0]) for place in offsets}

    @_asked_again
    def commit(self, offsets: Offsets) -> None:
        """Commit these, and return once the broker has them.

        Raises:
            KafkaException: if it does not take them.
        """
        places = [TopicPartition(self._topic, number, offset) for number, offset in offsets.items()]
        if places:
            self._consumer.commit(offsets=places, asynchronous=False)

    def read(self, begin: Offsets, end: Offsets) -> Iterator[list[Message]]:
        """Return the records from `begin` on that lie before `end`, those of a partition in order; an empty list now
        and then, while there is nothing to read.

        Raises:
            KafkaException: if the broker refuses.
        """
        remaining = {number: end[number] for number in self._numbers if begin[number] < end[number]}
        places = [TopicPartition(self._topic, number, begin[number]) for number in remaining]
        self._consumer.assign(places)
        self._consumer.resume(places)  # those at whose end an earlier stretch has paused
        while remaining:
            first = self._consumer.poll(POLL_S)
            messages = [first, *self._consumer.consume(MAX_BATCH - 1, timeout=0)] if first is not None else []
            yield [record for record in messages if self._is_in(record, remaining)]
        self._consumer.unassign()

    def _is_in(self, record: Message, remaining: dict[int, int]) -> bool:
        """Return whether a record is part of the range; takes partitions that have come to their end out of
        `remaining`."""
        error, number, offset = record.error(), record.partition(), record.offset()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF and number is not None:
                remaining.pop(number, None)  # before the stretch's end where a transaction's mark is its last record
            elif not error.retriable():
                raise KafkaException(error)
            return False
        if number is None or offset is None or number not in remaining:
            return False
        is_in = offset < remaining[number]
        if offset + 1 >= remaining[number]:
            del remaining[number]
            self._consumer.pause([TopicPartition(self._topic, number)])
        return is_in

    @_asked_again
    def _bounds(self, number: int) -> tuple[int, int]:
        bounds: tuple[int, int] | None = self._consumer.get_watermark_offsets(
            TopicPartition(self._topic, number, OFFSET_INVALID), ADMIN_TIMEOUT_S
        )
        if bounds is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return bounds

    def close(self) -> None:
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
