"""Waiting records: the event time of the record at an offset, for many partitions at once and not for long."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from lagloss.broker.partition_bounds import Key
from lagloss.identity import REPLAY_HEADER, Carrier, Identities, mapping_of

READ_TIMEOUT_S: Final = 2.0
MAX_PLACES: Final = 100
"""Read in one call: a fetch of some ten KB each."""


class RecordPlace(NamedTuple):
    key: Key
    offset: int


@dataclass(frozen=True, slots=True)
class WaitingRecord:
    """First finding of a committed reader at a place: a record, or (`is_end`) no more than the end of what it may read.
    `event_time_ms` (epoch ms) is None where the record has no lagloss headers, or is one that a replay brought back."""

    offset: int
    event_time_ms: int | None = None
    is_end: bool = False


class WaitingRecords:
    """A consumer that belongs to no group and commits nothing. Used by one thread."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._identities = Identities()
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
        """Read the record that waits at each of these places, of the first 100 of them; places that could not be read
        within 2 s are left out, for any reason."""
        deadline = time.monotonic() + READ_TIMEOUT_S
        left = list(islice(places, MAX_PLACES))
        found: dict[RecordPlace, WaitingRecord] = {}
        while left and time.monotonic() < deadline:
            # two groups may go on at two places of one partition, which are read one after the other
            turn = {place.key: place for place in reversed(left)}
            found |= self._read(turn, deadline)
            left = [place for place in left if turn[place.key] != place]
        return found

    def close(self) -> None:
        self._consumer.close()

    def _read(self, turn: Mapping[Key, RecordPlace], deadline: float) -> dict[RecordPlace, WaitingRecord]:
        left, found = dict(turn), dict[RecordPlace, WaitingRecord]()
        self._consumer.assign([TopicPartition(*place.key, place.offset) for place in turn.values()])
        try:
            while left and (rest_s := deadline - time.monotonic()) > 0:
                message = self._consumer.poll(rest_s)
                if message is None:
                    break
                place = left.pop((message.topic() or "", message.partition() or 0), None)
                if place is not None and (waiting := self._waiting(message)) is not None:
                    found[place] = waiting
        finally:
            self._consumer.unassign()
        return found

    def _waiting(self, message: Message) -> WaitingRecord | None:
        error, offset = message.error(), message.offset() or 0
        if error is not None:
            return WaitingRecord(offset, is_end=True) if error.code() == KafkaError._PARTITION_EOF else None
        headers = mapping_of(message.headers())
        identity = self._identities.find(Carrier(headers, b"", message))
        is_live = identity is not None and REPLAY_HEADER not in headers
        return WaitingRecord(offset, identity.event_time_ms if identity is not None and is_live else None)
