"""The mail of a scheduled report: a summary as text and HTML, the documents attached."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Sequence
from datetime import UTC, datetime
from email import policy
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Final

from dashboard.report.contents import Attachment, Part
from lagloss.one_line import one_line
from lagloss.outgoing.mail import addr_spec

MAX_SUBJECT: Final = 200
MAX_ATTACHED_BYTES: Final = 15 * 2**20
"""Many servers take mails of 25 MB, and base64 adds a third."""


def message_id(sender: str, *run: object) -> str:
    """The same for each attempt of a run: whoever gets a mail twice sees it once."""
    token = hashlib.sha256("\n".join(map(str, run)).encode()).hexdigest()[:32]
    return f"<report-{token}@{addr_spec(sender).rpartition('@')[2]}>"


def compose(
    subject: str, parts: Sequence[Part], notes: Sequence[str], sender: str, recipients: Sequence[str], name: str
) -> EmailMessage:
    """The mail. `name`: its Message-ID; `notes`: what is to be said of all of it. Documents that would make it too
    large to be taken are left out, which it tells."""
    attached, left_out = _fitting(parts)
    if left_out:
        names = ", ".join(each.name for each in left_out)
        limit = MAX_ATTACHED_BYTES // 2**20
        notes = [*notes, f"Left out, since mails should have no more than {limit} MiB of documents: {names}."]
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
        maintype, _, subtype = document.kind.partition("/")
        mail.add_attachment(document.data, maintype=maintype, subtype=subtype, filename=document.name)
    return mail


def as_text(subject: str, parts: Sequence[Part], notes: Sequence[str]) -> str:
    """The summary in plain text."""
    blocks = [subject, *notes]
    for part in parts:
        width = max((len(label) for label, _ in part.figures), default=0) + 1
        lines = [f"  {label + ':':{width}} {value}" for label, value in part.figures]
        blocks.append("\n".join([part.pipeline, *([f"  {part.problem}"] if part.problem else []), *lines]))
    return "\n\n".join(blocks) + "\n"


def as_html(subject: str, parts: Sequence[Part], notes: Sequence[str]) -> str:
    """The summary as a page for mail: no scripts, styles in place, every text escaped."""
    title = html.escape(subject)
    said = "".join(f"<p>{html.escape(note)}</p>\n" for note in notes)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>\n'
        f'<body style="font-family:sans-serif"><h1 style="font-size:18px">{title}</h1>\n{said}'
        f"{''.join(map(_part_html, parts))}</body></html>\n"
    )


def _part_html(part: Part) -> str:
    rows = "".join(
        f'<tr><th scope="row" style="text-align:left;font-weight:normal;padding-right:12px">{html.escape(label)}</th>'
        f"<td>{html.escape(value)}</td></tr>"
        for label, value in part.figures
    )
    problem = f"<p>{html.escape(part.problem)}</p>" if part.problem else ""
    return f'<h2 style="font-size:15px">{html.escape(part.pipeline)}</h2>{problem}<table>{rows}</table>\n'


def _fitting(parts: Sequence[Part]) -> tuple[list[Attachment], list[Attachment]]:
    """The documents that can go along, in order, and the others."""
    attached: list[Attachment] = []
    left_out: list[Attachment] = []
    size = 0
    for document in (document for part in parts for document in part.attachments):
        fits = size + len(document.data) <= MAX_ATTACHED_BYTES
        (attached if fits else left_out).append(document)
        size += len(document.data) if fits else 0
    return attached, left_out
