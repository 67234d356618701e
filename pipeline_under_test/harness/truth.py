"""Expected results from the ledger: per minute of event time, what lagloss ought to measure if it is right."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar

from pipeline_under_test.harness.ledger import WINDOW_MS, Fate, LedgerEntry

W = TypeVar("W", bound="TrueWindow")
IN: Final[tuple[Fate, ...]] = ("answered", "lost", "filtered", "dead", "routed", "delivered")
"""The fates of events that the pipeline has taken in: answered, or seen at a place although the answer was lost."""
ENDS: Final[tuple[Fate, ...]] = ("lost", "filtered", "dead")
OUTCOMES: Final = ("lost", "pending", "delivered", "dead", "filtered")
"""Fate of a message, in lagloss's terms: it counts once, as the first that fits."""


def window_start_s(event_time_ms: int) -> int:
    """Return the start of the window of an event."""
    return event_time_ms // WINDOW_MS * (WINDOW_MS // 1000)


@dataclass(slots=True)
class TrueWindow:
    """The ids of one minute of event time, by what became of them and by where; an id may be in several sets."""

    ids: dict[Fate, set[str]] = field(default_factory=lambda: defaultdict(set))
    at: dict[tuple[Fate, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    times: dict[tuple[Fate, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """How often, of the same."""
    written: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """By checkpoint of deliveries, how often each came out there."""

    reruns: ClassVar[frozenset[str]] = frozenset()
    """Checkpoints that rightly report a message once for each time that its work is done again."""

    def add(self, entry: LedgerEntry) -> None:
        self.ids[entry.fate].add(entry.id)
        if entry.place:
            self.at[entry.fate, entry.place].add(entry.id)
            self.times[entry.fate, entry.place][entry.id] += 1

    @property
    def messages(self) -> set[str]:
        """Count what the pipeline has taken in.

        A refused event is among them if col-service had an id and a time to count it by: then it is `filtered` there.
        """
        return set().union(*(self.ids[fate] for fate in IN))

    @property
    def unanswered(self) -> set[str]:
        """Those that may or may not have come in."""
        return self.ids["unanswered"] - self.messages

    @property
    def lost(self) -> set[str]:
        """Count what faults have lost and no replay brings back: what is replayed has its newest fate."""
        return self.ids["lost"] - self.ids["replayed"]

    @property
    def lost_at(self) -> dict[str, set[str]]:
        """Count losses by place."""
        lost = self.lost
        lost_by_place = {place: ids & lost for (fate, place), ids in sorted(self.at.items()) if fate == "lost"}
        return {place: ids for place, ids in lost_by_place.items() if ids}

    @property
    def corrupted_at(self) -> dict[str, set[str]]:
        """Count corrupted messages by link."""
        return {place: ids for (fate, place), ids in sorted(self.at.items()) if fate == "corrupted"}

    def outcomes(self) -> dict[str, set[str]]:
        """Return each message once, under its fate.

        `pending` are those that nothing is known of past their first hop, or on the way to one of their destinations:
        those the pipeline itself has lost, or has not finished with.
        """
        ended = {"delivered": self.ids["delivered"], "dead": self.ids["dead"], "filtered": self.ids["filtered"]}
        nowhere = self.messages.difference(self.lost, *ended.values())
        outcomes_: dict[str, set[str]] = {"lost": self.lost, "pending": nowhere | self._under_way(), **ended}
        settled: set[str] = set()
        for outcome in OUTCOMES:
            outcomes_[outcome] = outcomes_[outcome] - settled
            settled |= outcomes_[outcome]
        return outcomes_

    def duplicates(self, checkpoint: str) -> dict[str, int]:
        """Return how many times too often each message came out at a checkpoint of deliveries."""
        counts = self.written.get(checkpoint, Counter())
        return {name: times - 1 for name, times in counts.items() if times > 1}

    def document(self, start_s: int) -> dict[str, Any]:
        """Return counts as lagloss gives them, and the names of lost (by place) and pending messages (`unaccounted`).

        `unanswered` counts those that may or may not have come in; `duplicates` what came out beyond the first time.
        """
        outcomes = self.outcomes()
        return {
            "window_start_s": start_s,
            "messages": len(self.messages),
            **{outcome: len(ids) for outcome, ids in outcomes.items()},
            "lost_at": {place: sorted(ids) for place, ids in self.lost_at.items()},
            "corrupted_at": {place: len(ids) for place, ids in self.corrupted_at.items()},
            "duplicated": len(self.ids["duplicated"]),
            "duplicates": sum(sum(self.duplicates(checkpoint).values()) for checkpoint in self._deliveries()),
            "unanswered": len(self.unanswered),
            "unaccounted": sorted(outcomes["pending"]),
        }

    def _deliveries(self) -> Iterable[str]:
        """Return the checkpoints whose duplicates count."""
        return self.written

    def _under_way(self) -> set[str]:
        """Return those that are on the way to a destination, whatever became of them on another."""
        return set()


class Truth(Generic[W]):
    """The ledger summed up, window by window (by start, epoch seconds), as it grows; `window` makes one."""

    def __init__(self, window: Callable[[], W]) -> None:
        self.windows: dict[int, W] = defaultdict(window)
        self.entries: Counter[Fate] = Counter()

    def add(self, entries: Iterable[LedgerEntry]) -> set[int]:
        """Take facts in; return the starts (epoch seconds) of the windows that they belong to."""
        touched = set()
        for entry in entries:
            start_s = window_start_s(entry.event_time_ms)
            self.windows[start_s].add(entry)
            self.entries[entry.fate] += 1
            touched.add(start_s)
        return touched

    def document(self, start_s: int) -> dict[str, Any]:
        return self.windows[start_s].document(start_s)

    def documents(self) -> list[dict[str, Any]]:
        """Return every window, oldest first."""
        return [self.document(start) for start in sorted(self.windows)]
