"""One reading of the store for the page: what a view shows, or which of the empty states it is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

from sqlalchemy.exc import SQLAlchemyError

from dashboard import words
from dashboard.view import WINDOW_S, View
from dashboard.words import Document
from lagloss.incidents import Delivery, Incident, failed_deliveries, incidents
from lagloss.store import MissingMessage, Store, StoredPipeline

_FUTURE_S = 3_600
"""How far beyond now windows are looked for: event times may run ahead of this machine's clock."""


class Empty(StrEnum):
    """Why there is nothing to draw."""

    NO_PIPELINE = "no pipeline"
    UNKNOWN_PIPELINE = "unknown pipeline"
    NO_WINDOW = "no window"
    NOTHING_IN_RANGE = "nothing in range"
    QUERY_FAILED = "query failed"


@dataclass(frozen=True, slots=True)
class Reading:
    """What the page draws. `windows` are those in [from_s, to_s), oldest first; `newest` is the newest closed one that
    the store has, in range or not; `chosen` is the one whose table is shown. `incidents`: the pipeline's open ones;
    `failed`: notifications that were given up, of any pipeline."""

    view: View
    now_s: float
    from_s: int
    to_s: int
    empty: Empty | None = None
    error: str = ""
    names: list[str] = field(default_factory=list)
    pipeline: StoredPipeline | None = None
    windows: list[Document] = field(default_factory=list)
    newest: Document | None = None
    chosen: Document | None = None
    missing: list[MissingMessage] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    failed: list[Delivery] = field(default_factory=list)


def read(store: Store, view: View, now_s: float) -> Reading:
    """Never raises for a database that is away: that is one of the states to show."""
    try:
        found = replace(_read(store, view, now_s), failed=failed_deliveries(store, datetime.fromtimestamp(now_s, UTC)))
        return (
            found
            if found.pipeline is None
            else replace(found, incidents=incidents(store, pipeline=found.pipeline.name))
        )
    except SQLAlchemyError as error:
        from_s, to_s = view.bounds_s(now_s)
        detail = str(getattr(error, "orig", None) or error).strip().splitlines()
        return Reading(
            view, now_s, from_s, to_s, Empty.QUERY_FAILED, error=detail[0] if detail else type(error).__name__
        )


def _read(store: Store, view: View, now_s: float) -> Reading:
    from_s, to_s = view.bounds_s(now_s)
    stored = {pipeline.name: pipeline for pipeline in store.pipelines()}
    names = list(stored)
    if not stored:
        return Reading(view, now_s, from_s, to_s, Empty.NO_PIPELINE)
    pipeline = stored.get(view.pipeline or names[0])
    if pipeline is None:
        return Reading(view, now_s, from_s, to_s, Empty.UNKNOWN_PIPELINE, names=names)
    windows = store.windows(pipeline.name, from_s, to_s)
    newest = _newest_closed(windows) or _newest_closed(
        store.windows(pipeline.name, 0, int(now_s) + _FUTURE_S, limit=30)
    )
    empty = None
    if not windows:
        empty = Empty.NO_WINDOW if newest is None else Empty.NOTHING_IN_RANGE
    chosen = _chosen(store, pipeline.name, view, windows, newest)
    missing: list[MissingMessage] = []
    if chosen is not None and chosen["verdict"] is not None:
        missing = store.missing(pipeline.name, words.start_s(chosen))
    return Reading(view, now_s, from_s, to_s, empty, "", names, pipeline, windows, newest, chosen, missing)


def _newest_closed(windows: list[Document]) -> Document | None:
    return next((window for window in reversed(windows) if window["verdict"] is not None), None)


def _chosen(store: Store, name: str, view: View, windows: list[Document], newest: Document | None) -> Document | None:
    if view.window_s is None:
        return newest
    for window in windows:
        if words.start_s(window) == view.window_s:
            return window
    found = store.windows(name, view.window_s, view.window_s + WINDOW_S)
    return found[0] if found else None
