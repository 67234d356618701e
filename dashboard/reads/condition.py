"""Why there is nothing to draw of a pipeline, or how old what is drawn has become."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import func, select

from lagloss import tables
from lagloss.store import Store
from lagloss.wire import WINDOW_S

SILENT_AFTER_MS: Final = 60_000
"""An emitter that has not reported for so long counts as silent (rule 7)."""
STALE_AFTER_GRACE_S: Final = 180
"""A newest closed window that ended longer ago than grace and this should not be the newest."""


class Condition(StrEnum):
    """What a reader has to know before the numbers."""

    FINE = "fine"
    STALE = "stale"
    IDLE = "idle"
    BLIND = "blind"
    NOT_CLOSED = "not closed yet"
    NOTHING_IN_RANGE = "nothing in range"


@dataclass(frozen=True, slots=True)
class Freshness:
    """How recent what is known of a pipeline is. Epoch s, None where there is nothing: `newest_s`, the start of the
    newest closed window; `verdict`, of that one; `live_s`, the start of the newest minute with a tally; `reported_s`,
    when its newest report was appended. `reporting` of its `emitters` reported within a minute."""

    newest_s: int | None
    verdict: str | None
    live_s: int | None
    reported_s: float | None
    emitters: int
    reporting: int

    def document(self) -> dict[str, Any]:
        return asdict(self)


def read_freshness(store: Store, pipeline: str, now_s: float) -> Freshness:
    """How recent what is known of this pipeline is."""
    window, tally, emitter = tables.Window, tables.Tally, tables.Emitter
    newest = (
        select(window.window_start, window.verdict)
        .where(window.pipeline == pipeline)
        .order_by(window.window_start.desc())
        .limit(1)
    )
    live = select(tally.window_start).where(tally.pipeline == pipeline).order_by(tally.window_start.desc()).limit(1)
    heard_after = int(now_s * 1_000) - SILENT_AFTER_MS
    reports = select(
        func.max(emitter.appended_at),
        func.count(),
        func.count().filter(emitter.appended_at >= heard_after),
    ).where(emitter.pipeline == pipeline)
    with store.engine.connect() as connection:
        row = connection.execute(newest).one_or_none()
        live_s = connection.execute(live).scalar_one_or_none()
        reported_ms, emitters, reporting = connection.execute(reports).one()
    return Freshness(
        newest_s=None if row is None else row.window_start,
        verdict=None if row is None else row.verdict,
        live_s=live_s,
        reported_s=reported_ms / 1_000 if emitters else None,
        emitters=emitters,
        reporting=reporting,
    )


def condition(fresh: Freshness, grace_s: float, now_s: float, has_windows: bool, *, ends_now: bool = True) -> Condition:
    """`has_windows`: whether there is anything to draw in the range that was asked for; `ends_now`: whether that range
    holds this moment, so that something should be there."""
    if fresh.newest_s is None:
        if fresh.live_s is not None:
            return Condition.NOT_CLOSED
        return Condition.IDLE if fresh.reporting else Condition.BLIND
    if not has_windows and not ends_now:
        return Condition.NOTHING_IN_RANGE
    is_late = now_s - fresh.newest_s - WINDOW_S > grace_s + STALE_AFTER_GRACE_S
    if not fresh.reporting and (is_late or fresh.verdict == "unknown"):
        return Condition.BLIND
    if is_late:
        return Condition.STALE
    if not has_windows:
        return Condition.NOTHING_IN_RANGE
    return Condition.IDLE if fresh.verdict == "idle" else Condition.FINE
