"""Notifications and reports as people read them: one structure, rendered as text, HTML and Slack's blocks."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from alerting.incidents.notification import Notification
from lagloss_server.base import format as fmt
from lagloss_server.incidents.incident import destination_words, example_words, place_words
from lagloss_server.model.window import Interval
from lagloss_server.net.sanitize import one_line

MAX_TITLE: Final = 200
MAX_SUMMARY: Final = 1_000
MAX_VALUE: Final = 300
"""Characters of one line's text."""
MAX_SENTENCE: Final = 1_000
SHOWN: Final = 5
"""Places and examples shown to people; a webhook gets all."""

Tone = Literal["critical", "warning", "acknowledged", "resolved", "test"]
Kind = Literal["text", "link", "command"]
_TONES: Final[tuple[Tone, ...]] = get_args(Tone)

_STATES: Final = {
    "incident.opened": "opened",
    "incident.updated": "updated",
    "incident.acknowledged": "acknowledged",
    "incident.escalated": "escalated",
    "incident.raised": "severity raised",
    "incident.reopened": "reopened",
    "incident.reminder": "still open",
    "incident.resolved": "resolved",
}


_STATUS_TONES: Final[Mapping[str, Tone]] = {"missed": "critical", "unproven": "warning", "met": "resolved"}
"""By the status of an SLA; others have nothing to judge."""


@dataclass(frozen=True, slots=True)
class TextLine:
    """One fact. A sentence, which says all by itself, has no label."""

    label: str
    text: str
    kind: Kind = "text"


@dataclass(frozen=True, slots=True)
class TextSection:
    """Title, summary and facts of one incident, or of one pipeline in a report. All texts are single lines."""

    title: str
    tone: Tone
    summary: str
    lines: tuple[TextLine, ...]


@dataclass(frozen=True, slots=True)
class RenderedMessage:
    """One title and a section for each notification, oldest first."""

    title: str
    sections: tuple[TextSection, ...]


def message(notifications: Sequence[Notification]) -> RenderedMessage:
    """Render notifications, at least one, as one message; a report is one by itself."""
    if notifications[0].action == "report":
        return _report(notifications[0].body)
    sections = tuple(_section(notification) for notification in notifications)
    if len(sections) == 1:
        return RenderedMessage(sections[0].title, sections)
    tones = [section.tone for section in sections]
    counts = ", ".join(f"{tones.count(tone)} {tone}" for tone in dict.fromkeys(tones))
    pipelines = dict.fromkeys(_text(_part(notification.body, "incident"), "pipeline") for notification in notifications)
    return RenderedMessage(
        one_line(f"{len(sections)} incidents ({counts}): {', '.join(pipelines)}", MAX_TITLE), sections
    )


def as_text(rendered: RenderedMessage) -> str:
    """Return plain text; of several sections each has its title, a single one none (it is the message's)."""
    return (
        "\n\n".join(_section_text(section, with_title=len(rendered.sections) > 1) for section in rendered.sections)
        + "\n"
    )


def as_html(rendered: RenderedMessage) -> str:
    """Return an HTML page for mail: no scripts, inline styles, every text escaped."""
    several = len(rendered.sections) > 1
    sections = "\n".join(_section_html(section, with_title=several) for section in rendered.sections)
    title = html.escape(rendered.title)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>\n'
        f'<body style="font-family:sans-serif"><h2 style="font-size:18px">{title}</h2>\n{sections}\n</body></html>\n'
    )


def _section(notification: Notification) -> TextSection:
    body = notification.body
    summary = one_line(body.get("summary", ""), MAX_SUMMARY)
    if notification.action == "test":
        return TextSection("lagloss: test notification", "test", summary, ())
    incident = _part(body, "incident")
    state = _STATES.get(_text(body, "type"), _text(incident, "state"))
    severity = _text(incident, "severity")
    title = f"[{severity}, {state}] {_text(incident, 'pipeline')}: {_text(incident, 'rule')}"
    return TextSection(one_line(title, MAX_TITLE), _tone(incident), summary, tuple(_lines(body, incident)))


def _report(body: Mapping[str, Any]) -> RenderedMessage:
    """Render a report with a section for each part, worst first; one of nothing is its notes."""
    notes = [one_line(note, MAX_SENTENCE) for note in _list(body, "notes")]
    title = one_line(_text(_part(body, "report"), "title"), MAX_TITLE)
    parts = _list(body, "parts")
    sections = [_report_part(part, is_alone=len(parts) == 1) for part in parts]
    sections.sort(key=lambda section: _TONES.index(section.tone))
    if not sections:
        return RenderedMessage(title, (TextSection(title, "test", " ".join(notes), ()),))
    first = replace(sections[0], lines=(*(TextLine("Note", note) for note in notes), *sections[0].lines))
    return RenderedMessage(title, (first, *sections[1:]))


def _report_part(part: Mapping[str, Any], *, is_alone: bool) -> TextSection:
    """Render a part; alone, its title is not shown."""
    name = one_line(_text(part, "title"), MAX_TITLE)
    sentences = [TextLine("", one_line(sentence, MAX_SENTENCE)) for sentence in _list(part, "sentences")]
    links = [_link("Report", str(part["link"]))] if part.get("link") else []
    tone = _STATUS_TONES.get(_text(part, "status"), "test")
    headline = f"{name}: {_text(part, 'headline')}" if is_alone else _text(part, "headline")
    return TextSection(name, tone, one_line(headline, MAX_SUMMARY), (*sentences, *links))


