"""Consumer groups of nodes, and how far each is behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

QUEUES: Final = "sqs:"
"""The cluster of a group that is a queue of SQS, by its URL. No cluster that a definition names is called so."""


class NodeGroup(NamedTuple):
    """A node of a pipeline, the consumer group that its definition names, and the Kafka cluster of that, empty for the
    one of lagloss's own topics; or the URL of its queue, of the cluster `QUEUES`."""

    pipeline: str
    node: str
    group: str
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a node's group is behind in one partition: `offsets` from the next record it has to take in to the log's
    end, and for how long that record has been under way (`behind_ms`, signed, by its event time; 0 where nothing
    waits). None: not known.

    Of a queue, `offsets` is the number of messages that wait, `in_flight` of those received and not deleted (None for
    Kafka), and `behind_ms` the age of the oldest of both in the queue."""

    group: NodeGroup
    topic: str
    partition: int
    offsets: int | None
    behind_ms: int | None
    in_flight: int | None = None
