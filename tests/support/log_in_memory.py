"""A beacons topic in memory, as far as what reads it asks: watermarks, offsets by time, and records."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

from lagloss.wire.format import OffsetRange
from lagloss_server.queries.beacon_log import LogRecord
from lagloss_server.queries.offset_ranges import Watermarks

FOREIGN = b"others/1795250400"


@dataclass
class LogInMemory:
    """Records by partition, whose offsets are their places. `passed`: how many were read."""

    partitions: Mapping[int, list[LogRecord]] = field(default_factory=lambda: {0: [], 1: []}, repr=False)
    passed: int = 0
    asked: list[int] = field(default_factory=list)
    """The moments (epoch ms) for which offsets were asked."""

    def append(self, partition: int, key: bytes = FOREIGN, value: bytes = b"", appended_ms: int = 0) -> int:
        records = self.partitions[partition]
        records.append(LogRecord(key, value, appended_ms, partition, len(records)))
        return len(records) - 1

    def watermarks(self) -> dict[int, Watermarks]:
        return {partition: Watermarks(0, len(records)) for partition, records in self.partitions.items()}

    def offsets_at(self, moment_ms: int) -> dict[int, int]:
        self.asked.append(moment_ms)
        return {
            partition: next((at.offset for at in records if at.appended_ms >= moment_ms), len(records))
            for partition, records in self.partitions.items()
        }

    def records(self, ranges: Sequence[OffsetRange]) -> Generator[LogRecord]:
        for item in ranges:
            for record in self.partitions[item.partition][item.first : item.last + 1]:
                self.passed += 1
                yield record
