"""The forms of a report: how each is made, called and sent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dashboard.reports.model import Report
from dashboard.reports.render.html import page, pdf
from dashboard.reports.render.markdown import markdown
from dashboard.reports.render.spreadsheet import spreadsheet
from dashboard.reports.wording import range_words
from lagloss.errors import UsageError


@dataclass(frozen=True, slots=True)
class Format:
    """`render` takes the report and the dashboard's address, which links begin with."""

    media_type: str
    render: Callable[[Report, str], bytes]
    is_binary: bool = False


FORMATS: Final = {
    "md": Format("text/markdown; charset=utf-8", lambda report, url: markdown(report, url).encode()),
    "html": Format("text/html; charset=utf-8", lambda report, url: page(report, url).encode()),
    "pdf": Format("application/pdf", lambda report, url: pdf(page(report, url)), is_binary=True),
    "csv": Format("text/csv; charset=utf-8; header=present", lambda report, url: spreadsheet(report, url).encode()),
    "json": Format("application/json", lambda report, url: f"{json.dumps(report.document(url))}\n".encode()),
}


def format_of(name: str) -> Format:
    """Return the form of this name.

    Raises:
        UsageError: there is none.
    """
    if name not in FORMATS:
        raise UsageError(detail=f"expected a format ({', '.join(FORMATS)}), found {name[:40]!r}")
    return FORMATS[name]


def render(report: Report, fmt: str, base_url: str = "") -> bytes:
    """Return the report in one of FORMATS. `base_url`: the dashboard's address, for links; empty where it is not known.

    Raises:
        UsageError: no such form.
        PangoMissing: of PDF only.
    """
    return format_of(fmt).render(report, base_url)


def file_name(report: Report, fmt: str) -> str:
    """`lagloss-clicks-2026-11.pdf`: letters, digits, dots and dashes only."""
    words = f"lagloss-{report.pipeline}-{range_words(report.span)}"
    return f"{re.sub(r'[^A-Za-z0-9_]+', '-', words)}.{fmt}"
