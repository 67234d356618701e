"""Records of a topic before a place: where those of lost messages are, and the records themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import numpy as np
import xxhash
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.broker.errors import is_of_group, needs
from lagloss.broker.headers import headers_of
from lagloss.identity import ID_HEADER, REPLAY_HEADER
from lagloss.wire.format import OffsetRange, window_start_of
from lagloss_server.base.errors import NotEnoughData
from lagloss_server.extraction import BROKEN_HEADERS, Extraction, Extractor, Records
from lagloss_server.extraction.spec import Headers
from lagloss_server.net.schema_registry import registry_of
from lagloss_server.queries.offset_ranges import Watermarks, clamp, merge_ranges, records_in, without
from lagloss_server.repair.lost import LostId
from lagloss_server.repair.site import RecordSource

TIMEOUT_S: Final = 10.0
STALLED_S: Final = 30.0
"""Longest wait for the next record of a range that the broker holds."""
BATCH: Final = 10_000
_WAIT_S: Final = 0.1
AROUND_MS: Final = 600_000
"""A record is first looked for so long before its window, and after it was last seen: a producer's clock can be off."""
MessageKey = tuple[int, int]
"""Window (epoch s) and id hash."""


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """Where the record of a message is, and the topic that it is sent into."""

    topic: str
    partition: int
    offset: int
    target: str


