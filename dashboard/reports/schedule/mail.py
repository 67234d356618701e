"""A scheduled report as it is made, and its mail: a summary as text and HTML, the documents attached."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email import policy
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any, Final

from dashboard.reports.ranges import CalendarRange
from lagloss_server.net.mail import addr_spec
from lagloss_server.net.sanitize import one_line
from lagloss_server.sums.error_budget import Status


@dataclass(frozen=True, slots=True)
class Attachment:
    """One of the report's forms, as a file. `media_type` may have parameters."""

    name: str
    media_type: str
    content: bytes


@dataclass(frozen=True, slots=True)
class ReportPart:
    """One pipeline's, or a portfolio's: `headline` is a few words, `link` leads to its page, where the dashboard's
    address is known, `document` is its JSON form."""

    title: str
    headline: str
    sentences: tuple[str, ...]
    link: str = ""
    attachments: tuple[Attachment, ...] = ()
    status: Status = "none"
    document: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class MadeReport:
    """A scheduled report over its range. `notes`: remarks on all of it."""

    name: str
    title: str
    span: CalendarRange
    parts: tuple[ReportPart, ...]
    notes: tuple[str, ...]


MAX_SUBJECT: Final = 200
MAX_ATTACHED_BYTES: Final = 15 * 2**20
"""Many servers take mails of 25 MB, and base64 adds a third."""


def run_token(*run: object) -> str:
    """Return the same token for each attempt of a run."""
    return hashlib.sha256("\n".join(map(str, run)).encode()).hexdigest()[:32]


def message_id(sender: str, *run: object) -> str:
    """Return the same id for each attempt of a run: a mail delivered twice is shown once."""
    return f"<report-{run_token(*run)}@{addr_spec(sender).rpartition('@')[2]}>"


def compose(report: MadeReport, sender: str, recipients: Sequence[str], name: str) -> EmailMessage:
    """Return the mail. `name`: its Message-ID. Documents that would make it too large are left out, which it
    mentions."""
    subject, parts, notes = report.title, report.parts, report.notes
    attached, left_out = _fitting(parts)
    if left_out:
        names = ", ".join(pipeline.name for pipeline in left_out)
        limit = MAX_ATTACHED_BYTES // 2**20
        notes = (*notes, f"Omitted because a mail is limited to {limit} MiB of documents: {names}.")
    mail = EmailMessage(policy=policy.SMTP)
    mail["From"] = sender
    mail["To"] = ", ".join(recipients)
    mail["Subject"] = one_line(subject, MAX_SUBJECT)
    mail["Date"] = format_datetime(datetime.now(UTC))
    mail["Message-ID"] = name
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(as_text(subject, parts, notes), cte="quoted-printable")
    mail.add_alternative(as_html(subject, parts, notes), subtype="html", cte="quoted-printable")
    for document in attached:
        media_type, *parameters = document.media_type.split("; ")
        maintype, _, subtype = media_type.partition("/")
        params = dict(parameter.split("=", 1) for parameter in parameters)
        mail.add_attachment(document.content, maintype=maintype, subtype=subtype, filename=document.name, params=params)
    return mail


def as_text(subject: str, parts: Sequence[ReportPart], notes: Sequence[str]) -> str:
    """Return the summary in plain text."""
    summary = ["\n".join([f"{part.title}: {part.headline}", *part.sentences, *_link(part)]) for part in parts]
    return "\n\n".join([subject, *notes, *summary]) + "\n"


def _link(part: ReportPart) -> list[str]:
    return [part.link] if part.link else []


def as_html(subject: str, parts: Sequence[ReportPart], notes: Sequence[str]) -> str:
    """Return the summary as a page for mail: no scripts, styles in place, every text escaped."""
    title = html.escape(subject)
    sentence = "".join(f"<p>{html.escape(note)}</p>\n" for note in notes)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>\n'
        f'<body style="font-family:sans-serif"><h1 style="font-size:18px">{title}</h1>\n{sentence}'
        f"{''.join(map(_part_html, parts))}</body></html>\n"
    )


def _part_html(part: ReportPart) -> str:
    name, headline = html.escape(part.title), html.escape(part.headline)
    heading = f'<a href="{html.escape(part.link)}">{name}</a>' if part.link else name
    sentences = "<br>\n".join(map(html.escape, part.sentences))
    return f'<h2 style="font-size:15px">{heading}: {headline}</h2>\n<p>{sentences}</p>\n'


def _fitting(parts: Sequence[ReportPart]) -> tuple[list[Attachment], list[Attachment]]:
    """Return the documents that can go along, in order, and the others."""
    attached: list[Attachment] = []
    left_out: list[Attachment] = []
    size = 0
    for document in (document for part in parts for document in part.attachments):
        fits = size + len(document.content) <= MAX_ATTACHED_BYTES
        (attached if fits else left_out).append(document)
        size += len(document.content) if fits else 0
    return attached, left_out
