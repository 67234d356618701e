"""Reports for receivers of alerting: messages in its outbox, which the alerter sends as it sends notifications.

So addresses and secrets stand in the alerting file only, and a report is signed, retried, given up and shown like any
other message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, insert, select

from dashboard.reports.schedule.mail import MadeReport, ReportPart, run_token
from lagloss_server.incidents.deliveries import outbox_table
from lagloss_server.incidents.receiver_check import receiver_table
from lagloss_server.net.outcome import Outcome, Refused, Sent, TryLater

KINDS: Final = ("slack", "webhook", "apprise")
"""Kinds of receivers that a report can go to; the others page, or have mails of their own."""
ONE_BY_ONE: Final = "webhook"
"""The kind that gets a message for each part, with all of its figures; the others get one summary."""
MAX_DOCUMENT_BYTES: Final = 400 * 1024
"""A message has no more than 512 KiB."""

Message = dict[str, Any]


def read_kinds(connection: Connection, names: Sequence[str]) -> dict[str, str]:
    """Return the kinds of these receivers, of those that the leading alerter has."""
    row = receiver_table.c
    rows = connection.execute(select(row.name, row.kind).where(row.name.in_(names)))
    return {receiver.name: receiver.kind for receiver in rows}


def problem_of(name: str, kind: str | None) -> Outcome:
    """Return why a receiver of this kind (None: there is none of this name) cannot have a report; `Sent` if it can."""
    if kind is None:
        return TryLater(f"receiver {name}: the active alerter has no receiver of this name")
    return (
        Sent() if kind in KINDS else Refused(f"receiver {name} is of kind {kind}; reports can go to {', '.join(KINDS)}")
    )


def queue(connection: Connection, report: MadeReport, kinds: Mapping[str, str], *run: object) -> None:
    """Queue a report for these receivers. `run` is of the time that it was due: it makes keys that are the same for
    each attempt."""
    group = f"report/{run_token(*run)}"
    rows = [
        {"receiver": name, "action": "report", "change": "report", "group_key": group, "body": body}
        for name, kind in kinds.items()
        for body in bodies(report, kind, name, *run)
    ]
    if rows:
        connection.execute(insert(outbox_table), rows)


def bodies(report: MadeReport, kind: str, *run: object) -> list[Message]:
    """Return the messages to a receiver of this kind."""
    if kind != ONE_BY_ONE:
        return [_body(report, [_part(part) for part in report.parts], *run)]
    messages = []
    for part in report.parts:
        fits = len(json.dumps(part.document)) <= MAX_DOCUMENT_BYTES
        document = part.document if fits else None
        messages.append(_body(report, [{**_part(part), "document": document}], *run, part.title))
    return messages


def _body(report: MadeReport, parts: Sequence[Message], *run: object) -> Message:
    return {
        "version": 1,
        "type": "report",
        "idempotency_key": f"report-{run_token(*run)}",
        "report": {"name": report.name, "title": report.title, "range": report.span.document()},
        "notes": list(report.notes),
        "parts": list(parts),
    }


def _part(part: ReportPart) -> Message:
    return {
        "title": part.title,
        "status": part.status,
        "headline": part.headline,
        "sentences": list(part.sentences),
        "link": part.link or None,
    }


def combined(outcomes: Sequence[Outcome]) -> Outcome:
    """Return one outcome for several ways: tried again if one of them may still work, else refused if one is."""
    errors = "; ".join(outcome.error for outcome in outcomes if not isinstance(outcome, Sent))
    later = [outcome for outcome in outcomes if isinstance(outcome, TryLater)]
    if later:
        return TryLater(errors, max((part.after_s for part in later if part.after_s is not None), default=None))
    return Refused(errors) if errors else Sent()
