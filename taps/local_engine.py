"""The engine of one process: reads plans by Kafka's own client."""

from __future__ import annotations

from taps.kernel import BlockMaker, Blocks
from taps.plan import TapPlan
from taps.topic_reader import TopicReader

LIMIT = 100_000
"""Offsets of a plan: some seconds of work at most."""


class LocalEngine:
    """Reads and makes plans in this process."""

    is_spread = False

    def __init__(self, reader: TopicReader, maker: BlockMaker, limit: int = LIMIT) -> None:
        self.limit = limit
        self._reader = reader
        self._maker = maker

    def blocks(self, plan: TapPlan) -> Blocks:
        """Return the blocks of a plan. Raises KafkaException."""
        return self._maker.make(plan, self._reader.read(plan.spans))
