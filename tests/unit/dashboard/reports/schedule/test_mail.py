"""The mail of a scheduled report: what stands in it, and that nothing in it can be more than text."""

from __future__ import annotations

from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

import pytest

from dashboard.reports.ranges import CalendarRange
from dashboard.reports.schedule import mail as mailing
from dashboard.reports.schedule.mail import Attachment, MadeReport, ReportPart, compose, message_id

SENDER = "lagloss <lagloss@l.example>"
KEPT = ReportPart(
    "clicks",
    "✔ MET",
    ("Loss MET: 0.1 % lost.", "Unknown: 3 minutes."),
    "https://lagloss.example/pipelines/clicks",
    (
        Attachment("clicks.pdf", "application/pdf", b"%PDF-1.7 ..."),
        Attachment("clicks.csv", "text/csv; charset=utf-8; header=present", "a,ü\n".encode()),
    ),
)


def mail(parts: list[ReportPart], *notes: str, subject: str = "SLA report weekly: 2026-W47 (UTC)") -> EmailMessage:
    """As it arrives."""
    made = MadeReport("weekly", subject, CalendarRange(0, 60, "UTC"), tuple(parts), notes)
    composed = compose(made, SENDER, ["Ada <ada@a.example>", "bob@b.example"], message_id(SENDER, "weekly", 7))
    parsed: Any = message_from_bytes(composed.as_bytes(policy=policy.SMTP), policy=policy.default)
    return parsed


def body(of: EmailMessage, kind: str) -> str:
    found = of.get_body((kind,))
    assert found is not None
    return str(found.get_content())


def test_a_mail_has_a_summary_as_text_and_page_and_the_documents() -> None:
    arrived = mail([KEPT], "Not all windows of this range are closed yet for clicks.")
    assert (arrived["Subject"], arrived["To"]) == (
        "SLA report weekly: 2026-W47 (UTC)",
        "Ada <ada@a.example>, bob@b.example",
    )
    for kind in ("plain", "html"):
        assert "clicks" in body(arrived, kind)
        assert "✔ MET" in body(arrived, kind)
        assert "Unknown: 3 minutes." in body(arrived, kind)
        assert "Not all windows of this range are closed yet for clicks" in body(arrived, kind)
        assert "https://lagloss.example/pipelines/clicks" in body(arrived, kind)
    attached = {each.get_filename(): each for each in arrived.iter_attachments()}
    assert attached["clicks.pdf"].get_content_type() == "application/pdf"
    assert attached["clicks.pdf"].get_payload(decode=True) == b"%PDF-1.7 ..."
    assert attached["clicks.csv"].get_content_type() == "text/csv"
    assert attached["clicks.csv"].get_content() == "a,ü\n"


def test_markup_in_names_and_sentences_stays_text() -> None:
    part = ReportPart("<script>x</script>", "<b>", ("<img src=x>",), 'https://h.example/"onclick="x')
    page = body(mail([part], "<i>", subject="<u>"), "html")
    for markup in ("<script", "<b>", "<img", "<i>", "<u>", '"onclick="'):
        assert markup not in page


def test_a_line_break_in_a_subject_makes_no_header() -> None:
    arrived = mail([KEPT], subject="a\r\nBcc: eve@e.example\r\n\r\nb")
    assert arrived["Bcc"] is None
    assert arrived["Subject"] == "a Bcc: eve@e.example b"


def test_the_message_id_is_of_the_run_and_the_senders_host() -> None:
    assert message_id(SENDER, "weekly", 7) == message_id("other@l.example", "weekly", 7)
    assert message_id(SENDER, "weekly", 7) != message_id(SENDER, "weekly", 8)
    assert message_id(SENDER, "weekly", 7).endswith("@l.example>")


def test_documents_that_would_make_it_too_large_are_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailing, "MAX_ATTACHED_BYTES", 15)
    arrived = mail([KEPT])
    assert [each.get_filename() for each in arrived.iter_attachments()] == ["clicks.pdf"]
    assert "clicks.csv" in body(arrived, "plain")
    assert "Omitted because" in body(arrived, "html")
