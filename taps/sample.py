"""Samples of topics: their newest records, with their places, for people and for guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lagloss_server.extraction import Records
from taps.plan import OffsetSpan
from taps.records import SpanRecords
from taps.topic_reader import TopicReader

NEWEST: Final = 1_000


@dataclass(frozen=True, slots=True)
class Sample:
    """Records of a topic, by time; arrays are of shape (records,)."""

    topic: str
    partitions: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    records: Records
    is_append_time: bool

    def __len__(self) -> int:
        return len(self.records)

    def place(self, row: int) -> str:
        """Return the place of a record as people write it: PARTITION@OFFSET."""
        return f"{self.partitions[row]}@{self.offsets[row]}"

    def newest(self, count: int) -> Sample:
        """Return the newest of these records."""
        return self.at(np.arange(max(0, len(self) - count), len(self)))

    def at(self, rows: npt.NDArray[np.intp]) -> Sample:
        """Return these rows alone."""
        return Sample(self.topic, self.partitions[rows], self.offsets[rows], self.records.at(rows), self.is_append_time)


def read_newest(reader: TopicReader, count: int = NEWEST) -> Sample:
    """Return about that many of a topic's newest records, as many of each partition. Raises KafkaException."""
    partitions = reader.describe().partitions
    per_partition = -(-count // max(1, len(partitions)))
    logs = reader.look(partitions).logs
    return _read(
        reader,
        [
            OffsetSpan(partition, max(log.start, log.stable_end - per_partition), log.stable_end)
            for partition, log in logs.items()
        ],
    )


def read_between(reader: TopicReader, since_ms: int, until_ms: int, limit: int) -> Sample:
    """Return a topic's records with timestamps in [since, until), at most about that many. Raises KafkaException."""
    partitions = reader.describe().partitions
    starts, ends = reader.starts_at(since_ms, partitions), reader.starts_at(until_ms, partitions)
    logs = reader.look(partitions).logs
    per_partition = max(1, limit // max(1, len(partitions)))
    stops = {
        partition: min(ends[partition], log.stable_end, starts[partition] + per_partition)
        for partition, log in logs.items()
    }
    return _read(reader, [OffsetSpan(partition, starts[partition], stop) for partition, stop in stops.items()])


def _read(reader: TopicReader, spans: Sequence[OffsetSpan]) -> Sample:
    nonempty = [span for span in spans if span.end > span.start]
    return joined(reader.topic, reader.read(nonempty)) if nonempty else joined(reader.topic, {})


def joined(topic: str, read: dict[int, SpanRecords]) -> Sample:
    """Return the records of several partitions in the order of their timestamps."""
    parts = [(partition, records) for partition, records in sorted(read.items()) if records.offsets.size]
    if not parts:
        nothing = np.empty(0, np.int64)
        return Sample(topic, nothing, nothing, Records(nothing, [], [], []), False)
    partitions = np.concatenate([np.full(records.offsets.size, partition, np.int64) for partition, records in parts])
    offsets = np.concatenate([records.offsets for _, records in parts])
    sample = Sample(
        topic,
        partitions,
        offsets,
        Records(
            np.concatenate([records.records.timestamp_ms for _, records in parts]),
            [key for _, records in parts for key in records.records.keys],
            [value for _, records in parts for value in records.records.values],
            [headers for _, records in parts for headers in records.records.headers],
            partitions,
            offsets,
        ),
        any(records.is_append_time.any() for _, records in parts),
    )
    return sample.at(np.argsort(sample.records.timestamp_ms, kind="stable"))
