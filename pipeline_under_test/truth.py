"""What the ledger adds up to: per minute of event time, what lagloss ought to measure if it is right."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pipeline_under_test.ledger import WINDOW_MS, Entry, Fate


@dataclass(slots=True)
class TrueWindow:
    """The ids of one minute of event time, by what became of them; an id may be in several sets."""

    ids: dict[Fate, set[str]] = field(default_factory=lambda: defaultdict(set))
    lost_at: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, entry: Entry) -> None:
        self.ids[entry.fate].add(entry.id)
        if entry.fate == "lost":
            self.lost_at[entry.place].add(entry.id)

    @property
    def messages(self) -> set[str]:
        """What the pipeline has taken in: answered, or seen at a place although nobody got the answer.

        A refused event is among them if col-service had an id and a time to count it by: then it is `filtered` there.
        """
        seen: tuple[Fate, ...] = ("answered", "lost", "filtered", "dead", "delivered")
        return set().union(*(self.ids[fate] for fate in seen))

    def document(self, window_start_s: int) -> dict[str, Any]:
        """Counts as lagloss gives them: each message once, as the first that fits of lost, delivered, dead, filtered.

        What a replay brings through again is lost no more: it is what becomes of it now.

        `unaccounted` names the messages that nothing is known of past their first hop: those the pipeline itself lost,
        or has not finished with. `unanswered` counts those that may or may not have come in.
        """
        lost = self.ids["lost"] - self.ids["replayed"]
        delivered = self.ids["delivered"] - lost
        dead = self.ids["dead"] - lost - delivered
        filtered = self.ids["filtered"] - lost - delivered - dead
        return {
            "window_start_s": window_start_s,
            "messages": len(self.messages),
            "delivered": len(delivered),
            "dead": len(dead),
            "filtered": len(filtered),
            "lost": len(lost),
            "lost_at": {place: sorted(ids & lost) for place, ids in sorted(self.lost_at.items()) if ids & lost},
            "duplicated": len(self.ids["duplicated"]),
            "unanswered": len(self.ids["unanswered"] - self.messages),
            "unaccounted": sorted(self.messages - lost - delivered - dead - filtered),
        }


class Truth:
    """The ledger summed up, window by window, as it grows."""

    def __init__(self) -> None:
        self.windows: dict[int, TrueWindow] = defaultdict(TrueWindow)
        self.entries: Counter[Fate] = Counter()

    def add(self, entries: Iterable[Entry]) -> set[int]:
        """Takes facts in; returns the starts (epoch seconds) of the windows that they belong to."""
        touched = set()
        for entry in entries:
            window_start_s = entry.event_time_ms // WINDOW_MS * (WINDOW_MS // 1000)
            self.windows[window_start_s].add(entry)
            self.entries[entry.fate] += 1
            touched.add(window_start_s)
        return touched

    def document(self, window_start_s: int) -> dict[str, Any]:
        return self.windows[window_start_s].document(window_start_s)

    def documents(self) -> list[dict[str, Any]]:
        """Every window, oldest first."""
        return [self.document(start) for start in sorted(self.windows)]
