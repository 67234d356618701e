"""Spans of Kafka clients as a node's beacons: what a definition says of them, and what follows for each node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from lagloss_server.base.fields import Strict, like
from lagloss_server.model.taps import TopicName

ServiceName = Annotated[str, like(r"^[^\x00-\x1f\x7f]{1,200}$", "a service name of 1 to 200 characters in one line")]
"""As resources of OpenTelemetry call it: `service.name`."""
SpanPlace = Annotated[
    str,
    like(r"^(in|out|out:[A-Za-z0-9][A-Za-z0-9_-]{0,99})$", "one of in, out or out:NODE"),
]
"""A checkpoint without its node, at which spans can show a message."""
SpanId = Literal["record", "trace"]
"""What identifies a message: its record (topic, partition and offset), or its trace, which has one message then."""
ConsumerSpan = Literal["process", "receive"]


class SpanSpec(Strict):
    """The spans that show a node's messages: those of a service for a topic, which it produces (`out…`) or consumes
    (`in`). `id`, of an `out`: what identifies a message, its record by default. `delivered`, of an `in` without next
    nodes: the span whose end is the delivery, `process` by default."""

    service: ServiceName
    topic: TopicName
    id: SpanId | None = None
    delivered: ConsumerSpan | None = None


@dataclass(frozen=True, slots=True)
class SpanPoint:
    """A node's part in a topic, as spans of its service show it.

    Attributes:
        places: the checkpoints, without their node, at which such a span is a beacon.
        produces: whether they are spans of a producer.
        begins: whether a message begins with them: they give it its id and event time.
        scope: within what ids and contexts of spans identify a message: a topic, or for traces a side of the graph.
        delivered: the kind of the consumer's span whose end is the delivery.
    """

    node: str
    service: str
    topic: str
    places: tuple[str, ...]
    produces: bool
    begins: bool
    id: SpanId
    scope: str
    delivered: ConsumerSpan = "process"
