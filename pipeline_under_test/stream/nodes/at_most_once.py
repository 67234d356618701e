"""The at-most-once loop of a relay, the bad example: an offset is committed before anything is done with its record.

A process that is killed leaves holes: what it had in hand is not read again.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Message, TopicPartition

from lagloss.kafka.commits import Taken, place_of
from pipeline_under_test.stream.nodes.loop import Loop
from pipeline_under_test.stream.nodes.worker import EventOutlet


class AtMostOnceLoop(Loop):
    """A loop that commits what it reads, and only then does it."""

    def _read(self, outlet: EventOutlet) -> Sequence[Message]:
        records = super()._read(outlet)
        read = dict(place_of(record) for record in records if record.error() is None)  # of a partition, the last
        if read:
            offsets = [TopicPartition(*partition, offset + 1) for partition, offset in read.items()]
            self._consumer.commit(offsets=offsets, asynchronous=False)
        return records

    def _taken(self, record: Message) -> Taken:
        """Return a record for whose end no commit waits."""
        return Taken(place_of(record)[1])
