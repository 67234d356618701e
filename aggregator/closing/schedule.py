"""Schedule of a pipeline's windows that are due or dirty. Pure bookkeeping, rebuilt from PostgreSQL at every start.

A window is closed for the first time when it is due; again when its tallies changed after the closing and have stood
still since, or when time alone may have changed its result (its deadline). See docs/closing.md. Windows with nothing
left to do are forgotten: of a pipeline that runs for years only the newest minutes are held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lagloss.wire.format import WINDOW_S
from lagloss_server.judging.freshness import due_ms, newest_due_s

SETTLE_MS = 5_000
"""How long a closed window's tallies must stand still before it is closed again; doubles while changes go on."""
MAX_SETTLE_MS = 900_000
PATIENCE = 6
"""A window that never stands still is closed anyway after this many times its settle time."""
CALM_MS = 60_000
"""After standing still this long, the settle time is back to its start."""


@dataclass(frozen=True, slots=True)
class WindowEntry:
    """State of one window. Times in epoch ms; a basis is a position in the reports.

    `basis` is 0 before the first closing. `changed_at`, `dirty_since`: the last and first change of a tally that the
    last closing did not know of; `calm_since`: the last one that made it be closed again. `settle_ms`: how long it must
    stand still if it is dirty. `early_at`: not to be closed early before this; `read_early`: the change after which
    that was tried last by reading.
    """

    basis: int = 0
    changed_at: int | None = None
    dirty_since: int | None = None
    calm_since: int | None = None
    settle_ms: int = SETTLE_MS
    deadline: int | None = None
    early_at: int = 0
    read_early: int | None = None

    def is_settled(self, now_ms: int) -> bool:
        """Return whether a dirty window has waited long enough to be closed again."""
        if self.dirty_since is None or self.changed_at is None:
            return False
        return now_ms - self.changed_at >= self.settle_ms or now_ms - self.dirty_since >= PATIENCE * self.settle_ms

    def is_done(self, now_ms: int) -> bool:
        """Return whether the window needs no action and no entry until a tally changes."""
        calm = self.calm_since is None or now_ms - self.calm_since >= CALM_MS
        return self.basis > 0 and self.dirty_since is None and self.deadline is None and calm

    def changed(self, changed_at: int) -> WindowEntry:
        """Note a change of a tally; the first one since the closing restarts the settle time or, if the tallies had not
        stood still before it, doubles it."""
        if self.dirty_since is not None:
            return replace(self, changed_at=max(changed_at, self.changed_at or 0))
        calm = self.calm_since is None or changed_at - self.calm_since >= CALM_MS
        settle_ms = SETTLE_MS if calm else min(2 * self.settle_ms, MAX_SETTLE_MS)
        return replace(self, changed_at=changed_at, dirty_since=changed_at, settle_ms=settle_ms)


