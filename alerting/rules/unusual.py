"""What is far from a pipeline's own habit: the share of filtered messages, and the number of messages.

Both are judged over some minutes against the same time of the last seven days (`habits`), in a pipeline's first days
against what history there is (`early_baseline`), and by how far chance alone may carry them. A window is a breach if it
is unusual by itself and is one of those that together are. Where no baseline is known, a rule says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.base import PlacedRule, Unit
from alerting.rules.counting import WindowSlice, counts, making_up, of_last
from alerting.rules.early_baseline import (
    BELOW_BY_DAYS,
    EarlyRule,
    SlotCounts,
    away_by_days,
    compared_with,
    completed,
)
from alerting.rules.habits import HOUR_S, SPREADS, UsualValues
from alerting.rules.measures import Measure, covered_by, placed
from alerting.rules.places import checkpoint_places
from alerting.rules.view import PipelineView
from alerting.rules.windows import SEEING, Flags, Floats
from lagloss_server.base import format as fmt
from lagloss_server.model.definition import Definition
from lagloss_server.model.graph import node_of
from lagloss_server.model.place import Place
from lagloss_server.model.window import CheckpointCounts, Window

CHANCE: Final = 4.0
"""Standard deviations of a count that chance alone does not explain: 1 in 30,000."""
LEAST_SHARE_S: Final = HOUR_S // 2
LEAST_VOLUME_S: Final = 2 * HOUR_S
"""The shortest history of a share, and of a number of messages, which a job brings in hour by hour."""
LEAST_SLOT_MESSAGES: Final = 20
"""Messages of which a share of a few minutes tells something."""
LEAST_SLOT_WINDOWS: Final = 3
"""Windows of five with evidence that tell a number of messages."""
SEEN_OF: Final = 2 / 3
"""The share of the windows, at least, that must have evidence for a number of messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredRule(PlacedRule):
    """A share of filtered messages that is `target` or more from its habit, up or down; the value is how far."""

    kind: str = "filtered"
    unit: ClassVar[Unit] = "ratio"

    windows: int
    sample: float
    resolve_after: int

    @property
    def what(self) -> str:
        return f"deviation of the share of filtered messages{_at(self.place)} from its baseline"

    @property
    def reads(self) -> Iterable[Measure]:
        return self._filtered, self._of

    @property
    def _filtered(self) -> Measure:
        return Measure("filtered", self.place)

    @property
    def _of(self) -> Measure:
        return Measure("messages", self.place)

    @property
    def shares(self) -> tuple[Measure, Measure]:
        """The share whose habit it needs: what, of what."""
        return self._filtered, self._of

    def assess(self, view: PipelineView) -> Assessment:
        recent = WindowSlice.of(view, self.windows)
        filtered, total = counts(recent, self._filtered), counts(recent, self._of)
        of_together = of_last(self.windows, total)
        share = of_last(self.windows, filtered) / np.maximum(of_together, 1)
        usual = _usual_share(view, recent, self.shares, self._early)
        away = share - usual.median
        chance = CHANCE * 0.5 / np.sqrt(np.maximum(of_together * self.sample, 1))
        limit = np.fmax(away_by_days(self.target, usual.days), np.fmax(SPREADS * usual.spread, chance))
        far = (np.abs(away) > limit) & (of_together > 0)
        own = np.abs(filtered / np.maximum(total, 1) - usual.median) > self.target
        made_up = making_up(self.windows, own & (total > 0), own & far)
        good = ~far & ~np.isnan(away) & (of_together > 0)

        def text(position: int) -> str:
            of_all, usually = f"of messages{_at(self.place)} filtered", fmt.percent(usual.median[position])
            compared = compared_with(usual, position, "this hour")
            return f"{fmt.percent(share[position])} {of_all}, usually {usually}{compared}"

        return recent.assessment(made_up, np.abs(away), good & ~made_up, self.resolve_after, text=text)

    @property
    def _early(self) -> EarlyRule:
        return EarlyRule(LEAST_SHARE_S, 60 * self.windows, away=self.target)

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        places = checkpoint_places(breached, _filtered, "filtered")
        if self.place is None or self.place.kind == "destination":
            return places
        return [place for place in places if node_of(place.name) == self.place.name]

    def text(self, value: float) -> str:
        points, limit = round(100 * value), round(100 * self.target)
        return f"share of filtered messages{_at(self.place)} {points} points from its baseline, limit {limit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRule(PlacedRule):
    """Messages fewer than `target` of what is usual; the value is their share of that. A place is judged by its share
    of the pipeline's messages, which the time of day changes less than their number."""

    kind: str = "volume"
    unit: ClassVar[Unit] = "ratio"
    higher_is_worse: ClassVar[bool] = False

    windows: int
    sample: float
    resolve_after: int

    @property
    def what(self) -> str:
        return f"messages{_at(self.place)} relative to the baseline"

    @property
    def reads(self) -> Iterable[Measure]:
        return self.shares or (Measure("messages"),)

    @property
    def shares(self) -> tuple[Measure, Measure] | tuple[()]:
        """The share whose habit it needs: what, of what. None of the whole pipeline."""
        return () if self.place is None else (Measure("messages", self.place), Measure("messages"))

    def assess(self, view: PipelineView) -> Assessment:
        return self._of_pipeline(view) if self.place is None else self._at_place(view)

    def _of_pipeline(self, view: PipelineView) -> Assessment:
        """Compare messages per minute, of the windows whose messages are known."""
        recent = WindowSlice.of(view, self.windows)
        has_evidence = recent.windows.column("evidence") == SEEING
        messages = recent.windows.column("messages") * has_evidence
        total = of_last(self.windows, has_evidence)
        together = of_last(self.windows, messages)
        rate = together / np.maximum(total, 1)
        series, starts = view.habits.volume, recent.windows.starts
        usual = completed(series.lowest_around(starts), starts, series, lambda: _volume_slots(view), self._early)
        short = usual.median - rate
        low = _is_low(rate, usual, self.target)
        low &= short > SPREADS * usual.spread
        low &= short * total > CHANCE * np.sqrt(usual.median * total / self.sample)
        low &= total >= SEEN_OF * self.windows
        own = has_evidence & (messages < self.target * usual.median)
        made_up = making_up(self.windows, own, own & low)
        is_usual = (rate >= self.target * usual.median) & (total > 0)

        def text(position: int) -> str:
            usually = fmt.count(round(float(usual.median[position] * total[position])))
            minutes = fmt.duration_s(60 * int(total[position]))
            compared = compared_with(usual, position, "this time")
            return f"{fmt.counted(int(together[position]), 'message')} in {minutes}, usually {usually}{compared}"

        values = rate / np.maximum(usual.median, 1e-9)
        return recent.assessment(made_up, values, is_usual & ~made_up, self.resolve_after, text=text)

    def _at_place(self, view: PipelineView) -> Assessment:
        """Compare the place's share of the pipeline's messages."""
        recent = WindowSlice.of(view, self.windows)
        own_measure, all_measure = Measure("messages", self.place), Measure("messages")
        own_counts, all_ = counts(recent, own_measure), counts(recent, all_measure)
        total = of_last(self.windows, all_)
        share = of_last(self.windows, own_counts) / np.maximum(total, 1)
        usual = _usual_share(view, recent, (own_measure, all_measure), self._early)
        short = usual.median - share
        low = _is_low(share, usual, self.target)
        low &= short > SPREADS * usual.spread
        low &= short * total > CHANCE * np.sqrt(usual.median * total / self.sample)
        own = (all_ > 0) & (own_counts < self.target * usual.median * all_)
        made_up = making_up(self.windows, own, own & low)
        is_usual = (share >= self.target * usual.median) & (total > 0)

        def text(position: int) -> str:
            usually = fmt.percent(usual.median[position])
            compared = compared_with(usual, position, "this hour")
            return f"{fmt.percent(share[position])} of the messages reach {self.place}, usually {usually}{compared}"

        values = share / np.maximum(usual.median, 1e-9)
        return recent.assessment(made_up, values, is_usual & ~made_up, self.resolve_after, text=text)

    @property
    def _early(self) -> EarlyRule:
        return EarlyRule(LEAST_VOLUME_S, 60 * self.windows, below=self.target)

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        return [] if self.place is None else [BreachPlace(self.place.kind, self.place.name, None, self.what)]

    def text(self, value: float) -> str:
        share, limit = fmt.against(fmt.percent, value, self.target)
        return f"messages{_at(self.place)} at {share} of the baseline, limit {limit}"


