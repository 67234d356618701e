"""The end of messages in flight whose partitions are another consumer's by now, for confluent_kafka's consumers."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException

from lagloss.broker.partition_bounds import PartitionBounds
from lagloss.wire.format import Progress

if TYPE_CHECKING:
    from lagloss.kafka.base import BaseNode

log = logging.getLogger("lagloss")

ASK_EVERY_S: Final = 5.0


class Handovers:
    """Asks what a consumer's group has committed, while messages of partitions that the consumer gave up are in flight.

    For `Emitter.follow`, on whose thread it asks, by a connection of its own; it reports no progress.

    Args:
        node: has the messages.
        consumer: gave them up.
        group: the consumer's group.
        config: librdkafka's properties of a connection to the consumer's cluster.
    """

    def __init__(self, node: BaseNode[Any], consumer: object, group: str, config: Mapping[str, Any]) -> None:
        self._node = node
        self._consumer = consumer
        self._group = group
        self._bounds = PartitionBounds(config)
        self._ask_at = 0.0

    def snapshot(self) -> Sequence[Progress]:
        """End what the group has committed by now; return nothing."""
        partitions = self._node.handed_over(self._consumer)
        if not partitions:
            self._bounds.close()
        elif time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + ASK_EVERY_S
            try:
                self._node.end_handovers(self._consumer, self._bounds.committed(self._group, partitions))
            except (KafkaException, TimeoutError) as error:
                log.warning("lagloss: cannot read the commits of group %s: %s", self._group, error)
        return ()
