"""Places of a breach, worst first, from the documents of breached windows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

from alerting.rules.assessment import BreachPlace
from lagloss_server.base import format as fmt
from lagloss_server.model.place import Place, PlaceKind, ends_of
from lagloss_server.model.window import CheckpointCounts, LinkCounts, NodeCounts, Window

_TIMES: Final = {"node": "process duration", "link": "queue time"}
T = TypeVar("T")


def loss_places(breached: Sequence[Window], within: Collection[str] | None = None) -> list[BreachPlace]:
    """Return the places of certain losses, with their share of all losses; of a rule about some places (`within`: their
    labels) only those, with their share of the losses there.

    A message may be lost at several places (branches), so the shares may add up to more than 1.
    """
    lost = _sums(breached, _lost_min, _lost_min, within)
    lost_all = sum(window.lost_min for window in breached) if within is None else sum(lost.values())

    def place(kind: PlaceKind, name: str, count: float) -> BreachPlace:
        share = count / lost_all if lost_all else None
        of_all = "" if share is None else f", {fmt.percent(share)} of the loss"
        return BreachPlace(kind, name, share, f"{fmt.count(count)} lost{of_all}", int(count))

    return [place(kind, name, count) for (kind, name), count in _worst_first(lost)]


def _lost_min(counts: NodeCounts | LinkCounts) -> float:
    return 0.0 if counts.lost is None else float(counts.lost.min)


def uncertain_places(breached: Sequence[Window], within: Collection[str] | None = None) -> list[BreachPlace]:
    """Return where messages are overdue or perhaps lost, with the evidence that is missing: the account of the node
    whose beacons would show them, or progress of its input past them."""

    def unsure(counts: NodeCounts | LinkCounts) -> float:
        return 0.0 if counts.lost is None else float(counts.lost.max - counts.lost.min)

    sums = _sums(breached, unsure, unsure, within)
    return [
        BreachPlace(
            kind,
            name,
            share,
            f"{fmt.count(sums[kind, name])} overdue or possibly lost; {_missing_evidence(breached, kind, name)}",
        )
        for (kind, name), share in shares(sums)
    ]


def _missing_evidence(breached: Sequence[Window], kind: PlaceKind, name: str) -> str:
    """Say what evidence is missing of the messages at a node or on a link, over all these windows."""
    node = ends_of(name)[1] if kind == "link" else name
    incomplete = sum(f"evidence:{node}" in window.reasons for window in breached)
    dead = dict.fromkeys(crash.emitter for window in breached for crash in window.crashes if crash.node == node)
    if not incomplete:
        what = f"{node}.in has" if kind == "link" else f"{node}'s exits have"
        return f"the evidence of node {node} is complete, but {what} not progressed past them"
    died = f", where process {next(iter(dead))} died" if dead else ""
    more = f" and {len(dead) - 1} more" if len(dead) > 1 else ""
    return f"the evidence of node {node} is incomplete in {incomplete} of {len(breached)} windows{died}{more}"


def lag_places(breached: Sequence[Window]) -> list[BreachPlace]:
    """Return the places that take the time: nodes' process durations and links' queue times, with their share of the
    sum."""
    took = _sums(breached, lambda node: node.process_duration_p95_ms, lambda link: link.queue_time_p95_ms)
    return [
        BreachPlace(kind, name, share, f"{_TIMES[kind]}, {fmt.percent(share)} of the lag")
        for (kind, name), share in shares(took)
    ]


def checkpoint_places(
    breached: Sequence[Window], count: Callable[[CheckpointCounts], int], word: str
) -> list[BreachPlace]:
    """Return the checkpoints by their counts over all these windows."""
    counts: dict[str, float] = {}
    for window in breached:
        for checkpoint in window.checkpoints:
            counts[checkpoint.name] = counts.get(checkpoint.name, 0) + count(checkpoint)
    return [
        BreachPlace("checkpoint", name, share, f"{fmt.count(counts[name])} {word}, {fmt.percent(share)} of all")
        for name, share in shares(counts)
    ]


def shares(sums: Mapping[T, float]) -> list[tuple[T, float]]:
    """Return each place's share in the sum of all, largest first, without those that have none."""
    whole = sum(sums.values())
    return [(key, part / whole) for key, part in _worst_first(sums)]


def _worst_first(sums: Mapping[T, float]) -> list[tuple[T, float]]:
    return sorted(((key, part) for key, part in sums.items() if part > 0), key=lambda item: -item[1])


def _sums(
    breached: Sequence[Window],
    of_node: Callable[[NodeCounts], float | None],
    of_link: Callable[[LinkCounts], float | None],
    within: Collection[str] | None = None,
) -> dict[tuple[PlaceKind, str], float]:
    """Sum by place over all these windows, of those with these labels; an unknown value, or one below 0, does not
    count."""
    sums: dict[tuple[PlaceKind, str], float] = {}
    for window in breached:
        counts: list[tuple[PlaceKind, str, float | None]] = [
            ("node", node.name, of_node(node)) for node in window.nodes
        ]
        counts += [("link", link.name, of_link(link)) for link in window.links]
        for kind, name, value in counts:
            if within is None or Place(kind, name).label in within or Place("retrier", name).label in within:
                sums[kind, name] = sums.get((kind, name), 0.0) + max(value or 0.0, 0.0)
    return sums
