"""Spans that name their pipeline, message and event time by attributes of lagloss's own, whatever the broker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from pydantic import TypeAdapter, ValidationError

from collector.batches import BeaconBatch, Seen, check
from collector.metadata_cache import KnownPipeline
from collector.models import BeaconJson, as_seen
from collector.spans.answer import Rejected
from collector.spans.conventions import OPERATION, SENT_OUT, TAKEN_IN
from collector.spans.otlp import END, START, SentSpan
from lagloss.wire.traces import write_traceparent
from lagloss_server.base.fields import Name
from lagloss_server.base.invalid import explain, keys_given, write_path
from lagloss_server.net.problem_details import Problem

_NAME: Final = TypeAdapter(Name)
_BEACON: Final = TypeAdapter(BeaconJson)


@dataclass(slots=True)
class NodeSpans:
    """The beacons of one node, with the spans that they come from."""

    pipeline: str
    node: str
    seen: list[Seen] = field(default_factory=list)
    spans: list[SentSpan] = field(default_factory=list)

    @property
    def checkpoints(self) -> frozenset[str]:
        return frozenset(f"{self.node}.{message.place}" for message in self.seen)

    def batch(self, known: KnownPipeline | None, rejected: Rejected) -> BeaconBatch | None:
        """Make a batch of the acceptable spans, if there are any; reject the others."""
        first = known is not None and self.node in known.sources
        good = []
        for message, span in zip(self.seen, self.spans, strict=True):
            try:
                check(BeaconBatch(self.pipeline, self.node, first, (message,)), known)
            except Problem as problem:
                rejected.add(span, str(problem))
            else:
                good.append(message)
        return BeaconBatch(self.pipeline, self.node, first, good) if good else None


def beacons_of(spans: Iterable[SentSpan], rejected: Rejected) -> list[NodeSpans]:
    """Return the beacons of a request by pipeline and node, in the order in which they come."""
    nodes: dict[tuple[str, str], NodeSpans] = {}
    for span in spans:
        if span.problem:
            rejected.add(span, span.problem)
            continue
        operation = span.first(OPERATION)
        if operation not in TAKEN_IN | SENT_OUT:
            continue
        pipeline = span.resource.get("lagloss.pipeline")
        node = span.resource.get("lagloss.node") or span.resource.get("service.name")
        try:
            names = _NAME.validate_python(pipeline), _NAME.validate_python(node)
            message = _seen(span, received=operation in TAKEN_IN)
        except ValidationError as error:
            rejected.add(span, _why(error))
        except (Problem, ValueError) as problem:
            rejected.add(span, str(problem))
        else:
            place = nodes.setdefault(names, NodeSpans(*names))
            place.seen.append(message)
            place.spans.append(span)
    return list(nodes.values())


def _seen(span: SentSpan, *, received: bool) -> Seen:
    attributes = span.attributes
    to = attributes.get("lagloss.to")
    beacon = {
        "checkpoint": "in" if received else "out" if to is None else f"out:{to}",
        "message_id": attributes.get("messaging.message.id"),
        "event_time": attributes.get("lagloss.event_time"),
        "replay": attributes.get("lagloss.replay"),
        "traceparent": write_traceparent(span.trace_id, span.span_id),
    }
    message = as_seen(0, _BEACON.validate_python(beacon))
    return message._replace(observed_ms=span.time_ms(START if received else END))


def _why(error: ValidationError) -> str:
    problem = next(explain(error, keys_given(error)))
    field = write_path(problem.path) if problem.path else "lagloss.pipeline, and lagloss.node or service.name"
    names = {
        "message_id": "messaging.message.id",
        "event_time": "lagloss.event_time",
        "checkpoint": "lagloss.to",
        "replay": "lagloss.replay",
    }
    return f"{names.get(field, field)}: {problem.problem}"
