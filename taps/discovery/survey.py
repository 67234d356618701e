"""A survey of topics: samples of any number of them, in batches by one consumer, and why others have none.

Memory and connections do not grow with the number of topics: a batch of samples at a time is held, and of each topic
its guesses stay.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.broker.errors import NOT_ALLOWED, is_of_group, kafka_error
from lagloss.broker.partition_bounds import Key
from lagloss_server.extraction.formats import Schemas
from taps.discovery.guessing import TopicGuess
from taps.plan import OffsetSpan
from taps.sample import NEWEST, joined
from taps.topic_reader import Delivered, columns

DENIED: Final = "denied"
MISSING: Final = "does not exist"
EMPTY: Final = "empty"
SILENT: Final = "no response"
ANSWER_S: Final = 10.0
ASKED: Final = 5_000
"""Partitions per request for offsets, and per batch of topics that are looked at."""
READ: Final = 500
"""Partitions that a consumer reads at once."""
MAX_PARTITIONS: Final = 100
"""Partitions of a topic that are sampled, those of the lowest numbers that hold records: keys that two topics have lie
in the same ones."""
MAX_RECORDS: Final = 50_000
"""Records of a topic that are compared: as many as come within the span, if they are fewer."""
ALL_RECORDS: Final = 1_000_000
"""Records of all topics, shared equally; each has `LEAST_RECORDS` at least."""
LEAST_RECORDS: Final = 500
MAX_BYTES: Final = 128 << 20
"""Of a batch: what is beyond stays unread."""
STALLED_S: Final = 10.0
_GONE: Final = frozenset({KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART})


class TopicSurvey:
    """Samples topics of one cluster, and guesses. Used by one thread.

    Attributes:
        guesses: of the topics that have records.
        reasons: by topic without a sample, why.
    """

    def __init__(self, cluster: Cluster, registry: Schemas | None, since_ms: int, until_ms: int) -> None:
        connection = KafkaConnection.of(cluster)
        common = {"client.id": "lagloss-tap-discover", "log_level": 0}
        self._admin = AdminClient(connection.client(common))
        self._config = connection.client(
            {
                **common,
                "group.id": "lagloss-taps",  # the client wants one
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
                "queued.max.messages.kbytes": 32_768,
            }
        )
        self._registry, self._since_ms, self._until_ms = registry, since_ms, until_ms
        self._partitions: dict[str, list[int]] = {}
        self.guesses: list[TopicGuess] = []
        self.reasons: dict[str, str] = {}

    def topics(self) -> list[str]:
        """Return the names of all topics that this client may see, internal ones left out. Raises KafkaException."""
        topics = self._admin.list_topics(timeout=ANSWER_S).topics
        self._partitions = {
            name: sorted(number for number, partition in topic.partitions.items() if partition.leader >= 0)
            for name, topic in topics.items()
        }
        return sorted(name for name in self._partitions if not name.startswith("__"))

    def run(self, topics: Sequence[str], advance: Callable[[int], None] = lambda _: None) -> None:
        """Sample these topics; call `advance` with how many more are done.

        Raises:
            KafkaException: the brokers answer nothing at all.
            RegistryUnreachable: a schema is wanted that the registry cannot be asked for.
        """
        self.topics()
        spans: dict[str, list[OffsetSpan]] = {}
        for batch in self._batches(topics):
            held = self._held(batch)
            spans.update(held)
            advance(len(batch) - len(held))
        limit = min(MAX_RECORDS, max(LEAST_RECORDS, ALL_RECORDS // max(1, len(spans))))
        for batch in self._batches(spans):
            chosen = self._chosen({topic: spans.pop(topic) for topic in batch}, limit)
            for some in _in_reads(chosen):
                self._sample(some)
                advance(len(some))

    def _batches(self, topics: Iterable[str]) -> Iterator[list[str]]:
        """Yield topics in batches of `ASKED` partitions."""
        batch: list[str] = []
        size = 0
        for topic in list(topics):
            batch.append(topic)
            size += max(1, len(self._partitions.get(topic, ())))
            if size >= ASKED:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _held(self, topics: Collection[str]) -> dict[str, list[OffsetSpan]]:
        """Return what the partitions of each topic hold; note why others hold nothing."""
        for topic in topics:
            if topic not in self._partitions:
                self.reasons[topic] = self._why_hidden(topic)
        keys = [(topic, partition) for topic in topics for partition in self._partitions.get(topic, ())]
        starts = self._offsets(keys, OffsetSpec.earliest())
        ends = self._offsets(keys, OffsetSpec.latest())
        spans: defaultdict[str, list[OffsetSpan]] = defaultdict(list)
        for topic, partition in keys:
            start, end = starts.get((topic, partition)), ends.get((topic, partition))
            if start is not None and end is not None and end > start:
                spans[topic].append(OffsetSpan(partition, start, end))
        asked = {topic for topic, _ in starts.keys() & ends.keys()}
        for topic in topics:
            if topic not in spans:
                self.reasons.setdefault(topic, EMPTY if topic in asked else SILENT)
        return {topic: spans[topic] for topic in topics if topic in spans}

    def _why_hidden(self, topic: str) -> str:
        """Return why a topic that a group has read is not listed."""
        described = self._admin.describe_topics(TopicCollection([topic]), request_timeout=ANSWER_S)
        try:  # asked for its metadata by name, the broker could create it
            described[topic].result(ANSWER_S)
        except KafkaException as error:
            return _reason(kafka_error(error))
        return SILENT  # it has no leader

    def _offsets(self, keys: Sequence[Key], spec: OffsetSpec) -> dict[Key, int]:
        """Return the offset of each partition whose leader tells it; note why others have none."""
        offsets: dict[Key, int] = {}
        for start in range(0, len(keys), ASKED):
            futures: Mapping[TopicPartition, Future[Any]] = self._admin.list_offsets(
                {TopicPartition(*key): spec for key in keys[start : start + ASKED]},
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=ANSWER_S,
            )
            deadline = time.monotonic() + ANSWER_S
            for place, future in futures.items():
                try:
                    offsets[place.topic, place.partition] = future.result(max(0.0, deadline - time.monotonic())).offset
                except (KafkaException, TimeoutError) as error:
                    cause = kafka_error(error) if isinstance(error, KafkaException) else None
                    self.reasons[place.topic] = SILENT if cause is None else _reason(cause)
        return offsets

    def _chosen(self, held: Mapping[str, Sequence[OffsetSpan]], limit: int) -> dict[str, list[OffsetSpan]]:
        """Return what to read of each topic: at most about `limit` records, those of the compared range of time, or
        the newest ones where it has none."""
        sampled = {topic: spans[:MAX_PARTITIONS] for topic, spans in held.items()}
        keys = [(topic, span.partition) for topic, spans in sampled.items() for span in spans]
        since = self._offsets(keys, OffsetSpec.for_timestamp(self._since_ms))
        until = self._offsets(keys, OffsetSpec.for_timestamp(self._until_ms))
        chosen = {}
        for topic, spans in sampled.items():
            size = max(1, limit // len(spans))
            within = [_within(topic, span, since, until, size) for span in spans]
            newest = max(1, min(limit, NEWEST) // len(spans))
            chosen[topic] = [span for span in within if span.end > span.start] or [
                OffsetSpan(span.partition, max(span.start, span.end - newest), span.end) for span in spans
            ]
        return chosen

    def _sample(self, spans: Mapping[str, Sequence[OffsetSpan]]) -> None:
        """Read these spans, and guess by them; note why a topic has no records."""
        messages = self._read(spans)
        for topic in spans:
            by_partition: defaultdict[int, list[Delivered]] = defaultdict(list)
            for message in messages.pop(topic, ()):
                by_partition[message.partition() or 0].append(Delivered.of(message))
            sample = joined(topic, {partition: columns(rows, 0) for partition, rows in by_partition.items()})
            if len(sample):
                self.guesses.append(TopicGuess.of(sample, self._registry))
                self.reasons.pop(topic, None)  # of some of its partitions
            else:
                self.reasons.setdefault(topic, EMPTY)

    def _read(self, spans: Mapping[str, Sequence[OffsetSpan]]) -> dict[str, list[Message]]:
        waiting = {(topic, span.partition): span.end for topic, some in spans.items() for span in some}
        messages: defaultdict[str, list[Message]] = defaultdict(list)
        consumer = Consumer(self._config)
        size, heard = 0, time.monotonic()
        try:
            consumer.assign(
                [TopicPartition(topic, span.partition, span.start) for topic, some in spans.items() for span in some]
            )
            while waiting and size < MAX_BYTES:
                some = consumer.consume(1_000, 0.1)
                if some:
                    heard = time.monotonic()
                elif time.monotonic() - heard > STALLED_S:
                    self.reasons |= dict.fromkeys({topic for topic, _ in waiting}, SILENT)
                    break
                for message in some:
                    size += self._take(message, waiting, messages)
        finally:
            consumer.close()
        return messages

    def _take(self, message: Message, waiting: dict[Key, int], messages: Mapping[str, list[Message]]) -> int:
        """Take what a consumer hands out, and return its bytes; a partition that is read, or fails, waits no longer."""
        key, offset, error = (message.topic() or "", message.partition() or 0), message.offset() or 0, message.error()
        if error is None and key in waiting:
            if offset < waiting[key]:
                messages[key[0]].append(message)
            if offset >= waiting[key] - 1:
                del waiting[key]
            return len(message)
        if error is not None and not is_of_group(error):
            failed = [key] if key[0] and key in waiting else [other for other in waiting if other[0] == key[0]]
            if error.code() != KafkaError._PARTITION_EOF:
                self.reasons[key[0]] = _reason(error)
                failed = [other for other in waiting if other[0] == key[0]]
            for other in failed:
                del waiting[other]
        return 0


def _within(topic: str, span: OffsetSpan, since: Mapping[Key, int], until: Mapping[Key, int], size: int) -> OffsetSpan:
    """Return a span's offsets between two moments, at most so many; -1 stands for a moment after all records."""
    first, last = (offsets.get((topic, span.partition), -1) for offsets in (since, until))
    start = span.end if first < 0 else max(first, span.start)
    end = span.end if last < 0 else min(last, span.end)
    return OffsetSpan(span.partition, start, min(end, start + size))


def _in_reads(spans: Mapping[str, Sequence[OffsetSpan]]) -> Iterator[dict[str, Sequence[OffsetSpan]]]:
    """Yield topics that a consumer reads at once: of up to `READ` partitions, and `MAX_RECORDS` records."""
    batch: dict[str, Sequence[OffsetSpan]] = {}
    size: Counter[str] = Counter()
    for topic, some in spans.items():
        more = Counter(partitions=len(some), records=sum(span.end - span.start for span in some))
        total = size + more
        if batch and (total["partitions"] > READ or total["records"] > MAX_RECORDS):
            yield batch
            batch, total = {}, more
        batch[topic], size = some, total
    if batch:
        yield batch


def _reason(error: KafkaError) -> str:
    if error.code() in NOT_ALLOWED:
        return DENIED
    return MISSING if error.code() in _GONE else SILENT
