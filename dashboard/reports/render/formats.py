"""The forms of a report: how each is made, called and sent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dashboard.reports.model import Report
from dashboard.reports.parts import Layout
from dashboard.reports.portfolio import Portfolio
from dashboard.reports.portfolio_sections import layout as portfolio_layout
from dashboard.reports.render.html import page, pdf
from dashboard.reports.render.markdown import markdown
from dashboard.reports.render.spreadsheet import spreadsheet
from dashboard.reports.sections import layout as report_layout
from dashboard.reports.wording import range_words
from lagloss.errors import UsageError

Reported = Report | Portfolio


@dataclass(frozen=True, slots=True)
class Format:
    """`render` takes what is reported and the dashboard's address, which links begin with."""

    media_type: str
    render: Callable[[Reported, str], bytes]
    is_binary: bool = False


def _layout(document: Reported, base_url: str) -> Layout:
    return (
        portfolio_layout(document, base_url) if isinstance(document, Portfolio) else report_layout(document, base_url)
    )


FORMATS: Final = {
    "md": Format("text/markdown; charset=utf-8", lambda document, url: markdown(_layout(document, url)).encode()),
    "html": Format("text/html; charset=utf-8", lambda document, url: page(_layout(document, url)).encode()),
    "pdf": Format("application/pdf", lambda document, url: pdf(page(_layout(document, url))), is_binary=True),
    "csv": Format("text/csv; charset=utf-8; header=present", lambda document, url: spreadsheet(document, url).encode()),
    "json": Format("application/json", lambda document, url: f"{json.dumps(document.document(url))}\n".encode()),
}


def format_of(name: str) -> Format:
    """Return the form of this name.

    Raises:
        UsageError: there is none.
    """
    if name not in FORMATS:
        raise UsageError(detail=f"expected a format ({', '.join(FORMATS)}), found {name[:40]!r}")
    return FORMATS[name]


def render(report: Reported, fmt: str, base_url: str = "") -> bytes:
    """Return a report or portfolio in one of FORMATS. `base_url`: the dashboard's address, for links; empty where it is
    not known.

    Raises:
        UsageError: no such form.
        PangoMissing: of PDF only.
    """
    return format_of(fmt).render(report, base_url)


def file_name(report: Reported, fmt: str) -> str:
    """`lagloss-clicks-2026-11.pdf`, `lagloss-portfolio-team-web-2026-11.pdf`: letters, digits, dots and dashes only."""
    name = f"portfolio-{report.name[:100]}" if isinstance(report, Portfolio) else report.name
    words = f"lagloss-{name}-{range_words(report.span)}"
    return f"{re.sub(r'[^A-Za-z0-9_]+', '-', words)}.{fmt}"
