"""From a scheduled report to its mail: the parts of its pipelines, made one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from email.message import EmailMessage

from dashboard.reports.contents import Maker, ReportPart
from dashboard.reports.mailing import compose
from dashboard.reports.ranges import CalendarSpan
from dashboard.reports.schedule_file import ReportSpec
from dashboard.reports.wording import range_words
from lagloss_server.errors import UnknownPipeline
from lagloss_server.model.definition import Definition
from lagloss_server.store.store import Store


class Producer:
    """Makes mails from a sender's address of what `make` makes of the store's pipelines."""

    def __init__(self, store: Store, sender: str, make: Maker) -> None:
        self._store = store
        self._sender = sender
        self._make = make

    def definitions(self, report: ReportSpec) -> list[Definition]:
        """Return the definitions of the report's pipelines, without unknown ones."""
        found = [stored.definition for stored in self._store.pipelines()]
        return [each for each in found if report.pipelines is None or each.name in report.pipelines]

    def mail(
        self,
        report: ReportSpec,
        span: CalendarSpan,
        recipients: Sequence[str],
        name: str,
        now_s: float,
        unsettled: Sequence[str] = (),
        before_each: Callable[[], None] = lambda: None,
    ) -> EmailMessage:
        """Return the report's mail, with `name` as its Message-ID. `unsettled`: pipelines whose range is not all
        closed; `before_each` is called before each pipeline, and may raise to end it."""
        notes = [f"Windows of this range are not all closed yet of {', '.join(unsettled)}."] if unsettled else []
        names = report.pipelines or self._store.names()
        if not names:
            notes.append("There is no pipeline.")
        parts = []
        for pipeline in names:
            before_each()
            parts.append(self._part(report, pipeline, span, now_s))
        return compose(
            f"SLA report {report.name}: {range_words(span)} ({span.zone})", parts, notes, self._sender, recipients, name
        )

    def _part(self, report: ReportSpec, pipeline: str, span: CalendarSpan, now_s: float) -> ReportPart:
        try:
            return self._make(self._store, pipeline, span, report.formats, now_s)
        except UnknownPipeline as error:  # deleted since the file was written
            return ReportPart(pipeline, "no report", (str(error),))
