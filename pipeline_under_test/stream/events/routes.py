"""Routes: which events go to which destination, as definitions in a compacted Kafka topic.

A record's key is the route's name, its value the route as JSON; a record without a value takes the route away. The
topic is the table: a consumer that reads it from its beginning knows the routes, and reading on it learns each change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pipeline_under_test.stream.events.schema import Content
from pipeline_under_test.stream.events.table_topic import TableTopic
from pipeline_under_test.stream.topology import ALL_NEXT, EVENT_ROUTER, VENDORS, WAREHOUSE, routes_topic

log = logging.getLogger(__name__)


class TopicRoute(BaseModel):
    """Events that fit `when` go to `to`.

    `when` names fields of the event and the value of each; a field that is a list fits if it holds the value. Without
    `when`, every event fits.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    to: str
    when: Mapping[str, str | bool] = Field(default_factory=dict)

    @field_validator("to")
    @classmethod
    def _is_connector(cls, to: str) -> str:
        if to not in ALL_NEXT[EVENT_ROUTER]:
            raise ValueError(f"expected one of {', '.join(ALL_NEXT[EVENT_ROUTER])}, found {to!r}")
        return to

    def fits(self, content: Content) -> bool:
        """Return whether an event with these fields takes this route."""
        return all(_fits(content.get(name), value) for name, value in self.when.items())


def _fits(value: Any, expected: str | bool) -> bool:
    return expected in value if isinstance(value, list) else bool(value == expected)


DEFAULT_ROUTES: Final = {vendor: TopicRoute(to=node, when={"vendors": vendor}) for vendor, node in VENDORS.items()}
"""Initial routes of a new pipeline: each vendor gets the events that name it."""
WAREHOUSE_ROUTE: Final = TopicRoute(to=WAREHOUSE, when={"kind": "click"})
"""In addition, of a pipeline with a database."""


class Routes:
    """The routes, by name, as they are now."""

    def __init__(self, routes: Mapping[str, TopicRoute] = DEFAULT_ROUTES) -> None:
        self._routes = dict(routes)

    def destinations(self, content: Content) -> tuple[str, ...]:
        """Return where an event with these fields goes, each once."""
        return tuple(dict.fromkeys(route.to for route in self._routes.values() if route.fits(content)))

    def change(self, changes: Iterable[tuple[str, bytes | None]]) -> None:
        """Take changes in, in their order. A definition that makes no sense is logged, and the route stays as it was: a
        slip of the operator's must not stop the stream."""
        for name, value in changes:
            if value is None:
                self._routes.pop(name, None)
                continue
            try:
                self._routes[name] = TopicRoute.model_validate_json(value)
            except ValidationError as error:
                log.error("keeping the previous route %s: %s", name, error)  # noqa: TRY400 (the message says it all)


class RoutesTopic(TableTopic):
    """The topic, followed: `routes` are up to date as of the last `step`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(bootstrap, topic)
        self.routes: Final = Routes({})
        self.routes.change(self.read_whole())

    def step(self) -> None:
        """Take in what has changed; never wait."""
        self.routes.change(self.changes())


def seed_routes(bootstrap: str, pipeline: str, *, warehouse: bool = False) -> None:
    """Give a new pipeline its routes, with `warehouse` also to the table; one that has some keeps them."""
    routes = {**DEFAULT_ROUTES, **({WAREHOUSE: WAREHOUSE_ROUTE} if warehouse else {})}
    table = TableTopic(bootstrap, routes_topic(pipeline))
    if not list(table.read_whole()):
        for name, route in routes.items():
            table.write(name, route.model_dump_json().encode())
    table.close()
