"""event-norm: every event in the same form, and none that is not for people."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.events.schema import SchemaReader, Unreadable
from pipeline_under_test.stream.nodes.decision import Dead, Decision, Filtered, Pass
from pipeline_under_test.stream.topology import EVENT_ROUTER

ROBOT: Final = "robot"
NO_KIND: Final = "no kind"


class Normaliser:
    """The URL in parts, the kind in lower case. Robots and events without a kind are filtered; what cannot be read is
    dead. It writes with its own version of the schema, whatever the producer's was."""

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
