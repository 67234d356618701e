"""Stored results: windows and roll-ups, unpacked row by row. One that cannot be unpacked is noted and left out.

A window that is left out counts as a missing minute. In place of a roll-up that is left out, finer rows are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lagloss_server.judging.facts import WindowFacts
from lagloss_server.model.window import Window
from lagloss_server.store.unreadable import RESULTS, ResultKind
from lagloss_server.sums.rollup import Period, Rollup

T = TypeVar("T")


def unpack_window(pipeline: str, start_s: int, packed: bytes, revision: int | None = None) -> Window | None:
    """Return the result of a window, or an earlier `revision` of it; None, and note the row, if it is unreadable."""
    name = str(start_s) if revision is None else f"{start_s}/{revision}"
    return unpack("window", pipeline, name, lambda: Window.unpack(packed))


def unpack_facts(pipeline: str, start_s: int, packed: bytes) -> WindowFacts | None:
    """Return the facts of a window; None, and note the row, if they are unreadable."""
    return unpack("window", pipeline, f"{start_s}/facts", lambda: WindowFacts.unpack(packed))


def unpack_minute(pipeline: str, start_s: int, packed: bytes, packed_facts: bytes) -> Rollup | None:
    """Return the roll-up of one window; None, and note the row, if its result or its facts are unreadable."""
    window, facts = unpack_window(pipeline, start_s, packed), unpack_facts(pipeline, start_s, packed_facts)
    return None if window is None or facts is None else Rollup.of_window(window, facts)


def unpack_rollup(pipeline: str, period: Period, start_s: int, packed: bytes) -> Rollup | None:
    """Return a roll-up; None, and note the row, if it is unreadable."""
    return unpack("rollup", pipeline, f"{period}/{start_s}", lambda: Rollup.unpack(packed))


def unpack(kind: ResultKind, pipeline: str, name: str, read: Callable[[], T]) -> T | None:
    """Return the result of `read`; None, and note the row, if it raises."""
    try:
        value = read()
    except Exception as error:
        RESULTS.note(kind, pipeline, name, error)
        return None
    RESULTS.clear(kind, pipeline, name)
    return value
