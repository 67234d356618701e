"""The engine of one process: reads plans by Kafka's own client."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
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
    """Reads and makes plans in this process, piece by piece, as a plan has no bound in bytes. Of a tap with an order it
    keeps the newest records of each partition, and reads those before a span again where it does not have them."""

    is_spread = False

    def __init__(self, reader: TopicReader, maker: BlockMaker, limit: int = LIMIT) -> None:
        self.limit = limit
        self._reader = reader
        self._maker = maker
        self._kept: dict[int, _Kept] = {}

    def blocks(self, plan: TapPlan) -> Blocks:
        """Return the blocks of a plan. Raises KafkaException."""
        orders = {} if self._maker.tap.order is None else self._orders(plan.topic_id, plan.spans)
        with closing(self._reader.pieces(plan.spans)) as pieces:
            blocks_ = self._maker.make_of_pieces(plan, pieces, orders)
        ends = {span.partition: span.end for span in plan.spans}
        self._kept |= {at: _Kept(plan.topic_id, ends[at], order) for at, order in orders.items()}
        return blocks_

    def deleted(self, spans: Sequence[OffsetSpan]) -> int:
        """Return how many offsets of these spans retention has deleted by now. Raises KafkaException."""
        logs = self._reader.look([span.partition for span in spans]).logs
        return sum(max(0, min(logs[span.partition].start, span.end) - span.start) for span in spans)

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
        with closing(self._reader.pieces_before(unknown, REACH)) as pieces:
            for partition, records in pieces:
                self._maker.remember(records, orders[partition])
        return orders
