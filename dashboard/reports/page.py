"""The report as one HTML document that needs nothing else: no script, no font, no request."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from dashboard.reports import charts, wording
from dashboard.reports.model import Report
from dashboard.reports.sections import sections


def page(report: Report, base_url: str = "") -> str:
    """Return the document. Everything but the charts is escaped by the template, and they escape what they are
    given."""
    drawn = {"burn-down": Markup(charts.burn_down(report)), "days": Markup(charts.days(report))}
    return _template().render(
        title=wording.title(report),
        report=report,
        made=wording.local(report.made_at_s, report.span.zone),
        range_words=wording.range_words(report.span),
        look=wording.STATUSES[report.status],
        sections=sections(report, base_url),
        charts=drawn,
        style=Markup(_file("report.css")),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")


def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text("utf-8")
