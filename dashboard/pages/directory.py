"""Every page there is, and which of them a path leads to."""

from __future__ import annotations

from typing import Any, Final

from dashboard.pages.alerts import page as alerts
from dashboard.pages.audit import page as audit
from dashboard.pages.coverage import page as coverage
from dashboard.pages.groups import page as groups
from dashboard.pages.health import page as health
from dashboard.pages.incident import page as incident
from dashboard.pages.message import page as message
from dashboard.pages.messages import page as messages
from dashboard.pages.overview import page as overview
from dashboard.pages.page import Page
from dashboard.pages.pipeline import page as pipeline
from dashboard.pages.portfolio import page as portfolio
from dashboard.pages.report import page as report
from dashboard.pages.runs import page as runs
from dashboard.pages.window import page as window

PAGES: Final[tuple[Page[Any], ...]] = (
    overview.PAGE,
    portfolio.PAGE,
    pipeline.PAGE,
    window.PAGE,
    message.PAGE,
    runs.PAGE,
    report.PAGE,
    alerts.PAGE,
    incident.PAGE,
    messages.PAGE,
    groups.PAGE,
    coverage.PAGE,
    health.PAGE,
    audit.PAGE,
)


def find(path: str) -> tuple[Page[Any], dict[str, str]] | None:
    """Return the page of a path, and what its path is of; None: there is none."""
    for page in PAGES:
        params = page.match(path)
        if params is not None:
            return page, params
    return None