class WindowSchedule:
    """The windows of one pipeline that there is something to do about, from its first tally to the newest due one."""

    def __init__(self, grace_ms: int) -> None:
        self.grace_ms = grace_ms
        self._entries: dict[int, WindowEntry] = {}
        self._first: int | None = None
        self._listed_to = 0

    @property
    def size(self) -> int:
        """Number of windows held."""
        return len(self._entries)

    def resume(self, first_s: int, listed_to_s: int) -> None:
        """Treat every window from `first_s` to before `listed_to_s` as closed, except those that are put on the
        schedule."""
        self._first, self._listed_to = first_s, listed_to_s

    def put(self, window_start_s: int, entry: WindowEntry) -> None:
        """Put a window on the schedule, as the database has it."""
        self._reach(window_start_s)
        self._entries[window_start_s] = entry

    def tally_changed(self, window_start_s: int, basis: int, changed_at: int, known: WindowEntry | None = None) -> None:
        """Note that a tally of this window changed; `basis` is the position of the report that brought it. `known`: the
        database's state of a window that is not on the schedule; None if it was never closed."""
        self._reach(window_start_s)
        entry = self._entries.get(window_start_s) or known or WindowEntry()
        if basis > entry.basis:
            self._entries[window_start_s] = entry.changed(changed_at)

    def closed(self, window_start_s: int, basis: int, deadline: int | None) -> None:
        """Note that the window was closed (or judged again) with the reports up to `basis`."""
        entry = self.entry(window_start_s)
        self._reach(window_start_s)
        self._entries[window_start_s] = replace(
            entry,
            basis=basis,
            calm_since=entry.changed_at if entry.basis and entry.dirty_since is not None else entry.calm_since,
            dirty_since=None,
            changed_at=None,
            deadline=deadline,
        )

    def restate(self, window_start_s: int, basis: int, at_ms: int) -> None:
        """Note that a window that was closed with this basis is to be judged again: an earlier one says more of it."""
        entry = self._entries.get(window_start_s) or WindowEntry(basis=basis)
        self._entries[window_start_s] = replace(entry, deadline=at_ms)

    def sealed(self, window_start_s: int) -> None:
        """Note that the log no longer holds the window's blocks: its result stays as it is."""
        self._entries[window_start_s] = WindowEntry(basis=max(1, self.entry(window_start_s).basis))

    def tried_early(self, window_start_s: int, now_ms: int, *, read: bool) -> None:
        """Note that the window could not be closed early; the older it is, the later the next try."""
        entry = self.entry(window_start_s)
        age_ms = now_ms - (window_start_s + WINDOW_S) * 1000
        read_early = entry.changed_at if read else entry.read_early
        self._entries[window_start_s] = replace(entry, early_at=now_ms + max(500, age_ms // 4), read_early=read_early)

    def entry(self, window_start_s: int) -> WindowEntry:
        return self._entries.get(window_start_s, WindowEntry())

    def ready_ms(self, window_start_s: int) -> int:
        """Return when (epoch ms) a window that is closed now became due, or last changed."""
        return max(due_ms(window_start_s, self.grace_ms), self.entry(window_start_s).changed_at or 0)

    def newest_due_s(self, caught_up_ms: int) -> int:
        """Return the start of the newest window that was due when the reports were last caught up with."""
        return newest_due_s(caught_up_ms, self.grace_ms)

    def to_close(self, caught_up_ms: int, now_ms: int) -> Iterator[int]:
        """Return the windows to read now, oldest first: due for the first time, or dirty and settled."""
        self._list_gaps(caught_up_ms)
        due = self.newest_due_s(caught_up_ms)
        for start in sorted(self._entries):
            entry = self._entries[start]
            if entry.is_done(now_ms):
                if start < self._listed_to:  # one that was closed early is not listed yet: it would be closed again
                    del self._entries[start]
                continue
            if entry.basis == 0:
                ready = start <= due and (not self._is_filled_in_late(start, entry) or entry.is_settled(now_ms))
            else:
                ready = entry.is_settled(now_ms)
            if ready:
                yield start

    def maybe_early(self, caught_up_ms: int, now_ms: int) -> Iterator[int]:
        """Return windows that are over but not due yet: they can be closed early if everything is final and nothing
        missing."""
        due = self.newest_due_s(caught_up_ms)
        for start, entry in sorted(self._entries.items()):
            over = start > due and (start + WINDOW_S) * 1000 <= caught_up_ms
            if entry.basis == 0 and over and entry.early_at <= now_ms:
                yield start

    def to_judge(self, now_ms: int) -> Iterator[int]:
        """Return closed windows whose deadline has passed, but for dirty ones: they are closed again anyway."""
        for start, entry in sorted(self._entries.items()):
            if entry.deadline is not None and entry.deadline <= now_ms and entry.dirty_since is None:
                yield start

    def _reach(self, window_start_s: int) -> None:
        """List windows from this one on, if they were not listed."""
        if self._first is None or window_start_s < self._first:
            first = self._first
            self._first = window_start_s
            self._listed_to = window_start_s if first is None else self._listed_to
            for start in range(window_start_s, min(first or window_start_s, self._listed_to), WINDOW_S):
                self._entries.setdefault(start, WindowEntry())

    def _is_filled_in_late(self, window_start_s: int, entry: WindowEntry) -> bool:
        """Return whether the first tally of a window came when it was due already (a back-fill): more are on their way
        then, and a closing before they stand still would have to be repeated."""
        return entry.dirty_since is not None and entry.dirty_since > due_ms(window_start_s, self.grace_ms)

    def _list_gaps(self, caught_up_ms: int) -> None:
        """Add an entry for every minute between the first tally and the newest due window, once."""
        if self._first is None:
            return
        stop = self.newest_due_s(caught_up_ms) + WINDOW_S
        for start in range(self._listed_to, stop, WINDOW_S):
            self._entries.setdefault(start, WindowEntry())
        self._listed_to = max(self._listed_to, stop)
