"""Runbooks: one page for each kind of incident, for an engineer who was just paged."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

KINDS: Final = (
    "loss",
    "uncertain-loss",
    "lag",
    "on-time",
    "staleness",
    "time-to-loss",
    "budget",
    "blind",
    "dead-letters",
    "duplicates",
    "filtered",
    "volume",
    "corruption",
    "lost-afterwards",
    "deadline",
    "run-failed",
    "output-stale",
    "run-late",
    "pending-age",
    "negative-lag",
)
"""The kinds of rules; each has a page `KIND.md` here."""


def runbook(kind: str) -> str:
    """Return the page as Markdown, whose links lead to other pages here (`lag.md`) and to the dashboard (`/`).

    Raises:
        KeyError: there is no such kind.
    """
    return runbook_file(kind).read_text("utf-8")


def runbook_file(kind: str) -> Traversable:
    """Return the installed file of the page.

    Raises:
        KeyError: there is no such kind.
    """
    if kind not in KINDS:
        raise KeyError(kind)
    return files(__name__) / f"{kind}.md"
