"""Nodes of the reference pipeline, their links, and the names of their topics.

clicks.yaml defines the same for lagloss.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

DEFINITION: Final = Path(__file__).with_name("clicks.yaml")
TAPPED_DEFINITION: Final = Path(__file__).with_name("clicks-tapped.yaml")
"""The same, where lagloss reads topics and commits instead of beacons."""
PIPELINE: Final = "clicks"

COL_SERVICE: Final = "col-service"
EVENT_NORM: Final = "event-norm"
EVENT_ROUTER: Final = "event-router"
CONN_GA: Final = "conn-ga"
CONN_FB: Final = "conn-fb"
GLOBAL_RETRIER: Final = "global-retrier"

NEXT: Final[Mapping[str, tuple[str, ...]]] = {
    COL_SERVICE: (EVENT_NORM,),
    EVENT_NORM: (EVENT_ROUTER,),
    EVENT_ROUTER: (CONN_GA, CONN_FB),
    CONN_GA: (),
    CONN_FB: (),
}
"""Each node's next nodes; the nodes stand in the order in which events flow, which is the order to stop them in."""

WAREHOUSE: Final = "warehouse"
TABLE: Final = "click"
"""The table of the warehouse, in a schema that is called as the pipeline."""
ALL_NEXT: Final[Mapping[str, tuple[str, ...]]] = {**NEXT, EVENT_ROUTER: (*NEXT[EVENT_ROUTER], WAREHOUSE), WAREHOUSE: ()}
"""The same in a pipeline with a database: the warehouse stores clicks in a table. It sends no beacons."""

VENDORS: Final[Mapping[str, str]] = {"ga": CONN_GA, "fb": CONN_FB}
"""The vendors, and the node that delivers to each."""
CONNECTORS: Final = tuple(VENDORS.values())
RETRIED: Final = CONNECTORS
"""The nodes that hand to the global retrier what they cannot deliver now."""
CONSUMERS: Final = (*(node for node in NEXT if node != COL_SERVICE), GLOBAL_RETRIER)
"""The nodes that read from Kafka, each from a topic of its own."""
ALL_CONSUMERS: Final = (*CONSUMERS, WAREHOUSE)
"""The same in a pipeline with a database."""
NODES: Final = (*NEXT, GLOBAL_RETRIER)
SHADOW: Final = "event-norm-shadow"
"""The event-norm on trial beside production, where a pipeline runs one: see `ReferenceSettings.shadow_settings`."""
SCALED: Final = (COL_SERVICE, *CONSUMERS)
"""The nodes that may be several processes, and can be rated."""

TIERS_S: Final = (10, 60, 300)
"""How long the global retrier keeps an event before its first, second and third return, in seconds."""


def topic_of(pipeline: str, node: str) -> str:
    """Return the topic that `node` takes its events from."""
    return f"{pipeline}.{node}"


def tier_topic(pipeline: str, seconds: float) -> str:
    """Return the topic in which the global retrier keeps events for this delay."""
    return f"{pipeline}.{GLOBAL_RETRIER}.{seconds:g}s"


def dead_topic(pipeline: str) -> str:
    """Return the dead-letter queue that all nodes share."""
    return f"{pipeline}.dead"


def filtered_topic(pipeline: str) -> str:
    """Return the topic of what nodes filter, where lagloss is to know of it by taps."""
    return f"{pipeline}.filtered"


def routes_topic(pipeline: str) -> str:
    """Return the compacted topic of event-router's routes."""
    return f"{pipeline}.routes"


def schemas_topic(pipeline: str) -> str:
    """Return the compacted topic of the schemas that events were written with."""
    return f"{pipeline}.schemas"


def group_of(pipeline: str, node: str) -> str:
    """Return the consumer group of `node`'s processes."""
    return f"{pipeline}.{node}"


def tiers_group(pipeline: str) -> str:
    """Return the consumer group of what waits in the global retrier's tiers."""
    return f"{group_of(pipeline, GLOBAL_RETRIER)}.tiers"


def redrive_group(pipeline: str) -> str:
    """Return the consumer group that takes letters out of the dead-letter queue."""
    return f"{dead_topic(pipeline)}.redrive"
