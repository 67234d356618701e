"""Which nodes the reference pipeline has and who sends to whom; clicks.yaml tells lagloss the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

DEFINITION: Final = Path(__file__).with_name("clicks.yaml")
PIPELINE: Final = "clicks"

COL_SERVICE: Final = "col-service"
EVENT_NORM: Final = "event-norm"
EVENT_ROUTER: Final = "event-router"
CONN_GA: Final = "conn-ga"
CONN_FB: Final = "conn-fb"

NEXT: Final[Mapping[str, tuple[str, ...]]] = {
    COL_SERVICE: (EVENT_NORM,),
    EVENT_NORM: (EVENT_ROUTER,),
    EVENT_ROUTER: (CONN_GA, CONN_FB),
    CONN_GA: (),
    CONN_FB: (),
}
"""Each node's next nodes; the nodes stand in the order in which events flow, which is the order to stop them in."""

CONSUMERS: Final = tuple(node for node in NEXT if node != COL_SERVICE)
VENDORS: Final[Mapping[str, str]] = {"ga": CONN_GA, "fb": CONN_FB}
"""The names that an event's `vendors` may hold, and the node that delivers to each."""


def topic_of(pipeline: str, node: str) -> str:
    """The topic that `node` takes its events from."""
    return f"{pipeline}.{node}"


def dead_topic(pipeline: str) -> str:
    """The dead-letter queue that all nodes share."""
    return f"{pipeline}.dead"


def group_of(pipeline: str, node: str) -> str:
    """The consumer group of `node`'s processes."""
    return f"{pipeline}.{node}"


def place_of_link(sender: str, receiver: str) -> str:
    return f"link {sender}->{receiver}"


def place_of_node(node: str) -> str:
    return f"node {node}"
