"""The report as one HTML document that needs nothing else, and as PDF of it. Nothing is fetched for either."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from dashboard.design import LIGHT, css_variables
from dashboard.reports import wording
from dashboard.reports.parts import Layout
from lagloss_server.base.errors import PangoMissing


def page(layout: Layout) -> str:
    """Return the document. Everything but the drawings is escaped by the template, and they escape what they are
    given."""
    return _template().render(
        of=layout,
        made=wording.local(layout.made_at_s, layout.span.zone),
        range_words=wording.range_words(layout.span),
        look=wording.STATUSES[layout.status],
        drawn=Markup,
        style=Markup(f"{css_variables(LIGHT)}\n{_file('report.css')}"),
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


def pdf(page: str) -> bytes:
    """Return a PDF of this HTML document.

    Raises:
        PangoMissing: the libraries that lay out text are not installed.
    """
    try:
        with redirect_stdout(io.StringIO()):  # it prints advice of its own before it raises
            import weasyprint  # loads Pango, which only this form needs
    except OSError as error:
        raise PangoMissing(detail=str(error).split(":")[0]) from error
    nothing = weasyprint.URLFetcher(allowed_protocols=())
    document: bytes = weasyprint.HTML(string=page, url_fetcher=nothing).write_pdf(pdf_tags=True)
    return document
