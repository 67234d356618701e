"""What a scheduled report holds: of each pipeline how it fared, in sentences, and the documents to attach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dashboard.reports.formats import FORMATS, file_name, render
from dashboard.reports.making import make_report
from dashboard.reports.ranges import CalendarSpan
from dashboard.reports.wording import status, verdict_sentences
from lagloss_server.store.store import Store


@dataclass(frozen=True, slots=True)
class Attachment:
    """One of the report's forms, as a file. `media_type` may have parameters."""

    name: str
    media_type: str
    content: bytes


@dataclass(frozen=True, slots=True)
class ReportPart:
    """One pipeline's: `headline` is a few words, `link` leads to its page, where the dashboard's address is known."""

    pipeline: str
    headline: str
    sentences: tuple[str, ...]
    link: str = ""
    attachments: tuple[Attachment, ...] = ()


Maker = Callable[[Store, str, CalendarSpan, tuple[str, ...], float], ReportPart]
"""Makes the part of a pipeline (by name) for a range, in these of FORMATS, as of now (epoch s).

Raises UnknownPipeline where there is none.
"""


def maker(base_url: str) -> Maker:
    """Make parts of SLA reports. `base_url`: the dashboard's address, for links; empty where it is not known."""

    def make(store: Store, pipeline: str, span: CalendarSpan, formats: tuple[str, ...], now_s: float) -> ReportPart:
        report = make_report(store, pipeline, span, now_s)
        attachments = (
            Attachment(file_name(report, name), FORMATS[name].media_type, render(report, name, base_url))
            for name in formats
        )
        link = report.links(span.from_s, span.to_s, base_url)["page"] if base_url else ""
        return ReportPart(pipeline, status(report.status), tuple(verdict_sentences(report)), link, tuple(attachments))

    return make
