"""Waiting records: the times of the record at an offset, for many partitions at once and not for long."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, Message, TopicPartition
from msgspec import Struct
from msgspec.structs import replace

from aggregator.consumer_lag.event_times import NO_EXPRESSIONS, EventTimes, RecordPlace
from lagloss.broker.headers import headers_of
from lagloss.broker.partition_bounds import Key
from lagloss.identity import REPLAY_HEADER, Carrier, Identities, mapping_of
from lagloss_server.model.taps import Extraction

READ_TIMEOUT_S: Final = 4.0
MAX_PLACES: Final = 10_000
"""Read in one call: a batch of records each, in many fetches at a time."""
FETCH_BYTES: Final = 16_384
"""Of a partition; brokers send a whole batch though it is larger."""
KEPT_S: Final = 300.0
"""A record that goes on waiting is read again after this time: the topic may have been created anew."""


class WaitingRecord(Struct, frozen=True):
    """First finding of a committed reader at a place: a record, or (`is_end`) no more than the end of what it may read.
    `event_time_ms` (epoch ms): by lagloss's headers, or by the expression of a tap of the topic; None where neither
    says it, and of a record that a replay brought back. `stamped_ms`: the record's own timestamp, by which retention
    goes."""

    offset: int
    event_time_ms: int | None = None
    is_end: bool = False
    stamped_ms: int | None = None
    is_replay: bool = False


class WaitingRecords:
    """A consumer that belongs to no group and commits nothing. Used by one thread."""

    def __init__(self, config: Mapping[str, Any], cluster: str = "") -> None:
        self._expressions = EventTimes(cluster)
        self._identities = Identities()
        self._kept: dict[RecordPlace, tuple[float, WaitingRecord]] = {}
        self._read_at: dict[Key, float] = {}
        """When a record of each partition was last known (monotonic s)."""
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
                "fetch.message.max.bytes": FETCH_BYTES,
            }
        )

    def read(
        self, places: Iterable[RecordPlace], expressions: Mapping[str, Extraction] = NO_EXPRESSIONS
    ) -> dict[RecordPlace, WaitingRecord]:
        """Return the record that waits at each of these places. Those that waited there at the last call are known; of
        others `MAX_PLACES` are read, in partitions that were read longest ago first. Places that could not be read in
        time are left out, for any reason.
        `expressions`: by topic, where its records say their event times."""
        self._expressions.follow(expressions)
        began = time.monotonic()
        deadline, wanted_places = began + READ_TIMEOUT_S, list(places)
        cached = {place: self._kept[place] for place in wanted_places if place in self._kept}
        self._kept = {place: entry for place, entry in cached.items() if entry[0] > began - KEPT_S}
        records = {place: record for place, (_, record) in self._kept.items()}
        unread = [place for place in wanted_places if place not in records]
        remaining = sorted(unread, key=lambda place: self._read_at.get(place.key, 0.0))[:MAX_PLACES]
        while remaining and time.monotonic() < deadline:
            # two groups may go on at two places of one partition, which are read one after the other
            turn = {place.key: place for place in reversed(remaining)}
            records |= self._read(turn, deadline)
            remaining = [place for place in remaining if turn[place.key] != place]
        self._read_at = {
            place.key: began if place in records else self._read_at.get(place.key, 0.0) for place in wanted_places
        }
        for place, record in records.items():
            if not record.is_end:
                self._kept.setdefault(place, (began, record))
        return records

    def close(self) -> None:
        self._consumer.close()

    def _read(self, turn: Mapping[Key, RecordPlace], deadline: float) -> dict[RecordPlace, WaitingRecord]:
        remaining, ends = dict(turn), dict[RecordPlace, WaitingRecord]()
        messages: dict[RecordPlace, Message] = {}
        self._consumer.assign([TopicPartition(*place.key, place.offset) for place in turn.values()])
        try:
            while remaining and (rest_s := deadline - time.monotonic()) > 0:
                message = self._consumer.poll(rest_s)
                if message is None:
                    break
                place = remaining.pop((message.topic() or "", message.partition() or 0), None)
                error = message.error()
                if place is not None and error is None:
                    messages[place] = message
                elif place is not None and error is not None and error.code() == KafkaError._PARTITION_EOF:
                    ends[place] = WaitingRecord(message.offset() or 0, is_end=True)
        finally:
            self._consumer.unassign()
        return ends | self._waiting(messages)

    def _waiting(self, messages: Mapping[RecordPlace, Message]) -> dict[RecordPlace, WaitingRecord]:
        """Return these messages as waiting records."""
        records = {place: self._by_headers(message) for place, message in messages.items()}
        silent = {
            place: messages[place]
            for place, record in records.items()
            if record.event_time_ms is None and not record.is_replay  # whose event was long before it was brought back
        }
        for place, event_time_ms in self._expressions.read(silent).items():
            records[place] = replace(records[place], event_time_ms=event_time_ms)
        return records

    def _by_headers(self, message: Message) -> WaitingRecord:
        headers = mapping_of(headers_of(message))
        identity = self._identities.find(Carrier(headers, b"", message))
        is_replay = REPLAY_HEADER in headers
        kind, stamped_ms = message.timestamp()
        return WaitingRecord(
            message.offset() or 0,
            None if identity is None or is_replay else identity.event_time_ms,
            stamped_ms=None if kind == TIMESTAMP_NOT_AVAILABLE else stamped_ms,
            is_replay=is_replay,
        )