class TopicRecord(NamedTuple):
    """A record as it was read. `headers`: `BROKEN_HEADERS` if no client can hand them on."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @classmethod
    def of(cls, message: Message) -> Self:
        """Return what a consumer returned."""
        headers = headers_of(message)
        return cls(
            message.partition() or 0,
            message.offset() or 0,
            message.timestamp()[1],
            _bytes(message.key()),
            _bytes(message.value()),
            BROKEN_HEADERS if headers is None else headers,
        )

    @property
    def replay(self) -> bytes | None:
        """The name of the replay that it is part of; None for live traffic."""
        return dict(self.headers).get(REPLAY_HEADER)

    def headers_to_send(self, topic: str, extraction: Extraction, replay: str) -> list[tuple[str, Any]]:
        """Return the headers of its copy, which is part of a replay. If its id is its position in the topic, the copy
        names that, as taps expect it of replayed records: its own position is another."""
        added: dict[str, bytes] = {REPLAY_HEADER: replay.encode()}
        if extraction.id.is_own_position and self.replay is None:
            added[ID_HEADER] = f"{topic}/{self.partition}/{self.offset}".encode()
        return [*((name, value) for name, value in self.headers if name not in added), *added.items()]

    @property
    def rank(self) -> tuple[bool, int, int, int]:
        """Originals come before what a replay sent, earlier ones before later ones."""
        return self.replay is not None, self.timestamp_ms, self.partition, self.offset


class TopicRecords:
    """Reads ranges of topics of one cluster as a committed reader that commits nothing. Used by one thread.

    Methods raise KafkaException when the brokers do not answer, or refuse.
    """

    def __init__(self, cluster: Cluster, cluster_name: str = "") -> None:
        self._registry = registry_of(cluster_name)
        self._held_back: set[str] = set()
        """Topics whose last read ended before its range did, at a transaction that was open."""
        self._consumer = Consumer(
            KafkaConnection.of(cluster).client(
                {
                    "group.id": "lagloss-repair",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "isolation.level": "read_committed",
                    "auto.offset.reset": "earliest",
                    "log_level": 0,
                }
            )
        )

    def close(self) -> None:
        self._consumer.close()

    def watermarks(self, topic: str) -> dict[int, Watermarks]:
        """Return the low and high watermark of each partition."""
        listed = self._consumer.list_topics(topic, TIMEOUT_S).topics[topic]
        if listed.error is not None:
            raise KafkaException(needs(listed.error, "DESCRIBE", f"topic {topic}"))
        places = (TopicPartition(topic, partition) for partition in sorted(listed.partitions))
        marks = ((place.partition, self._consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)) for place in places)
        return {partition: Watermarks(*pair) for partition, pair in marks}

    def offsets_at(self, topic: str, moment_ms: float, marks: Mapping[int, Watermarks]) -> dict[int, int]:
        """Return for each partition the offset of the first record with a timestamp at or after this moment; its end if
        there is none."""
        places = [TopicPartition(topic, partition, max(0, int(moment_ms))) for partition in marks]
        offsets = self._consumer.offsets_for_times(places, timeout=TIMEOUT_S) if places else []
        return {
            place.partition: place.offset if place.offset >= 0 else marks[place.partition].high for place in offsets
        }

    def rate(self, topic: str, last_s: float = 60.0) -> float:
        """Return how many records per second the topic got of late, by their timestamps."""
        marks = self.watermarks(topic)
        since = self.offsets_at(topic, (time.time() - last_s) * 1_000, marks)
        return sum(max(0, marks[partition].high - offset) for partition, offset in since.items()) / last_s

    def read(self, topic: str, ranges: Iterable[OffsetRange]) -> Generator[list[TopicRecord]]:
        """Yield the records in these ranges by batches, ranges of a partition one after the other; what retention or
        compaction has taken is left out."""
        waiting: dict[int, list[OffsetRange]] = {}
        for item in sorted(ranges, key=lambda item: (item.partition, item.first)):
            waiting.setdefault(item.partition, []).append(item)
        self._held_back.discard(topic)
        try:
            while waiting:
                layer = {partition: items.pop(0) for partition, items in waiting.items()}
                waiting = {partition: items for partition, items in waiting.items() if items}
                yield from self._read_layer(topic, layer)
        finally:  # whoever reads no further needs no fetches
            self._consumer.unassign()

    def _read_layer(self, topic: str, layer: dict[int, OffsetRange]) -> Generator[list[TopicRecord]]:
        places = [TopicPartition(topic, item.partition, item.first) for item in layer.values()]
        self._consumer.incremental_assign(places)
        heard, reached = time.monotonic(), {partition: item.first for partition, item in layer.items()}
        while layer:
            batch: list[TopicRecord] = []
            # as many as there can be: else the client waits for more until the time is up
            left = sum(item.last + 1 - reached[partition] for partition, item in layer.items())
            for message in self._consumer.consume(max(1, min(BATCH, left)), _WAIT_S):
                heard = time.monotonic()
                partition, offset, trouble = message.partition() or 0, message.offset() or 0, message.error()
                item = layer.get(partition)
                if trouble is None:
                    if item is not None and item.first <= offset <= item.last:
                        batch.append(TopicRecord.of(message))
                    is_over = item is not None and offset >= item.last
                    reached[partition] = offset + 1
                elif trouble.code() == KafkaError._PARTITION_EOF:
                    is_over = item is not None
                    if item is not None and offset <= item.last:
                        self._held_back.add(topic)
                elif is_of_group(trouble):
                    continue
                else:
                    raise KafkaException(needs(trouble, "READ", f"topic {topic}"))
                if is_over:
                    del layer[partition]
                    self._consumer.incremental_unassign([TopicPartition(topic, partition)])
            if batch:
                yield batch
            elif time.monotonic() - heard > STALLED_S:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def is_held_back(self, topic: str) -> bool:
        """Return whether the last read of a topic ended early, at a transaction that was open."""
        return topic in self._held_back

    def read_at(self, positions: Collection[RecordPosition]) -> dict[RecordPosition, TopicRecord]:
        """Return the records at these positions, as far as the topics still have them."""
        records: dict[RecordPosition, TopicRecord] = {}
        for topic in dict.fromkeys(position.topic for position in positions):
            of_topic = {(place.partition, place.offset): place for place in positions if place.topic == topic}
            exact = (OffsetRange(partition, offset, offset) for partition, offset in of_topic)
            for batch in self.read(topic, clamp(merge_ranges(exact), self.watermarks(topic))):
                for record in batch:
                    if (place := of_topic.get((record.partition, record.offset))) is not None:
                        records[place] = record
        return records

    def extractor(self, source: RecordSource) -> Extractor:
        """Return what reads the ids of a source's records.

        Raises:
            BadTapSchema, ProtobufCompilerMissing: as `Extractor`.
        """
        return Extractor(source.extraction, self._registry)

    def locate(
        self,
        sources: Sequence[RecordSource],
        messages: Sequence[LostId],
        say: Callable[[str], None] = lambda _: None,
    ) -> dict[MessageKey, RecordPosition]:
        """Return where the records of these messages are, of those that are in the sources: the first original, or what
        an earlier replay sent. The minutes around are read first, all else of a topic if that is not enough."""
        positions: dict[MessageKey, RecordPosition] = {}
        for source in sources:
            wanted = {message.key for message in messages} - positions.keys()
            if not wanted:
                break
            candidates = self._search(source, messages, wanted, say)
            for key, candidate in candidates.items():
                positions[key] = RecordPosition(source.topic, candidate.partition, candidate.offset, source.target)
        return positions

    def _search(
        self,
        source: RecordSource,
        messages: Sequence[LostId],
        wanted: Collection[MessageKey],
        say: Callable[[str], None],
    ) -> dict[MessageKey, TopicRecord]:
        marks = self.watermarks(source.topic)
        begin_ms = min(key[0] for key in wanted) * 1_000 - AROUND_MS
        end_ms = max(message.seen_by_ms for message in messages if message.key in wanted) + AROUND_MS
        first, last = (self.offsets_at(source.topic, moment_ms, marks) for moment_ms in (begin_ms, end_ms))
        held = clamp((OffsetRange(partition, mark.low, mark.high - 1) for partition, mark in marks.items()), marks)
        near = clamp((OffsetRange(partition, first[partition], last[partition] - 1) for partition in marks), marks)
        extractor = self.extractor(source)
        best: dict[MessageKey, TopicRecord] = {}
        for number, ranges in enumerate((near, without(held, near))):
            if number and all(key in best and not best[key].replay is not None for key in wanted):
                break
            total, read = records_in(ranges), 0
            for batch in self.read(source.topic, ranges):
                read += len(batch)
                say(f"{read:,} of {total:,} records of {source.topic}")
                for record, key in with_keys(extractor, batch):
                    if key in wanted and record.headers is not BROKEN_HEADERS:
                        known = best.get(key)
                        if known is None or record.rank < known.rank:
                            best[key] = record
            if source.topic in self._held_back and len(best) < len(wanted):
                raise NotEnoughData(
                    detail=f"an open transaction in {source.topic} holds back its newest records; try again once it has"
                    " ended"
                )
        return best


def with_keys(extractor: Extractor, records: Sequence[TopicRecord]) -> list[tuple[TopicRecord, MessageKey]]:
    """Return those of these records that have an id and an event time, with their windows and id hashes."""
    extracted = extractor.extract(
        Records(
            np.fromiter((record.timestamp_ms for record in records), np.int64, len(records)),
            [record.key for record in records],
            [record.value for record in records],
            [record.headers for record in records],
            np.fromiter((record.partition for record in records), np.int64, len(records)),
            np.fromiter((record.offset for record in records), np.int64, len(records)),
        )
    )
    keys = (
        (window_start_of(event_ms), xxhash.xxh3_64_intdigest(raw))
        for raw, event_ms in zip(extracted.ids, extracted.event_ms.tolist(), strict=True)
    )
    return [(records[row], key) for row, key in zip(extracted.rows.tolist(), keys, strict=True)]


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
