"""A window as `windows --json` prints it: what those who compare it with another account read from it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

WindowDocument = Mapping[str, Any]


def start_of(window: WindowDocument) -> int:
    """Return the window's start, in epoch seconds."""
    return int(datetime.fromisoformat(window["window_start"]).timestamp())


def is_settled(window: WindowDocument) -> bool:
    """Return whether its result is final: closed, with nothing pending and nothing unknown."""
    return window["state"] != "open" and not window["pending"] and bool(window["verdict"] != "unknown")


def losses_by_place(window: WindowDocument) -> dict[str, tuple[int, int]]:
    """Losses at nodes and links, named `node N` and `link A->B`: least and most."""
    found = {f"node {node['name']}": node["lost"] for node in window["nodes"]}
    found |= {f"link {link['from']}->{link['to']}": link["lost"] for link in window["links"]}
    return {place: (lost["min"], lost["max"]) for place, lost in found.items() if lost and lost["max"]}


def contract_document(window: dict[str, Any]) -> dict[str, Any]:
    """Return a window's fields in the order and number that the command line promises."""
    promised = {
        "pipeline": window["pipeline"],
        "window_start": window["window_start"],
        "state": window["state"],
        "revision": window["revision"],
    }
    rest = {name: value for name, value in window.items() if name not in (*promised, "history", "closed_at")}
    names = ("verdict", "reasons", "proof", "sample")  # the last is not in documents of older versions
    head: dict[str, Any] = {name: rest.pop(name) for name in names if name in rest}
    return {**promised, **head, "closed_at": window["closed_at"], **rest}
