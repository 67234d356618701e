"""Injected against measured: what the reference pipeline's ledger says of a window, and what lagloss says of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lagloss.store import MissingMessage

MAX_NAMES: Final = 1000
"""A window keeps the names of as many missing messages; of those beyond, only the count can be compared."""
COUNTS: Final = ("messages", "delivered", "filtered", "dead")


@dataclass(frozen=True, slots=True)
class Difference:
    """Where ledger and lagloss disagree about a window."""

    window_start_s: int
    what: str
    injected: object
    measured: object


def is_settled(window: Mapping[str, Any]) -> bool:
    """Whether lagloss has said its word on a window: closed, with nothing pending and nothing unknown."""
    return window["state"] != "open" and not window["pending"] and bool(window["verdict"] != "unknown")


def places(window: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Losses by place, as the ledger names places: least and most."""
    found = {f"node {node['name']}": node["lost"] for node in window["nodes"]}
    found |= {f"link {link['from']}->{link['to']}": link["lost"] for link in window["links"]}
    return {place: (lost["min"], lost["max"]) for place, lost in found.items() if lost and lost["max"]}


def differences(
    truth: Mapping[str, Any] | None, window: Mapping[str, Any] | None, missing: Iterable[MissingMessage]
) -> list[Difference]:
    """All that ledger and lagloss disagree about in one window; `truth` is one of the ledger's documents.

    Counts, losses in all and by place (both bounds), and the names of what was lost, each with its places.
    """
    if truth is None or window is None:
        return _only_one(truth, window)
    start_s = truth["window_start_s"]
    if window["state"] == "open":
        return [Difference(start_s, "state", "closed", "open")]
    unanswered = truth["unanswered"]
    expected: dict[str, object] = {name: truth[name] for name in COUNTS}
    measured: dict[str, object] = {name: window[name] for name in COUNTS}
    if unanswered and truth["messages"] <= window["messages"] <= truth["messages"] + unanswered:
        expected["messages"] = measured["messages"]  # nobody knows whether those came in
    expected |= {"pending": 0, "unaccounted": [], "lost": (truth["lost"], truth["lost"])}
    measured |= {"pending": window["pending"], "unaccounted": truth["unaccounted"]}
    measured["lost"] = (window["lost"]["min"], window["lost"]["max"])
    lost_here = places(window)
    for place in sorted({*truth["lost_at"], *lost_here}):
        count = len(truth["lost_at"].get(place, ()))
        expected[f"lost at {place}"] = (count, count)
        measured[f"lost at {place}"] = lost_here.get(place, (0, 0))
    if truth["lost"] <= MAX_NAMES:
        expected |= _names(truth)
        measured |= _named(missing)
    return [
        Difference(start_s, what, expected.get(what, "not lost"), measured.get(what, "not named"))
        for what in dict.fromkeys([*expected, *measured])
        if expected.get(what) != measured.get(what)
    ]


def _only_one(truth: Mapping[str, Any] | None, window: Mapping[str, Any] | None) -> list[Difference]:
    if truth is not None:
        return [Difference(truth["window_start_s"], "window", truth["messages"], "no such window")]
    if window is not None and window["messages"]:
        return [Difference(window["window_start_s"], "window", "no events", window["messages"])]
    return []


def _names(truth: Mapping[str, Any]) -> dict[str, object]:
    found: dict[str, list[str]] = {}
    for place, ids in truth["lost_at"].items():
        for message_id in ids:
            found.setdefault(f"id {message_id}", []).append(place)
    return {name: sorted(lost_at) for name, lost_at in found.items()}


def _named(missing: Iterable[MissingMessage]) -> dict[str, object]:
    return {
        f"id {message.message_id or format(message.id_hash, '016x')}": sorted(message.places)
        for message in missing
        if message.kind == "lost"
    }


def totals(truths: Sequence[Mapping[str, Any]], windows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Injected and measured losses over all windows, in all and by place."""
    injected: dict[str, int] = {}
    measured: dict[str, list[int]] = {}
    for truth in truths:
        for place, ids in truth["lost_at"].items():
            injected[place] = injected.get(place, 0) + len(ids)
    for window in windows:
        if window["state"] == "open":
            continue
        for place, (least, most) in places(window).items():
            so_far = measured.setdefault(place, [0, 0])
            so_far[0] += least
            so_far[1] += most
    return {
        "injected": {"lost": sum(truth["lost"] for truth in truths), "lost_at": injected},
        "measured": {
            "lost": {
                bound: sum(window["lost"][bound] for window in windows if window["state"] != "open")
                for bound in ("min", "max")
            },
            "lost_at": {place: {"min": least, "max": most} for place, (least, most) in measured.items()},
        },
    }
