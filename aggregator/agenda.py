"""The agenda: which windows are due or dirty, and when. Pure bookkeeping, rebuilt from PostgreSQL at every start.

A window is closed for the first time when it is due; again when its tallies changed after the closing and have stood
still since, or when time alone may have changed its result (its deadline). See docs/closing.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lagloss.wire import WINDOW_S

SETTLE_MS = 5_000
"""How long a closed window's tallies must stand still before it is closed again; doubles while changes go on."""
MAX_SETTLE_MS = 900_000
PATIENCE = 6
"""A window that never stands still is closed anyway after this many times its settle time."""
CALM_MS = 60_000
"""After standing still this long, the settle time is back to its start."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one window. Times in epoch ms; a basis is a position in the reports.

    `basis` is 0 before the first closing. `dirty_since`, `changed_at`: the first and last change of a tally that the
    last closing did not know of.
    """

    basis: int = 0
    changed_at: int | None = None
    dirty_since: int | None = None
    calm_since: int | None = None
    settle_ms: int = SETTLE_MS
    deadline: int | None = None
    sealed: bool = False

    def is_settled(self, now_ms: int) -> bool:
        """Whether a dirty window has waited long enough to be closed again."""
        if self.dirty_since is None or self.changed_at is None:
            return False
        return now_ms - self.changed_at >= self.settle_ms or now_ms - self.dirty_since >= PATIENCE * self.settle_ms

    def next_settle_ms(self) -> int:
        """The settle time after the coming closing: doubled while changes go on, back to the start after a calm
        minute."""
        if self.basis == 0 or self.dirty_since is None:
            return SETTLE_MS
        calm = self.calm_since is None or self.dirty_since - self.calm_since >= CALM_MS
        return SETTLE_MS if calm else min(2 * self.settle_ms, MAX_SETTLE_MS)


class Agenda:
    """All windows of one pipeline, from its first tally to the newest due one."""

    def __init__(self, grace_ms: int) -> None:
        self.grace_ms = grace_ms
        self._entries: dict[int, Entry] = {}
        self._first: int | None = None
        self._listed_to = 0

    def tally_changed(self, window_start_s: int, basis: int, changed_at: int) -> None:
        """A tally of this window changed; `basis` is the position of the report that brought it."""
        entry = self._entries.get(window_start_s, Entry())
        if self._first is None or window_start_s < self._first:
            self._first, self._listed_to = window_start_s, min(self._listed_to or window_start_s, window_start_s)
        if basis > entry.basis:
            since = entry.dirty_since if entry.dirty_since is not None else changed_at
            newest = max(changed_at, entry.changed_at or 0)
            entry = replace(entry, dirty_since=since, changed_at=newest)
        self._entries[window_start_s] = entry

    def closed(self, window_start_s: int, basis: int, settle_ms: int, deadline: int | None) -> None:
        """The window was closed (or judged again) knowing the reports up to `basis`."""
        entry = self._entries.get(window_start_s, Entry())
        if self._first is None or window_start_s < self._first:
            self._first = window_start_s
        self._entries[window_start_s] = replace(
            entry,
            basis=basis,
            calm_since=entry.changed_at if entry.dirty_since is not None else entry.calm_since,
            dirty_since=None,
            changed_at=None,
            settle_ms=settle_ms,
            deadline=deadline,
        )

    def sealed(self, window_start_s: int) -> None:
        """The log no longer holds the window's blocks: it stays as it is."""
        self._entries[window_start_s] = replace(self.entry(window_start_s), sealed=True, deadline=None)

    def entry(self, window_start_s: int) -> Entry:
        return self._entries.get(window_start_s, Entry())

    def newest_due_s(self, caught_up_ms: int) -> int:
        """Start of the newest window whose end and grace had passed when the reports were last caught up with."""
        return (caught_up_ms - self.grace_ms) // (WINDOW_S * 1000) * WINDOW_S - WINDOW_S

    def to_close(self, caught_up_ms: int, now_ms: int) -> Iterator[int]:
        """Windows to read now, oldest first: due for the first time, or dirty and settled."""
        self._list_gaps(caught_up_ms)
        due = self.newest_due_s(caught_up_ms)
        for start in sorted(self._entries):
            entry = self._entries[start]
            if entry.sealed:
                continue
            if entry.basis == 0:
                ready = start <= due and (not self._is_filled_in_late(start, entry) or entry.is_settled(now_ms))
            else:
                ready = entry.is_settled(now_ms)
            if ready:
                yield start

    def maybe_early(self, caught_up_ms: int, now_ms: int) -> Iterator[int]:
        """Windows that are over and not due yet: they may be closed early if everything is final and nothing
        missing."""
        due = self.newest_due_s(caught_up_ms)
        for start in sorted(self._entries):
            if self._entries[start].basis == 0 and start > due and (start + WINDOW_S) * 1000 <= now_ms:
                yield start

    def to_judge(self, now_ms: int) -> Iterator[int]:
        """Closed windows whose deadline has passed."""
        for start, entry in sorted(self._entries.items()):
            if entry.deadline is not None and entry.deadline <= now_ms and not entry.sealed:
                yield start

    def _is_filled_in_late(self, window_start_s: int, entry: Entry) -> bool:
        """Whether the first tally of a window came when it was due already (a back-fill): more are on their way then,
        and closing it before they stand still would only be done again."""
        due_ms = (window_start_s + WINDOW_S) * 1000 + self.grace_ms
        return entry.dirty_since is not None and entry.dirty_since > due_ms

    def _list_gaps(self, caught_up_ms: int) -> None:
        """Every minute between the first tally and the newest due window has its entry."""
        if self._first is None:
            return
        due = self.newest_due_s(caught_up_ms)
        for start in range(max(self._first, self._listed_to), due + 1, WINDOW_S):
            self._entries.setdefault(start, Entry())
        self._listed_to = max(self._listed_to, due + WINDOW_S)