def unusual_rules(definition: Definition) -> list[FilteredRule | VolumeRule]:
    alerts, sample = definition.spec.alerts, definition.spec.sample
    rules: list[FilteredRule | VolumeRule] = []
    for kind, limit, rule in (("filtered", "away", FilteredRule), ("volume", "below", VolumeRule)):
        for place, settings in placed(definition, kind):
            rules.append(
                rule(
                    place=place,
                    severity=settings.severity,
                    target=getattr(settings, limit),
                    windows=settings.over // 60_000,
                    sample=sample,
                    resolve_after=alerts.resolve_after,
                    inhibited_by=covered_by(definition, kind, place),
                )
            )
    return rules


def share_name(what: Measure, measure: Measure) -> str:
    """Return the name of a share among habits."""
    return f"{what.name} / {measure.name}"


def _usual_share(
    view: PipelineView, recent: WindowSlice, measures: tuple[Measure, Measure], early: EarlyRule
) -> UsualValues:
    series, starts = view.habits.share(share_name(*measures)), recent.windows.starts

    def slots() -> SlotCounts:
        whole = WindowSlice(view.windows, 0, 0)
        part, total = (counts(whole, measure) for measure in measures)
        return SlotCounts(view.windows.starts, part, total, LEAST_SLOT_MESSAGES)

    return completed(series.usual_at(starts), starts, series, slots, early)


def _volume_slots(view: PipelineView) -> SlotCounts:
    has_evidence = view.windows.column("evidence") == SEEING
    messages = view.windows.column("messages") * has_evidence
    return SlotCounts(view.windows.starts, messages, has_evidence.astype(np.int64), LEAST_SLOT_WINDOWS)


def _at(place: Place | None) -> str:
    return "" if place is None else f" at {place}"


def _is_low(value: Floats, usual: UsualValues, below: float) -> Flags:
    """Return where a value is below this share of what is usual, and of the same time a week ago; where that is not
    known, far below."""
    week_before = np.where(np.isnan(usual.week_ago), BELOW_BY_DAYS[usual.days] * usual.median, usual.week_ago)
    low: Flags = (value < below * usual.median) & (value < below * week_before)
    return low


def _filtered(checkpoint_counts: CheckpointCounts) -> int:
    return int(checkpoint_counts.beacons) if checkpoint_counts.name.endswith(".filtered") else 0
