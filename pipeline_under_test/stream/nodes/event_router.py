"""event-router: each event to the destinations whose routes it fits: one, several or none."""

from __future__ import annotations

from typing import Final

from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.events.routes import Routes
from pipeline_under_test.stream.events.schema import SchemaReader, Unreadable
from pipeline_under_test.stream.nodes.decision import Dead, Decision, Filtered, Pass

NO_ROUTE: Final = "no route"


class Router:
    """Decides by the routes as they are now; see events/routes.py for how they are changed."""

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
