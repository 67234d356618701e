"""One process of a node: put together from its settings, run until it is asked to stop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from pipeline_under_test.stream.events.routes import RoutesTopic
from pipeline_under_test.stream.events.schema import reader_of
from pipeline_under_test.stream.nodes.connector import connector
from pipeline_under_test.stream.nodes.loop import AtMostOnceLoop, Loop
from pipeline_under_test.stream.nodes.relays import Normaliser, Router, TopicOutlet
from pipeline_under_test.stream.nodes.retrier import retrier
from pipeline_under_test.stream.nodes.transaction import TransactionalLoop
from pipeline_under_test.stream.nodes.warehouse import warehouse
from pipeline_under_test.stream.nodes.worker import EventOutlet, Worker
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import (
    CONN_FB,
    CONN_GA,
    EVENT_NORM,
    EVENT_ROUTER,
    GLOBAL_RETRIER,
    SHADOW,
    WAREHOUSE,
    routes_topic,
    topic_of,
)


def _event_norm(settings: ReferenceSettings) -> tuple[Worker, EventOutlet]:
    worker = _worker(settings)(EVENT_NORM, settings, Normaliser(reader_of(settings.bootstrap, settings.pipeline)))
    return worker, TopicOutlet(settings.pipeline, worker)


def _shadow(settings: ReferenceSettings) -> tuple[Worker, EventOutlet]:
    shadow, source = settings.shadow_settings(), topic_of(settings.pipeline, EVENT_NORM)
    worker = _worker(settings)(
        EVENT_NORM, shadow, Normaliser(reader_of(settings.bootstrap, settings.pipeline)), source=source
    )
    return worker, TopicOutlet(shadow.pipeline, worker)


def _worker(settings: ReferenceSettings) -> type[Loop] | type[TransactionalLoop]:
    if settings.exactly_once:
        return TransactionalLoop
    return AtMostOnceLoop if settings.at_most_once else Loop


def _event_router(settings: ReferenceSettings) -> tuple[Worker, EventOutlet]:
    routes = RoutesTopic(settings.bootstrap, routes_topic(settings.pipeline))
    loop = Loop(
        EVENT_ROUTER,
        settings,
        Router(reader_of(settings.bootstrap, settings.pipeline), routes.routes),
        refresh=routes.step,
    )
    return loop, TopicOutlet(settings.pipeline, loop)


PROCESSES: Final[dict[str, Callable[[ReferenceSettings], tuple[Worker, EventOutlet]]]] = {
    EVENT_NORM: _event_norm,
    EVENT_ROUTER: _event_router,
    CONN_GA: partial(connector, CONN_GA),
    CONN_FB: partial(connector, CONN_FB),
    GLOBAL_RETRIER: retrier,
    SHADOW: _shadow,
    WAREHOUSE: warehouse,
}
"""How a process of each consuming node is put together."""
