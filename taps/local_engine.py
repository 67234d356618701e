"""The engine of one process: reads plans by Kafka's own client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from taps.kernel import BlockMaker, Blocks
from taps.order import REACH, PartitionOrder
from taps.plan import OffsetSpan, TapPlan
from taps.topic_reader import TopicReader

LIMIT = 100_000
"""Offsets of a plan: some seconds of work at most."""


class _Kept(NamedTuple):
    """What the records of a topic's partition before an offset come to."""

    topic_id: str
    offset: int
    order: PartitionOrder


class LocalEngine:
    """Reads and makes plans in this process. Of a tap with an order it keeps the newest records of each partition, and
    reads those before a span again where it does not have them."""

    is_spread = False

    def __init__(self, reader: TopicReader, maker: BlockMaker, limit: int = LIMIT) -> None:
        self.limit = limit
        self._reader = reader
        self._maker = maker
        self._kept: dict[int, _Kept] = {}

    def blocks(self, plan: TapPlan) -> Blocks:
        """Return the blocks of a plan. Raises KafkaException."""
        if self._maker.tap.order is None:
            return self._maker.make(plan, self._reader.read(plan.spans))
        orders = self._orders(plan.topic_id, plan.spans)
        blocks_ = self._maker.make(plan, self._reader.read(plan.spans), orders)
        self._kept |= {span.partition: _Kept(plan.topic_id, span.end, orders[span.partition]) for span in plan.spans}
        return blocks_

    def _orders(self, topic_id: str, spans: Sequence[OffsetSpan]) -> dict[int, PartitionOrder]:
        """Return, and keep no longer, what the records before each span come to."""
        orders, unknown = {}, []
        for span in spans:
            order = self._kept.pop(span.partition, None)
            if order is not None and order[:2] == (topic_id, span.start):
                orders[span.partition] = order.order
            else:
                orders[span.partition] = PartitionOrder()
                unknown.append(span)
        for partition, records in self._reader.read_before(unknown, REACH).items():
            self._maker.remember(records, orders[partition])
        return orders
