"""Consumer groups of nodes, and how far each is behind."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from msgspec import Struct

from lagloss_server.groups.cluster_groups import Basis
from lagloss_server.groups.retention import RetentionLimits
from lagloss_server.groups.velocity import UNKNOWN_VELOCITY, Status, Velocity
from lagloss_server.model.taps import OffsetStorage

QUEUES: Final = "sqs:"
"""The cluster of a group that is a queue of SQS, by its URL. No cluster that a definition names is called so."""
GROUP_LABELS: Final = ("pipeline", "node", "group", "cluster")


class NodeGroup(NamedTuple):
    """A node of a pipeline, the consumer group that its definition names, and the Kafka cluster of that, empty for the
    one of lagloss's own topics; or the URL of its queue, of the cluster `QUEUES`. Pipeline and node are empty for a
    group that no definition names. `offsets`: it is a source connector, whose offsets are stored there."""

    pipeline: str
    node: str
    group: str
    cluster: str = ""
    offsets: OffsetStorage | None = None

    @property
    def labels(self) -> tuple[str, str, str, str]:
        """Return the values of a metric's labels `GROUP_LABELS`."""
        return self.pipeline, self.node, self.group, self.cluster


class PartitionOffsets(Struct, frozen=True):
    """Offsets of a partition that a group reads: what it has committed (None: nothing), and what the log holds, [start,
    end). `stamped_ms`: timestamp (epoch ms) of the record that it takes in next; `limits`: those of the topic's
    retention; `size_bytes`: of the log. None: not known."""

    committed: int | None
    start: int
    end: int
    stamped_ms: int | None = None
    limits: RetentionLimits | None = None
    size_bytes: int | None = None


class PartitionProgress(Struct, frozen=True):
    """Judgement of a group in one partition by its readings so far.

    `kept_by`: the limit of retention that deletes first what waits, `none` where the topic has none; `deletes_ms`: when
    it deletes the next record at the earliest; `loss_ms`: when it deletes, at the present velocity, the first record
    unread, of `at_risk` offsets that wait from there on. Moments in epoch ms. `deleted`: offsets deleted unread
    in the minute of the newest reading, `deleted_since`: between the newest two. None: not known, or none."""

    velocity: Velocity = UNKNOWN_VELOCITY
    status: Status | None = None
    kept_by: Literal["time", "size", "none"] | None = None
    deletes_ms: int | None = None
    loss_ms: int | None = None
    at_risk: int | None = None
    deleted: int = 0
    deleted_since: int = 0


class PartitionLag(Struct, frozen=True):
    """How far a node's group is behind in one partition: `offsets` from the next record it has to take in to the log's
    end, and for how long that record has been under way (`behind_ms`, signed; 0 where nothing waits), by `basis`, or
    the `problem` for which that is unknown. None: not known. `at`: its offsets, and `progress` what follows from them
    and earlier ones; None for a queue.

    Of a queue, `offsets` is the number of messages that wait, `in_flight` of those received and not deleted (None for
    Kafka), and `behind_ms` the age of the oldest of both in the queue."""

    group: NodeGroup
    topic: str
    partition: int
    offsets: int | None
    behind_ms: int | None
    in_flight: int | None = None
    at: PartitionOffsets | None = None
    progress: PartitionProgress | None = None
    basis: Basis | None = None
    problem: str | None = None
