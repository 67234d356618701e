"""A stand-in for `GroupWatcher`: queues that grow by the look, on a broker that can be away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from pipeline_under_test.stream.kafka.positions import Position
from pipeline_under_test.stream.topology import CONSUMERS


@dataclass
class Queues:
    """Each look finds `arrived` more records in each node's topic, and none done."""

    arrived: int
    looks: int = 0
    is_down: bool = False

    def positions(self) -> Mapping[str, Position]:
        self.looks += 1
        if self.is_down:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return {node: Position({(node, 0): self.looks * self.arrived}, {(node, 0): 0}) for node in CONSUMERS}
