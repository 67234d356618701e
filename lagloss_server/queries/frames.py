"""Windows as pandas data frames: what `lagloss.read_windows` returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from lagloss_server.model.window_result import contract_document, reason_rows
from lagloss_server.settings import Settings
from lagloss_server.store.store import Store
from lagloss_server.times import parse_time_s

if TYPE_CHECKING:
    from lagloss.notebook import Of

_PARTS: Final = ("checkpoints", "nodes", "links", "destinations")
_NESTED: Final = (*_PARTS, "crashes", "unknown_checkpoints", "reasons_by_node", "staleness_ms")
"""Fields of a window that have a frame of their own, or are no single values."""
_MOMENTS: Final = ("window_start", "closed_at")


def read_windows(pipeline: str, from_: str, to: str, *, of: Of, database_url: str | None) -> pd.DataFrame:
    """Read windows as `lagloss.read_windows` says."""
    from_s, to_s = ceil(parse_time_s(from_)), ceil(parse_time_s(to))
    with closing(Store(Settings.load(database_url=database_url).require_database())) as store:
        store.check()
        store.demand(pipeline)
        found = [contract_document(window) for window in store.windows(pipeline, from_s, to_s)]
    return windows_frame(found, of)


def windows_frame(windows: Iterable[Mapping[str, Any]], of: Of = "windows") -> pd.DataFrame:
    """Return a row for each window's document, or for each of its parts; empty without any.

    Raises:
        ValueError: there is no such part.
    """
    if of == "windows":
        rows = [{name: value for name, value in window.items() if name not in _NESTED} for window in windows]
    elif of == "reasons":
        rows = [_of_window(window) | asdict(row) for window in windows for row in reason_rows(window)]
    elif of in _PARTS:
        rows = [_of_window(window) | part for window in windows for part in _parts(window, of)]
    else:
        raise ValueError(f"expected windows, reasons, {', '.join(_PARTS)}, found {of}")
    frame = pd.json_normalize(rows, sep="_")
    for name in _MOMENTS:
        if name in frame:
            frame[name] = pd.to_datetime(frame[name], format="ISO8601", utc=True)
    return frame


def _parts(window: Mapping[str, Any], of: Of) -> Iterator[dict[str, Any]]:
    """Yield the rows of a list in a window; those of checkpoints with their staleness."""
    stale_ms = window["staleness_ms"]
    for part in window.get(of, ()):
        yield {**part, "staleness_ms": stale_ms.get(part["name"])} if of == "checkpoints" else dict(part)


def _of_window(window: Mapping[str, Any]) -> dict[str, Any]:
    return {"pipeline": window["pipeline"], "window_start": window["window_start"]}
