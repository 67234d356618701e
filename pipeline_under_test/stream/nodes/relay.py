"""A node between two topics: what it sends on is out once the next topic has acknowledged it."""

from __future__ import annotations

from functools import partial

from pipeline_under_test.stream.nodes.worker import OutboundEvent, Worker
from pipeline_under_test.stream.topology import topic_of


class TopicOutlet:
    """Produces each outbound to the topic of its next node; `acks=all` is the acknowledgement."""

    def __init__(self, pipeline: str, worker: Worker) -> None:
        self._pipeline = pipeline
        self._worker = worker

    @property
    def ready(self) -> bool:
        return self._worker.producer.ready

    def send(self, outbound: OutboundEvent) -> None:
        if outbound.to is None:
            raise ValueError("a relay delivers nothing itself; expected a next node")
        topic = topic_of(self._pipeline, outbound.to)
        worker = self._worker
        sent_out, rejected = partial(worker.sent_out, outbound), partial(worker.rejected, outbound)
        worker.producer.send(topic, outbound.as_sent, sent_out, rejected)

    def step(self) -> None:
        """Do nothing: the worker polls its producer."""

    def close(self) -> None:
        """Do nothing: the worker's producer is the worker's."""
