"""Replaying: the incidents that rules would have opened on windows as they became known, one closing after the other.

The very rules and the very judging of the alerter, on its clock at the time. At each closing they look only at windows
that it can have changed, back to the last breach of an incident that is open: the rest is as it was.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final
from uuid import UUID, uuid4

import numpy as np

from alerting.incidents.lifecycle import REOPEN_S, KnownIncident, Transition, next_change
from alerting.incidents.suppression import covers
from alerting.rules import Rule, reader_of, rules_of
from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.budget import LONGEST_S
from alerting.rules.habits import NO_HABITS, Habits
from alerting.rules.jobs import KINDS_OF_JOBS
from alerting.rules.view import HORIZON_S, PipelineView, WaitingMessages
from alerting.rules.windows import Row, WindowReader, Windows
from lagloss.wire.format import WINDOW_S
from lagloss_server.groups.progress import PartitionNow, newest
from lagloss_server.model.alert_rules import MAX_OF, Severity
from lagloss_server.model.definition import Definition
from lagloss_server.runs.dag_runs import DagRun

UNTRIED: Final = frozenset({"blind/reports"})
"""Rules that cannot be replayed, since report times are not stored."""


def is_by_the_clock(rule: Rule) -> bool:
    """Return whether it is a rule of time, which is evaluated each minute as well."""
    return rule.kind in ("staleness", "time-to-loss", "pending-age", *KINDS_OF_JOBS) or rule.name == "blind/closing"


@dataclass(frozen=True, slots=True)
class ReplayedClosing:
    """A result of a window becoming known, in epoch s. `row` None: the window is history, and only that it closed."""

    at_s: float
    start_s: int
    row: Row | None


@dataclass(frozen=True)
class Past:
    """Replayed past: minutes (epoch s, ascending) with live beacons by watched checkpoint, those with messages at all,
    what was usual, the runs of jobs as they are known now, and by minute the partitions that consumer groups read."""

    seen: Mapping[str, Sequence[int]] = field(default_factory=dict)
    arrived: Sequence[int] = ()
    habits: Habits = NO_HABITS
    runs: Sequence[DagRun] = ()
    partitions: Mapping[int, Sequence[PartitionNow]] = field(default_factory=dict)

    def partitions_at(self, now_s: float) -> list[PartitionNow]:
        """Return the newest readings of the two minutes that ended before a moment."""
        newest_s = int(now_s) // WINDOW_S * WINDOW_S - WINDOW_S
        return newest(
            reading for start_s in (newest_s - WINDOW_S, newest_s) for reading in self.partitions.get(start_s, ())
        )


@dataclass(slots=True)
class Replayed:
    """Replayed incident after its newest change. `inhibited_by`: rules with an open incident, when it opened, that
    would have suppressed it. `paged_at_s`: when it was opened as a page or became one. `text`: what its worst value
    means. Times in epoch s, `first_s` and `last_s` of windows."""

    id: UUID
    rule: Rule
    opened_at_s: float
    inhibited_by: tuple[str, ...]
    change: Transition
    first_s: int
    last_s: int
    resolved_at_s: float | None = None
    places: tuple[BreachPlace, ...] = ()
    paged_at_s: float | None = None
    text: str = ""

    @property
    def known(self) -> KnownIncident:
        breaches, worst = frozenset(self.change.breaches), self.change.worst
        return KnownIncident(self.id, worst, breaches, self.resolved_at_s, self.change.pages)

    @property
    def severity(self) -> Severity:
        return "critical" if self.change.pages else "warning"

    def take(self, change: Transition, now_s: float, assessment: Assessment) -> None:
        self._note(change, now_s, assessment)
        self.change = change
        self.resolved_at_s = now_s if change.kind == "resolved" else None
        self.places = assessment.places or self.places
        if change.breaches:
            self.first_s, self.last_s = min(change.breaches), max(change.breaches)

    def _note(self, change: Transition, now_s: float, assessment: Assessment) -> None:
        if change.pages and self.paged_at_s is None:
            self.paged_at_s = now_s
        windows = [
            start for start, value in change.breaches.items() if value == change.worst and start in assessment.texts
        ]
        if windows:
            self.text = assessment.texts[windows[-1]]


class Replay:
    """Rules of one definition on closings that come in the order of their moments."""

    def __init__(self, definition: Definition, from_s: int, to_s: int, past: Past, without: Iterable[str] = ()) -> None:
        self.incidents: list[Replayed] = []
        self._definition = definition
        self._from_s, self._to_s = from_s, to_s
        self._past = past
        left_out = UNTRIED | set(without)
        self._rules = [rule for rule in rules_of(definition) if rule.name not in left_out]
        self._rows = _Rows(reader_of(definition))
        self._newest_end_s: int | None = None

    def run(self, closings: Iterable[ReplayedClosing], until_s: float) -> None:
        """Replay all windows, and the minutes of the clock between from and to, up to `until_s`."""
        ticks = iter(range(self._from_s, int(min(self._to_s, until_s)) + 1, WINDOW_S))
        tick_s = next(ticks, None)
        in_order = sorted(closings, key=lambda closing: (closing.at_s, closing.start_s))
        for at_s, together in groupby(in_order, key=lambda closing: closing.at_s):
            while tick_s is not None and tick_s < at_s:
                self._tick(tick_s)
                tick_s = next(ticks, None)
            self._close(at_s, list(together))
        for rest_s in [] if tick_s is None else [tick_s, *ticks]:
            self._tick(rest_s)

    def _close(self, at_s: float, closings: Sequence[ReplayedClosing]) -> None:
        """Close windows whose results become known at the same moment. Rules of time are not evaluated past the span,
        since nothing is known there of later messages."""
        for closing in closings:
            end_s = closing.start_s + WINDOW_S
            self._newest_end_s = max(end_s, self._newest_end_s or end_s)
            if closing.row is not None:
                self._rows.put(closing.start_s, closing.row)
        if self._newest_end_s is not None and self._newest_end_s > self._from_s:
            changed_s = self._rows.before(min(closing.start_s for closing in closings), MAX_OF - 1)
            rules = [rule for rule in self._rules if at_s <= self._to_s or not is_by_the_clock(rule)]
            self._judge(at_s, changed_s, rules)

    def _tick(self, now_s: float) -> None:
        """Evaluate the rules of time at a minute of the clock."""
        self._judge(now_s, int(now_s), [rule for rule in self._rules if is_by_the_clock(rule)])

    def _judge(self, now_s: float, changed_s: int, rules: Sequence[Rule]) -> None:
        oldest_s = max(self._from_s, int(now_s) - HORIZON_S)
        view = self._view(now_s, oldest_s)
        for rule in rules:
            own = [incident for incident in self.incidents if incident.rule is rule]
            seen_from_s = max(oldest_s, min([changed_s, *_in_question(own, now_s)]))
            assessment = rule.assess(replace(view, seen_from_s=seen_from_s))
            while (change := next_change(rule, assessment, [incident.known for incident in own], now_s)) is not None:
                if change.incident is None:
                    own.append(self._open(rule, change, now_s, assessment))
                else:
                    next(start for start in own if start.id == change.incident).take(change, now_s, assessment)

    def _open(self, rule: Rule, change: Transition, now_s: float, assessment: Assessment) -> Replayed:
        speaking = {
            incident.rule.name: incident.severity for incident in self.incidents if incident.resolved_at_s is None
        }
        severity = "critical" if change.pages else "warning"
        inhibited_by = tuple(name for name in rule.inhibited_by if covers(speaking.get(name), severity))
        first_s, last_s = min(change.breaches), max(change.breaches)
        opened = Replayed(uuid4(), rule, now_s, inhibited_by, change, first_s, last_s, None, assessment.places)
        opened.take(change, now_s, assessment)
        self.incidents.append(opened)
        return opened

    def _view(self, now_s: float, oldest_s: int) -> PipelineView:
        windows = self._rows.since(oldest_s - LONGEST_S)
        past, closed_to_s = self._past, self._newest_end_s or 0
        newest = {name: bisect_right(minutes, now_s) for name, minutes in past.seen.items()}
        arrived = past.arrived[bisect_left(past.arrived, closed_to_s) : bisect_right(past.arrived, now_s - WINDOW_S)]
        recent = windows.since(windows.first_at(oldest_s))
        pending = recent.rows[recent.column("pending") > 0]
        return PipelineView(
            definition=self._definition,
            now_s=now_s,
            windows=windows,
            seen_from_s=oldest_s,
            newest_end_s=self._newest_end_s,
            newest_s={name: past.seen[name][count - 1] for name, count in newest.items() if count},
            came_from_s={
                source: {start: float(start) for start in arrived} for source in self._definition.graph.sources
            },
            habits=past.habits,
            partitions=past.partitions_at(now_s),
            runs=[run for past_run in past.runs if (run := past_run.as_of(1_000 * now_s)) is not None],
            waiting=[WaitingMessages((), int(row["pending"]), float(row["start"]) + WINDOW_S) for row in pending],
        )


def _in_question(own: Iterable[Replayed], now_s: float) -> list[int]:
    """Return the starts from which windows matter to a rule's incidents: of an open incident its last window, of one
    that a breach can reopen its first."""
    starts = []
    for incident in own:
        if incident.resolved_at_s is None:
            starts.append(incident.last_s)
        elif now_s - incident.resolved_at_s <= REOPEN_S:
            starts.append(incident.first_s)
    return starts


class _Rows:
    """Rows by window in one array that grows."""

    def __init__(self, reader: WindowReader) -> None:
        self._reader = reader
        self._rows = np.zeros(1_024, reader.windows(()).rows.dtype)
        self._starts: list[int] = []

    def put(self, start_s: int, row: Row) -> None:
        """Put a window's row in place of its older one."""
        index, size = bisect_left(self._starts, start_s), len(self._starts)
        if index == size or self._starts[index] != start_s:
            if size == len(self._rows):
                self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
            self._rows[index + 1 : size + 1] = self._rows[index:size].copy()
            self._starts.insert(index, start_s)
        self._rows[index] = row

    def before(self, start_s: int, windows: int) -> int:
        """Return the start of the window this many before this one, or of the first."""
        index = max(0, bisect_left(self._starts, start_s) - windows)
        return min(start_s, self._starts[index]) if index < len(self._starts) else start_s

    def since(self, start_s: int) -> Windows:
        """Return the rows that start then or later. Valid until the next `put`."""
        return self._reader.of_rows(self._rows[bisect_left(self._starts, start_s) : len(self._starts)])
