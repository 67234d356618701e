"""event-norm and event-router, which relay events between topics: what they decide, and where it goes."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.events.routes import Routes
from pipeline_under_test.stream.events.schema import SchemaReader, Unreadable
from pipeline_under_test.stream.nodes.decision import Dead, Decision, Filtered, Pass
from pipeline_under_test.stream.nodes.worker import OutboundEvent, Worker
from pipeline_under_test.stream.topology import EVENT_ROUTER, topic_of

ROBOT: Final = "robot"
NO_KIND: Final = "no kind"
NO_ROUTE: Final = "no route"


class Normaliser:
    """Decision of event-norm: every event in the same form, and none that is not for people.

    The URL comes in parts, the kind in lower case. Robots and events without a kind are filtered; what cannot be read
    is dead. It writes with its own version of the schema, whatever the producer's was.
    """

    def __init__(self, reader: SchemaReader) -> None:
        self._reader = reader

    def __call__(self, event: Event) -> Decision:
        try:
            content = self._reader.decode(event.body)
            url = urlsplit(content["url"])
        except (Unreadable, ValueError) as error:
            return Dead(f"unreadable: {error}")
        if content["bot"]:
            return Filtered(ROBOT)
        if not content["kind"].strip():
            return Filtered(NO_KIND)
        content.update(kind=content["kind"].strip().lower(), host=url.netloc, path=url.path)
        return Pass(event.with_body(self._reader.schema.encode(content)), (EVENT_ROUTER,))


class Router:
    """Decision of event-router: each event to the destinations whose routes it fits: one, several or none.

    It goes by the routes as they are now; see events/routes.py for how they are changed.
    """

    def __init__(self, reader: SchemaReader, routes: Routes) -> None:
        self._reader = reader
        self._routes = routes

    def __call__(self, event: Event) -> Decision:
        try:
            content = self._reader.decode(event.body)
        except Unreadable as error:
            return Dead(f"unreadable: {error}")
        to = self._routes.destinations(content)
        return Pass(event, to) if to else Filtered(NO_ROUTE)


class TopicOutlet:
    """Produces each outbound to the topic of its next node; `acks=all` is the acknowledgement."""

    def __init__(self, pipeline: str, worker: Worker) -> None:
        self._pipeline = pipeline
        self._worker = worker

    @property
    def ready(self) -> bool:
        return self._worker.ready

    def send(self, outbound: OutboundEvent) -> None:
        if outbound.to is None:
            raise ValueError("expected a next node, since a relay delivers nothing itself")
        self._worker.send(topic_of(self._pipeline, outbound.to), outbound.event, outbound)

    def step(self) -> None:
        """Do nothing: the worker polls its producer."""

    def close(self) -> None:
        """Do nothing: the worker's producer is the worker's."""
