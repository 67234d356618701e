"""Windows as pandas data frames, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from math import ceil
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import to_builtins

from lagloss_server.base.errors import NotebookMissing
from lagloss_server.base.settings import Settings
from lagloss_server.base.times import parse_time_s
from lagloss_server.model.window import ListedWindow
from lagloss_server.store.store import Store

if TYPE_CHECKING:
    from pandas import DataFrame

Of = Literal["windows", "checkpoints", "nodes", "links", "destinations", "reasons"]
_PARTS: Final = ("checkpoints", "nodes", "links", "destinations")
_NESTED: Final = (*_PARTS, "crashes", "unknown_checkpoints", "reasons_by_node", "staleness_ms")
"""Fields of a window that have a frame of their own, or are no single values."""
_MOMENTS: Final = ("window_start", "closed_at")


def read_windows(
    pipeline: str, from_: str = "-1h", to: str = "now", *, of: Of = "windows", database_url: str | None = None
) -> DataFrame:
    """Return the windows of a pipeline with from <= start < to, oldest first, one row each.

    Args:
        pipeline: its name.
        from_: RFC 3339 or relative (`-2h`).
        to: likewise.
        of: return a row for each checkpoint, node, link, destination, or reason for which messages were filtered or
            dead-lettered, of each window, instead.
        database_url: by default that of the settings, or of a running `lagloss up`.

    Returns:
        The columns are the fields of `lagloss windows --json`, nested ones joined by an underscore: `lost_min`,
        `e2e_lag_ms_p95`.

    Raises:
        LaglossError: pandas is not installed, the pipeline is unknown, a time is invalid, or the database does not
            answer.
    """
    from_s, to_s = ceil(parse_time_s(from_)), ceil(parse_time_s(to))
    with closing(Store(Settings.load(database_url=database_url).require_database())) as store:
        store.check()
        store.demand(pipeline)
        windows = store.windows(pipeline, from_s, to_s)
    return windows_frame(windows, of)


def windows_frame(windows: Iterable[ListedWindow], of: Of = "windows") -> DataFrame:
    """Return a row for each window, or for each of its parts; empty without any.

    Raises:
        NotebookMissing: pandas is not installed.
        ValueError: there is no such part.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise NotebookMissing(what="read_windows", package="pandas", instead="") from error
    if of == "windows":
        printed = (to_builtins(window.contract()) for window in windows)
        rows = [{name: value for name, value in row.items() if name not in _NESTED} for row in printed]
    elif of == "reasons":
        rows = [_of_window(window) | asdict(row) for window in windows for row in window.reason_rows]
    elif of in _PARTS:
        rows = [_of_window(window) | part for window in windows for part in _parts(window, of)]
    else:
        raise ValueError(f"expected one of windows, reasons, {', '.join(_PARTS)}, found {of}")
    frame: DataFrame = pd.json_normalize(rows, sep="_")
    for name in _MOMENTS:
        if name in frame:
            frame[name] = pd.to_datetime(frame[name], format="ISO8601", utc=True)
    return frame


def _parts(window: ListedWindow, of: Of) -> Iterator[dict[str, Any]]:
    """Yield the rows of a list in a window; those of checkpoints with their staleness."""
    for part in to_builtins(getattr(window, of)):
        stale_ms = {"staleness_ms": window.staleness_ms.get(part["name"])} if of == "checkpoints" else {}
        yield {**part, **stale_ms}


def _of_window(window: ListedWindow) -> dict[str, Any]:
    return {"pipeline": window.pipeline, "window_start": window.window_start}
