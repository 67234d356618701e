"""Places of a breach, worst first, from the documents of breached windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeVar

from alerting.rules.assessment import BreachPlace
from alerting.rules.base import Document
from lagloss_server import format as fmt

PlaceKind = Literal["link", "node", "checkpoint"]
_TIMES: Final = {"node": "process duration", "link": "queue time"}
T = TypeVar("T")


def loss_places(breached: Sequence[Document]) -> list[BreachPlace]:
    """Return the places of certain losses, with their share of all losses.

    A message may be lost at several places (branches), so the shares may add up to more than 1.
    """
    lost = _sums(breached, lambda node: float(node["lost"]["min"]), lambda link: float(link["lost"]["min"]))
    lost_all = sum(window["lost"]["min"] for window in breached)

    def place(kind: PlaceKind, name: str, count: float) -> BreachPlace:
        share = count / lost_all if lost_all else None
        of_all = "" if share is None else f", {fmt.percent(share)} of the loss"
        return BreachPlace(kind, name, share, f"{fmt.count(count)} lost{of_all}", int(count))

    return [place(kind, name, count) for (kind, name), count in _worst_first(lost)]


def lag_places(breached: Sequence[Document]) -> list[BreachPlace]:
    """Return the places that take the time: nodes' process durations and links' queue times, with their share of the
    sum."""
    took = _sums(breached, lambda node: node["process_duration_p95_ms"], lambda link: link["queue_time_p95_ms"])
    return [
        BreachPlace(kind, name, share, f"{_TIMES[kind]}, {fmt.percent(share)} of the lag")
        for (kind, name), share in shares(took)
    ]


def checkpoint_places(breached: Sequence[Document], count: Callable[[Document], int], word: str) -> list[BreachPlace]:
    """Return the checkpoints by their counts over all these windows."""
    counts: dict[str, float] = {}
    for window in breached:
        for there in window["checkpoints"]:
            counts[there["name"]] = counts.get(there["name"], 0) + count(there)
    return [
        BreachPlace("checkpoint", name, share, f"{fmt.count(counts[name])} {word}, {fmt.percent(share)} of them")
        for name, share in shares(counts)
    ]


def shares(sums: Mapping[T, float]) -> list[tuple[T, float]]:
    """Return each place's share in the sum of all, largest first, without those that have none."""
    whole = sum(sums.values())
    return [(key, part / whole) for key, part in _worst_first(sums)]


def _worst_first(sums: Mapping[T, float]) -> list[tuple[T, float]]:
    return sorted(((key, part) for key, part in sums.items() if part > 0), key=lambda found: -found[1])


def _sums(
    breached: Sequence[Document],
    of_node: Callable[[Document], float | None],
    of_link: Callable[[Document], float | None],
) -> dict[tuple[PlaceKind, str], float]:
    """Sum by place over all these windows; an unknown value, or one below 0, does not count."""
    found: dict[tuple[PlaceKind, str], float] = {}
    for window in breached:
        there: list[tuple[PlaceKind, str, float | None]] = [
            ("node", node["name"], of_node(node)) for node in window["nodes"]
        ]
        there += [("link", f"{link['from']}->{link['to']}", of_link(link)) for link in window["links"]]
        for kind, name, value in there:
            found[kind, name] = found.get((kind, name), 0.0) + max(value or 0.0, 0.0)
    return found
