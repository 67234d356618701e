"""A node between two topics: what it sends on is out once the next topic has acknowledged it."""

from __future__ import annotations

from functools import partial

from pipeline_under_test.nodes.loop import Loop, Parcel
from pipeline_under_test.topology import topic_of


class TopicOutlet:
    """Produces each parcel to the topic of its next node; `acks=all` is the acknowledgement."""

    def __init__(self, pipeline: str, loop: Loop) -> None:
        self._pipeline = pipeline
        self._loop = loop

    @property
    def ready(self) -> bool:
        return self._loop.producer.ready

    def send(self, parcel: Parcel) -> None:
        if parcel.to is None:
            raise ValueError("a relay delivers nothing itself; expected a next node")
        topic = topic_of(self._pipeline, parcel.to)
        loop = self._loop
        loop.producer.send(topic, parcel.as_sent, partial(loop.sent_out, parcel), partial(loop.rejected, parcel))

    def step(self) -> None:
        """Nothing to do: the loop polls its producer."""

    def close(self) -> None:
        """Nothing to do: the loop's producer is the loop's."""
