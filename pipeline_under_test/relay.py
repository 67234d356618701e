"""event-norm and event-router: from one topic to the next."""

from __future__ import annotations

from functools import partial
from typing import Final
from urllib.parse import urlsplit

from pipeline_under_test.decision import Dead, Decision, Filtered, Pass
from pipeline_under_test.event import Event
from pipeline_under_test.kafka import ReliableProducer
from pipeline_under_test.loop import Loop, Parcel
from pipeline_under_test.settings import Settings
from pipeline_under_test.topology import EVENT_NORM, EVENT_ROUTER, VENDORS, topic_of


def normalise(event: Event) -> Decision:
    """event-norm: the URL in parts, the kind in lower case; robots are filtered, what cannot be read is dead."""
    try:
        content = event.content()
        url = urlsplit(content["url"])
        kind = content["kind"].lower()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Dead(f"unreadable: {type(error).__name__}")
    if content.get("bot"):
        return Filtered("robot")
    return Pass(event.with_content({**content, "kind": kind, "host": url.netloc, "path": url.path}), (EVENT_ROUTER,))


def route(event: Event) -> Decision:
    """event-router: to the vendors that the event names, to all where it names none."""
    try:
        wanted = event.content().get("vendors", list(VENDORS))
        nodes = tuple(VENDORS[vendor] for vendor in dict.fromkeys(wanted))
    except (ValueError, KeyError, TypeError) as error:
        return Dead(f"no route: {type(error).__name__}")
    return Pass(event, nodes) if nodes else Filtered("no vendor")


DECIDE: Final = {EVENT_NORM: normalise, EVENT_ROUTER: route}


class TopicOutlet:
    """Produces each parcel to the topic of its next node; `acks=all` is the acknowledgement."""

    def __init__(self, pipeline: str, loop: Loop) -> None:
        self._pipeline = pipeline
        self._loop = loop
        self._producer: ReliableProducer = loop.producer

    @property
    def ready(self) -> bool:
        return self._producer.ready

    def send(self, parcel: Parcel) -> None:
        if parcel.to is None:
            raise ValueError("a relay delivers nothing itself; expected a next node")
        self._producer.send(topic_of(self._pipeline, parcel.to), parcel.event, partial(self._loop.sent_out, parcel))

    def step(self) -> None:
        """Nothing to do: the loop polls its producer."""


def relay(node: str, settings: Settings) -> tuple[Loop, TopicOutlet]:
    """The loop of a relaying node, with the outlet to run it with."""
    loop = Loop(node, settings, DECIDE[node])
    return loop, TopicOutlet(settings.pipeline, loop)
