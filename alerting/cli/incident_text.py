"""Incidents as lines and cells for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lagloss_server.base import format as fmt
from lagloss_server.incidents.incident import Document, Incident, example_words, place_words
from lagloss_server.incidents.response_times import Times
from lagloss_server.incidents.runbooks import runbook_file

SHORT_ID: Final = 8
"""Characters of an id shown in a list; `lagloss alerts show` accepts them."""


def details(document: Document) -> list[str]:
    """Lay out the document of `show --json`, one line per fact, in the order in which a paged engineer needs them."""
    lines = [f"{name:<13}{text}" for name, text in _facts(document).items() if text]
    for title, entries in _sections(document).items():
        if entries:
            lines += ["", title, *(f"  {entry}" for entry in entries)]
    return lines


def _facts(document: Document) -> dict[str, str | None]:
    links, windows = document["links"], document["windows"]
    title = (document["id"], document["pipeline"], document["rule"], document["severity"])
    taken = f"by {document['acknowledged_by']} at {document['acknowledged_at']}"
    return {
        "incident": " · ".join(title),
        "breach": document["breach"]["text"],
        "since": f"{document['since']}, last window {windows['last']}, {fmt.counted(windows['count'], 'window')}",
        "state": document["state"] + _with(" at ", document["resolved_at"]) + _with(", ", document["resolved_because"]),
        "acknowledged": taken if document["acknowledged_at"] else "no",
        "withheld": document["withheld"],
        "dashboard": links["incident"],
        "window": links["dashboard"],
        "runbook": links["runbook"] or str(runbook_file(document["kind"])),
    }


def _sections(document: Document) -> dict[str, list[str]]:
    return {
        "where": [place_words(place) for place in document["where"]],
        "in common": [document["blame"]["text"]] if document["blame"] else [],
        "examples": [_example(example) for example in document["examples"]],
        "repairs": [repair["text"] for repair in document["repairs"]],
        "notes": document["notes"],
        "history": [
            f"{change['at']}  {change['change']}" + _with(" by ", change["by"]) + _with(": ", change["note"])
            for change in document["changes"]
        ],
        "notifications": [
            f"{sent['done_at'] or sent['created_at']}  {sent['receiver']}  {sent['change']}  {sent['outcome']}, "
            f"attempts: {sent['attempts']}" + _with(": ", sent["last_error"])
            for sent in document["deliveries"]
        ],
    }


def _example(example: Mapping[str, Any]) -> str:
    trace = example.get("trace_url") or example.get("trace_id")
    return f"{example.get('message_id') or example.get('id_hash')}  {example_words(example)}" + _with(", trace ", trace)


def cells(incident: Incident) -> tuple[str, ...]:
    """Return a row of the list: id, severity, pipeline, rule, breach, since, where, state."""
    return (
        str(incident.id)[:SHORT_ID],
        incident.severity,
        incident.pipeline,
        incident.rule,
        incident.text,
        fmt.clock(incident.first_window_s, date=True),
        place_words(incident.where[0]) if incident.where else "",
        _state(incident),
    )


def _state(incident: Incident) -> str:
    if incident.state != "open":
        return incident.state + _with(", ", incident.resolved_because)
    taken = f"acknowledged by {incident.acknowledged_by}" if incident.acknowledged_at else "open"
    return taken + (f", withheld: {incident.withheld}" if incident.withheld else "")


def times_cells(times: Times) -> list[str]:
    """Return a row of `stats`: incidents, acknowledged, MTTA, median, repaired, MTTR, median, revised."""
    return [
        str(times.incidents),
        str(times.acknowledged),
        fmt.duration_s(times.mean_to_acknowledge_s),
        fmt.duration_s(times.median_to_acknowledge_s),
        str(times.repaired),
        fmt.duration_s(times.mean_to_resolve_s),
        fmt.duration_s(times.median_to_resolve_s),
        str(times.revised),
    ]


def _with(before: str, text: str | None) -> str:
    return f"{before}{text}" if text else ""
