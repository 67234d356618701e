"""Places of a pipeline, and their labels: the one module that writes and reads `node mid` and `link src->mid`.

Labels are stored (incidents, roll-ups, missing messages) and stand in URLs, so they never change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

PlaceKind = Literal["destination", "node", "link", "checkpoint", "side", "retrier"]
_KINDS: Final = frozenset(get_args(PlaceKind))
_ARROW: Final = "->"
"""Joins the names of a link's ends. No name has `>`; one may end with `-`, so the first `->` is the arrow."""


@dataclass(frozen=True, slots=True)
class Place:
    """One place of a pipeline. A destination and a retrier have the name of their node, a side that of its first
    source, a link that of both ends: `a->b`.

    What is known of a place in one respect is a subclass: where a message can go missing (`GraphPlace`), whose quality
    is measured (`Stage`), where a rule is breached (`BreachPlace`).
    """

    kind: PlaceKind
    name: str

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name}"

    def __str__(self) -> str:
        return self.label

    def rule(self, name: str) -> str:
        """Return the name of a rule about this place: `lag/node/mid`."""
        return f"{name}/{self.kind}/{self.name}"


def place_of(label: str) -> Place | None:
    """Return the place that has this label; None for another text, which a row of the database may hold."""
    kind, _, name = label.partition(" ")
    return Place(cast("PlaceKind", kind), name) if kind in _KINDS and name else None


def link_name(source: str, target: str) -> str:
    """Return the name of a link: `a->b`."""
    return f"{source}{_ARROW}{target}"


def ends_of(link: str) -> tuple[str, str]:
    """Return the source and the target of a link by its name."""
    source, _, target = link.partition(_ARROW)
    return source, target


def node_label(node: str) -> str:
    """Return the label of a node, without making a `Place`: documents have thousands."""
    return f"node {node}"


def link_label(source: str, target: str) -> str:
    """Return the label of a link, without making a `Place`."""
    return f"link {source}{_ARROW}{target}"
