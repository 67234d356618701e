"""The list of the newest messages that something is wrong with: what is certain, what is possible, and its filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import dash_mantine_components as dmc
from dash import html

from dashboard.format import place_label
from dashboard.pages.base import FACTS, Part, alert, aria, moment, table
from dashboard.queries.problem_messages import (
    KINDS,
    LOST_AFTERWARDS,
    WINDOWS,
    MessageFilters,
    ProblemMessage,
    ProblemMessages,
)
from dashboard.request import links
from dashboard.request.links import Address
from dashboard.request.zones import utc
from lagloss_server.base import format as fmt
from lagloss_server.base.errors import BadTime
from lagloss_server.base.times import parse_time_s
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.named_messages import NamedMessage

_LOOKS: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "lost": ("Lost", "✖", "red", "certain: later messages passed this place, and all evidence of it is complete"),
    "perhaps": ("Possibly lost", "?", "orange", "not certain: the evidence of this place is incomplete"),
    "overdue": ("Overdue", "!", "orange", "not certain: not overtaken, but pending longer than maxWait"),
    LOST_AFTERWARDS: ("Lost afterwards", "∅", "red", "certain: its row was in the table, and is not any more"),
    "corrupted": ("Corrupted", "≠", "red", "certain: its payload's checksum differs on both sides of the link"),
    "dead": ("Dead-lettered", "✚", "orange", "certain: sent to a dead-letter queue"),
    "late": ("Late", "◷", "orange", "certain: arrived after the lag target"),
}
"""Word, sign, colour and meaning."""
_PLACES: Final = 12
"""Links of a filter, most messages first."""


def filters_of(address: Address) -> MessageFilters:
    """Parse the filters in the address; an unknown kind filters nothing."""
    query = address.query
    kind = query.get("kind")
    return MessageFilters(kind if kind in KINDS else None, query.get("where") or None, query.get("reason") or None)


def before_of(address: Address, now_s: float) -> int | None:
    """Parse the time before which windows are looked at; one that cannot be read is ignored."""
    try:
        return int(parse_time_s(address.query["before"], now_s)) if "before" in address.query else None
    except BadTime:
        return None


def listing(read: ProblemMessages, address: Address, *, several: bool) -> Part:
    """Return the filters and a row for each message. `several`: of several pipelines."""
    if read.to_s is None:
        return alert("No such messages", _nothing(read, address), "gray", "○")
    parts = [_sentence(read, address), *_filters(read, address)]
    if read.rows:
        columns = ("Minute", *(("Pipeline",) if several else ()), "What", "Message", "Where", "Last seen at", "Why")
        parts.append(table("messages", columns, [_row(row, address, several) for row in read.rows], **FACTS))
    else:
        everything = address.asking(kind=None, where=None, reason=None).href
        parts.append(dmc.Text(["No message matches. ", dmc.Anchor("Show all", href=everything)], size="sm"))
    return html.Div([*parts, _older(read, address)])


def _nothing(read: ProblemMessages, address: Address) -> str:
    earlier = " before this time" if "before" in address.query else ""
    hidden = _hidden(read)
    return f"No message is known by name as lost, late, dead-lettered or corrupted{earlier}.{hidden}"


def _hidden(read: ProblemMessages) -> str:
    if not read.hidden:
        return ""
    return f" Without {fmt.counted(len(read.hidden), 'pipeline')} whose message ids are hidden from you."


def _sentence(read: ProblemMessages, address: Address) -> Part:
    zone = address.zone
    certain, possible = (
        sum(number for kind, number in read.kinds.items() if (kind in ("perhaps", "overdue")) is wanted)
        for wanted in (False, True)
    )
    lost, afterwards = read.kinds.get("lost", 0), read.kinds.get(LOST_AFTERWARDS, 0)
    what = [
        f"{fmt.count(lost)} certainly lost",
        f"{fmt.count(possible)} possibly lost",
        *([f"{fmt.count(afterwards)} lost afterwards"] if afterwards else []),
        f"{fmt.count(certain - lost - afterwards)} late, dead-lettered or corrupted",
    ]
    start, end = zone.minute(read.from_s or 0), zone.minute(read.to_s or 0)
    over = f"in {end}" if start == end else f"from {start} to {end}"
    newest = f", the newest {WINDOWS} minutes with such messages" if read.is_cut else ""
    return dmc.Text(f"{', '.join(what)}, {over}{newest}.{_hidden(read)}", size="sm", mb=4)


def _filters(read: ProblemMessages, address: Address) -> list[Part]:
    filters = filters_of(address)
    kinds = {kind: read.kinds[kind] for kind in KINDS if kind in read.kinds}
    named = [(kind, f"{_LOOKS[kind][1]} {_LOOKS[kind][0]}", number) for kind, number in kinds.items()]
    return [
        _choice("kind", "What", named, filters.kind, address),
        _choice("where", "Where", _most(read.places), filters.place, address),
        _choice("reason", "Why", _most(read.reasons), filters.reason, address),
    ]


def _most(numbers: Mapping[str, int]) -> list[tuple[str, str, int]]:
    ordered = sorted(numbers.items(), key=lambda item: (-item[1], item[0]))
    return [(name, place_label(name), number) for name, number in ordered[:_PLACES]]


def _choice(
    key: str, label: str, choices: Sequence[tuple[str, str, int]], chosen: str | None, address: Address
) -> Part | None:
    """Return links to the same list of one kind, place or reason; None if there is no choice."""
    if len(choices) < 2 and chosen is None:
        return None

    def way(text: str, value: str | None) -> Part:
        is_current = value == chosen
        marks: dict[str, Any] = aria(current="true") if is_current else {}
        href = address.asking(**{key: value}).href
        return dmc.Anchor(text, href=href, size="sm", fw=700 if is_current else 400, className="nav-link", **marks)

    ways = [way(f"{text} {fmt.count(number)}", value) for value, text, number in choices]
    title = html.Span(label, className="faint choice-label")
    return html.Nav([title, way("All", None), *ways], className="choice", **aria(label=f"messages by {label.lower()}"))


def _row(row: ProblemMessage, address: Address, several: bool) -> list[Part]:
    message, pipeline = row.message, row.pipeline
    start_s = message.window_start_s
    to_window = address.to(links.window(pipeline, start_s)).href
    minute = dmc.Anchor(moment(address.zone.minute(start_s), utc(start_s)), href=to_window, size="sm")
    further = dmc.Anchor(f"and {fmt.count(row.further)} more of this minute", href=to_window, size="xs")
    name = message.message_id or f"{message.id_hash:016x}"
    trail = address.to(links.message(pipeline), id=name, around=rfc3339(start_s)).href
    word, sign, colour, meaning = _LOOKS[message.kind]
    of_pipeline = dmc.Anchor(pipeline, href=address.to(links.message(pipeline)).href, size="sm")
    return [
        minute,
        *([of_pipeline] if several else []),
        html.Span(f"{sign} {word}", title=meaning, className=f"status status-{colour}"),
        html.Div([dmc.Anchor(name, href=trail, size="sm", className="mono breaks"), *_below(row, further)]),
        ", ".join(map(place_label, message.places)) or fmt.NOTHING,
        message.last_checkpoint,
        _why(message),
    ]


def _below(row: ProblemMessage, further: Part) -> list[Part]:
    return [html.Div(further)] if row.further else []


def _why(message: NamedMessage) -> str:
    """Return the cause that is kept: a dead-lettered message's reason, or what held a late one."""
    if message.kind in ("dead", LOST_AFTERWARDS):
        return fmt.reason(message.reason)
    if message.kind == "late":
        held = "" if message.hop_ms is None else f", {fmt.duration(message.hop_ms)} in this place"
        return f"lag {fmt.duration(message.lag_ms)}{held}"
    return _LOOKS[message.kind][3].partition(": ")[2]


def _older(read: ProblemMessages, address: Address) -> Part | None:
    ways = []
    if "before" in address.query:
        ways.append(dmc.Anchor("← newest", href=address.asking(before=None).href, size="sm"))
    if read.older_s is not None:
        ways.append(dmc.Anchor("older →", href=address.asking(before=rfc3339(read.older_s)).href, size="sm"))
    return html.Nav(dmc.Group(ways, gap="md", mt="xs"), **aria(label="pages of the list")) if ways else None
