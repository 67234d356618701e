"""When a window is due, a pipeline stale and an emitter silent: one definition each, for closing, pages and alerts.

Pure. DESIGN.md defines "due" (Closing a window) and silence (rule 7); docs/dashboard.md and docs/alerting.md the rest.
"""

from __future__ import annotations

from typing import Final

from lagloss.wire.format import WINDOW_S

CLOSES_WITHIN_S: Final = 60
"""A due window is not missed before this long: closing it takes a moment."""
STALE_AFTER_S: Final = 180
"""Pages and alerts complain when a window has been due, or a node without a report, for longer than this."""
SILENT_AFTER_MS: Final = 60_000
"""An emitter without `closed` and without a report appended for this long has fallen silent."""
EXPECTED_FOR_MS: Final = SILENT_AFTER_MS + 600_000
"""Time after its last report for which a silent emitter is still expected."""


def due_ms(window_start_s: int, grace_ms: int) -> int:
    """Return when a window becomes due (epoch ms): its end and the pipeline's grace have passed."""
    return (window_start_s + WINDOW_S) * 1000 + grace_ms


def newest_due_s(now_ms: float, grace_ms: int) -> int:
    """Return the start (epoch s) of the newest window that is due."""
    return int(now_ms - grace_ms) // (WINDOW_S * 1000) * WINDOW_S - WINDOW_S


def expected_to_s(now_s: float, grace_ms: int) -> float:
    """Return the start (epoch s) of the first window that cannot be expected to be closed yet."""
    return now_s - WINDOW_S - grace_ms / 1000 - CLOSES_WITHIN_S


def stale_after_s(grace_ms: int) -> float:
    """Return how long after the end of its newest closed window a pipeline is stale."""
    return grace_ms / 1000 + STALE_AFTER_S


def is_stale(newest_s: int, grace_ms: int, now_s: float) -> bool:
    """Return whether a pipeline whose newest closed window starts then (epoch s) is stale."""
    return now_s - newest_s - WINDOW_S > stale_after_s(grace_ms)