def _tone(incident: Mapping[str, Any]) -> Tone:
    if incident.get("state") == "resolved":
        return "resolved"
    if incident.get("acknowledged_at"):
        return "acknowledged"
    return "critical" if incident.get("severity") == "critical" else "warning"


def _lines(body: Mapping[str, Any], incident: Mapping[str, Any]) -> Iterator[TextLine]:
    yield from _breach(body)
    if body.get("since"):
        count = _part(body, "windows").get("count")
        yield _line("Since", f"{body['since']}{f', {count} windows' if count and count != 1 else ''}")
    yield from _listed("Where", [place_words(place) for place in _list(body, "where")])
    yield from _listed("Destination", [destination_words(destination) for destination in _list(body, "destinations")])
    if labels := _part(incident, "labels"):
        yield _line("Labels", ", ".join(f"{name}={value}" for name, value in labels.items()))
    if conclusion := _part(body, "blame").get("conclusion"):
        yield _line("In common", conclusion)
    yield from _listed("Example", [_example(example) for example in _list(body, "examples")])
    for note in _list(body, "notes"):
        yield _line("Note", note)
    if incident.get("acknowledged_at"):
        yield _line("Acknowledged", f"{incident['acknowledged_at']} by {incident.get('acknowledged_by') or 'unknown'}")
    if incident.get("resolved_at"):
        because = incident.get("resolved_because")
        yield _line("Resolved", f"{incident['resolved_at']}{f': {because}' if because else ''}")
    for label, key in (("Incident", "incident"), ("Chart", "dashboard"), ("Runbook", "runbook")):
        if link := _part(body, "links").get(key):
            yield _link(label, str(link))
    if traces := [example["trace_url"] for example in _list(body, "examples") if example.get("trace_url")]:
        yield _link("Trace", str(traces[0]))  # one of them: they are long, and the incident's page has all
    commands = _part(body, "commands")
    if incident.get("state") != "resolved":
        if commands.get("acknowledge") and not incident.get("acknowledged_at"):
            yield _line("Acknowledge", commands["acknowledge"], "command")
        if commands.get("silence"):
            yield _line("Silence", commands["silence"], "command")


def _breach(body: Mapping[str, Any]) -> Iterator[TextLine]:
    breach = _part(body, "breach")
    if breach.get("text"):
        window = breach.get("window_start")
        yield _line("Breach", f"{breach['text']}{f' (window {window})' if window else ''}")
    lost, messages = breach.get("lost"), breach.get("messages")
    if isinstance(lost, Mapping) and messages is not None:
        yield _line(
            "Lost", f"{fmt.count_interval(Interval(lost['min'], lost['max']))} of {fmt.counted(messages, 'message')}"
        )


def _example(example: Mapping[str, Any]) -> str:
    # the id comes last: however long it is, the rest can be read
    return f"{example_words(example)}: {example.get('message_id') or example.get('id_hash')}"


def _listed(label: str, texts: Sequence[str]) -> Iterator[TextLine]:
    for text in texts[:SHOWN]:
        yield _line(label, text)
    if len(texts) > SHOWN:
        yield _line(label, f"and {len(texts) - SHOWN} more")


def _line(label: str, text: object, kind: Kind = "text") -> TextLine:
    return TextLine(label, one_line(text, MAX_VALUE), kind)


def _link(label: str, link: str) -> TextLine:
    """Return a clickable line for a whole http(s) address; show anything else, or an address too long, as text."""
    whole = one_line(link, 2_000)
    if whole == link and re.match(r"https?://[^/?#\s]", link):
        return TextLine(label, whole, "link")
    return _line(label, link)


def _section_text(section: TextSection, *, with_title: bool) -> str:
    head = [section.title] if with_title else []
    width = max((len(line.label) for line in section.lines), default=0) + 1
    lines = [f"{line.label + ':':{width}} {line.text}" if line.label else line.text for line in section.lines]
    return "\n".join([*head, section.summary, *([""] if lines else []), *lines])


def _section_html(section: TextSection, *, with_title: bool) -> str:
    title = f'<h3 style="font-size:15px">{html.escape(section.title)}</h3>' if with_title else ""
    rows = "".join(
        f'<tr><td style="padding-right:12px;vertical-align:top">{html.escape(line.label)}</td>'
        f"<td>{_html_value(line)}</td></tr>"
        for line in section.lines
    )
    return f"{title}<p>{html.escape(section.summary)}</p><table>{rows}</table>"


def _html_value(line: TextLine) -> str:
    text = html.escape(line.text)
    if line.kind == "link":
        return f'<a href="{text}">{text}</a>'
    return f"<code>{text}</code>" if line.kind == "command" else text


def _part(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = body.get(key)
    return part if isinstance(part, Mapping) else {}


def _list(body: Mapping[str, Any], key: str) -> Sequence[Any]:
    part = body.get(key)
    return part if isinstance(part, list | tuple) else ()


def _text(body: Mapping[str, Any], key: str) -> str:
    return str(body.get(key) or "")
