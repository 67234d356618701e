"""Making scheduled reports: whether their range is settled, and the parts of their pipelines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import exists, select

from dashboard.reports.happened import attainments
from dashboard.reports.making import make_report
from dashboard.reports.portfolio import make_portfolio
from dashboard.reports.portfolio_sections import summary
from dashboard.reports.ranges import CalendarRange
from dashboard.reports.render.formats import FORMATS, Reported, file_name, render
from dashboard.reports.schedule.file import ReportSpec
from dashboard.reports.schedule.mail import Attachment, MadeReport, ReportPart
from dashboard.reports.wording import range_words, status, verdict_sentences
from dashboard.request import links
from dashboard.request.shown_range import ShownRange
from lagloss.wire.format import WINDOW_S
from lagloss_server.base.errors import UnknownPipeline, UnreadableDefinition
from lagloss_server.judging.freshness import expected_to_s
from lagloss_server.model.definition import Definition
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store


class Producer:
    """Makes scheduled reports of the store's pipelines. `base_url`: the dashboard's address, for links; empty where it
    is not known. `make` is for tests."""

    def __init__(self, store: Store, base_url: str, make: Maker | None = None) -> None:
        self._store = store
        self._base_url = base_url
        self._make = make or maker(base_url)

    def definitions(self, report: ReportSpec) -> list[Definition]:
        """Return the definitions of the report's pipelines, without unknown ones."""
        return report.chosen([stored.definition for stored in self._store.pipelines()])

    def report(
        self,
        report: ReportSpec,
        span: CalendarRange,
        now_s: float,
        unsettled: Sequence[str] = (),
        before_each: Callable[[], None] = lambda: None,
    ) -> MadeReport:
        """Make the report over a range. `unsettled`: pipelines whose range is not all closed; `before_each` is called
        before each pipeline, and may raise to end it."""
        notes = [f"Not all windows of this range are closed yet for {', '.join(unsettled)}."] if unsettled else []
        title = f"SLA report {report.name}: {range_words(span)} ({span.zone})"
        if report.portfolio:
            before_each()
            part = _portfolio(self._store, report, span, now_s, self._base_url)
            return MadeReport(report.name, title, span, (part,), tuple(notes))
        names = report.pipelines or [definition.name for definition in self.definitions(report)]
        if not names:
            notes.append("There is no such pipeline." if report.match else "There is no pipeline.")
        parts = []
        for pipeline in names:
            before_each()
            parts.append(self._part(report, pipeline, span, now_s))
        return MadeReport(report.name, title, span, tuple(parts), tuple(notes))

    def _part(self, report: ReportSpec, pipeline: str, span: CalendarRange, now_s: float) -> ReportPart:
        try:
            return self._make(self._store, pipeline, span, report.formats, now_s)
        except (UnknownPipeline, UnreadableDefinition) as error:  # deleted since the file was written, or set aside
            return ReportPart(pipeline, "no report", (str(error),))


Maker = Callable[[Store, str, CalendarRange, tuple[str, ...], float], ReportPart]
"""Makes the part of a pipeline (by name) for a range, in these of FORMATS, as of now (epoch s).

Raises UnknownPipeline where there is none.
"""


def maker(base_url: str) -> Maker:
    """Make parts of SLA reports. `base_url`: the dashboard's address, for links; empty where it is not known."""

    def make(store: Store, pipeline: str, span: CalendarRange, formats: tuple[str, ...], now_s: float) -> ReportPart:
        report = make_report(store, pipeline, span, now_s)
        link = report.links(span.from_s, span.to_s, base_url)["page"] if base_url else ""
        sentences = (*verdict_sentences(report), *attainments(report), *report.changes)
        return _part_of(report, pipeline, sentences, link, formats, base_url)

    return make


def _portfolio(store: Store, report: ReportSpec, span: CalendarRange, now_s: float, base_url: str) -> ReportPart:
    portfolio = make_portfolio(store, report.match, span, now_s)
    page = links.portfolio(portfolio.name if portfolio.matchers else "", span.zone, ShownRange(span.from_s, span.to_s))
    link = base_url.rstrip("/") + page.href if base_url else ""
    return _part_of(portfolio, portfolio.name, summary(portfolio), link, report.formats, base_url)


def _part_of(
    reported: Reported, title: str, sentences: Sequence[str], link: str, formats: Sequence[str], base_url: str
) -> ReportPart:
    attachments = (
        Attachment(file_name(reported, name), FORMATS[name].media_type, render(reported, name, base_url))
        for name in formats
    )
    headline, document = status(reported.status), reported.document(base_url)
    return ReportPart(title, headline, tuple(sentences), link, tuple(attachments), reported.status, document)


def unsettled(store: Store, pipelines: Sequence[Definition], span: CalendarRange, now_s: float) -> list[str]:
    """List the names of pipelines with a window of this range that is not closed yet. A pipeline that no emitter has
    ever reported for has none."""
    early = {
        pipeline.name for pipeline in pipelines if expected_to_s(now_s, pipeline.spec.grace) < span.to_s - WINDOW_S
    }
    row, window = tables.PipelineRow, tables.WindowRow
    has_reports = exists().where(tables.EmitterRow.pipeline == row.name)
    # every minute up to the newest due one has its window: the range's last one is closed after all others
    is_closed = exists().where(window.pipeline == row.name, window.window_start >= span.to_s - WINDOW_S)
    names = [pipeline.name for pipeline in pipelines]
    with store.engine.connect() as connection:
        rows = connection.execute(select(row.name).where(tables.is_any(row.name, names), has_reports & ~is_closed))
        return sorted(early | set(rows.scalars()))
