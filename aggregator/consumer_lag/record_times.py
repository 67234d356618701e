"""Waiting records: the event time of the record at an offset, for many partitions at once and not for long."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, Message, TopicPartition

from lagloss.broker.headers import headers_of
from lagloss.broker.partition_bounds import Key
from lagloss.identity import REPLAY_HEADER, Carrier, Identities, mapping_of

READ_TIMEOUT_S: Final = 2.0
MAX_PLACES: Final = 100
"""Read in one call: a fetch of some ten KB each."""
KEPT_S: Final = 300.0
"""A record that goes on waiting is read again after this time: the topic may have been created anew."""


class RecordPlace(NamedTuple):
    key: Key
    offset: int


@dataclass(frozen=True, slots=True)
class WaitingRecord:
    """First finding of a committed reader at a place: a record, or (`is_end`) no more than the end of what it may read.
    `event_time_ms` (epoch ms) is None where the record has no lagloss headers, or is one that a replay brought back.
    `stamped_ms`: the record's own timestamp, by which retention goes."""

    offset: int
    event_time_ms: int | None = None
    is_end: bool = False
    stamped_ms: int | None = None


class WaitingRecords:
    """A consumer that belongs to no group and commits nothing. Used by one thread."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._identities = Identities()
        self._kept: dict[RecordPlace, tuple[float, WaitingRecord]] = {}
        self._consumer = Consumer(
            {
                **config,
                "group.id": "lagloss-consumer-lag",  # the client wants one
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 100,
                # one record of each is wanted
                "queued.min.messages": 1,
                "fetch.message.max.bytes": 65_536,
            }
        )

    def read(self, places: Iterable[RecordPlace]) -> dict[RecordPlace, WaitingRecord]:
        """Return the record that waits at each of these places. Those that waited there at the last call are known, of
        others the first 100 are read; places that could not be read within 2 s are left out, for any reason."""
        began = time.monotonic()
        deadline, wanted_places = began + READ_TIMEOUT_S, list(places)
        cached = {place: self._kept[place] for place in wanted_places if place in self._kept}
        self._kept = {place: entry for place, entry in cached.items() if entry[0] > began - KEPT_S}
        records = {place: record for place, (_, record) in self._kept.items()}
        remaining = list(islice((place for place in wanted_places if place not in records), MAX_PLACES))
        while remaining and time.monotonic() < deadline:
            # two groups may go on at two places of one partition, which are read one after the other
            turn = {place.key: place for place in reversed(remaining)}
            records |= self._read(turn, deadline)
            remaining = [place for place in remaining if turn[place.key] != place]
        for place, record in records.items():
            if not record.is_end:
                self._kept.setdefault(place, (began, record))
        return records

    def close(self) -> None:
        self._consumer.close()

    def _read(self, turn: Mapping[Key, RecordPlace], deadline: float) -> dict[RecordPlace, WaitingRecord]:
        remaining, records = dict(turn), dict[RecordPlace, WaitingRecord]()
        self._consumer.assign([TopicPartition(*place.key, place.offset) for place in turn.values()])
        try:
            while remaining and (rest_s := deadline - time.monotonic()) > 0:
                message = self._consumer.poll(rest_s)
                if message is None:
                    break
                place = remaining.pop((message.topic() or "", message.partition() or 0), None)
                if place is not None and (waiting := self._waiting(message)) is not None:
                    records[place] = waiting
        finally:
            self._consumer.unassign()
        return records

    def _waiting(self, message: Message) -> WaitingRecord | None:
        error, offset = message.error(), message.offset() or 0
        if error is not None:
            return WaitingRecord(offset, is_end=True) if error.code() == KafkaError._PARTITION_EOF else None
        headers = mapping_of(headers_of(message))
        identity = self._identities.find(Carrier(headers, b"", message))
        is_live = identity is not None and REPLAY_HEADER not in headers
        kind, stamped_ms = message.timestamp()
        return WaitingRecord(
            offset,
            identity.event_time_ms if identity is not None and is_live else None,
            stamped_ms=None if kind == TIMESTAMP_NOT_AVAILABLE else stamped_ms,
        )
