"""Every page there is, and which of them a path leads to."""

from __future__ import annotations

from typing import Final

from dashboard.pages import alerts, health, incident, message, overview, pipeline, report, window
from dashboard.pages.base import Page

PAGES: Final[tuple[Page, ...]] = (
    overview.PAGE,
    pipeline.PAGE,
    window.PAGE,
    message.PAGE,
    report.PAGE,
    alerts.PAGE,
    incident.PAGE,
    health.PAGE,
)


def find(path: str) -> tuple[Page, dict[str, str]] | None:
    """Return the page of a path, and what its path is of; None: there is none."""
    for page in PAGES:
        of = page.match(path)
        if of is not None:
            return page, of
    return None
