"""Cuts: where ids are new, the graph is cut, and each side of it is judged by itself.

A node N with `ids: new` is two nodes of the graph. N takes the old ids in and is a delivery of the side before. `N-new`
is a source of the side after: the new ids come in there as they are made, and go out as N's links say. Each has
emitters of its own. With a `contract` a message is delivered at `N.out`, which says that it went into what N made;
without one N has no checkpoint but `N.in`, where a message is delivered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from lagloss_server.model.nodes import NodeSpec

T = TypeVar("T")

AFTER: Final = "-new"
"""Ends the name of the node at which new ids begin."""
MAX_NAME: Final = 100
PARENT_ENDS: Final = "#"
"""In the id of a child under `contract: split`, `PARENT#k` or `PARENT#k/n`, the last of these ends the parent's id."""


def cut_nodes(nodes: Sequence[NodeSpec]) -> list[NodeSpec]:
    """Return the nodes of the graph: those with new ids as two, one behind the other."""
    specs = []
    for node in nodes:
        if node.ids is None:
            specs.append(node)
        else:
            taps, sent_taps = _parted(node, node.taps)
            spans, sent_spans = _parted(node, node.spans)
            specs.append(node.model_copy(update={"to": (), "copy_": None, "taps": taps, "spans": spans}))
            after = {"name": node.name + AFTER, "to": node.to, "copy": node.copy_, "description": node.description}
            specs.append(NodeSpec.model_validate(after).model_copy(update={"taps": sent_taps, "spans": sent_spans}))
    return specs


def _parted(node: NodeSpec, places: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
    """Return a node's entries by place in two: those of old ids, and those of new ones."""
    sent = {place: entry for place, entry in places.items() if _is_sent(node, place)}
    return {place: entry for place, entry in places.items() if place not in sent}, sent


def _is_sent(node: NodeSpec, place: str) -> bool:
    """Return whether new ids are at a place of a node (`out`, `out:M`); those of its retrier are old."""
    return place == "out" or (place.startswith("out:") and place != f"out:{node.retries}")


def cut_problem(nodes: Sequence[NodeSpec]) -> str | None:
    """Return why valid nodes cannot be cut; None if they can."""
    names = {node.name for node in nodes} | {node.retries for node in nodes if node.retries}
    for node in nodes:
        if node.ids is None:
            continue
        after = node.name + AFTER
        if after in names:
            return f"expected no node named {after}, a name reserved for the output of {node.name}"
        if len(after) > MAX_NAME:
            return (
                f"expected a name of up to {MAX_NAME - len(AFTER)} characters, since its ids are new, found {node.name}"
            )
        if not any(node.name in other.to for other in nodes):
            return f"expected a link into {node.name}, since it has `ids: new`, found none"
    return None


def takes_in_only(node: NodeSpec) -> bool:
    """Return whether nothing is said of what becomes of the messages that a node takes in."""
    return node.ids is not None and node.contract is None


def parent_of(message_id: str) -> str | None:
    """Return the id of the message that a child was split from; None where the id names none."""
    parent, end, rest = message_id.rpartition(PARENT_ENDS)
    number, _, total = rest.partition("/")
    return parent if end and parent and number.isdecimal() and (total == "" or total.isdecimal()) else None
