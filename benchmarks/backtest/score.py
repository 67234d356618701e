"""Score: the incidents that the default rules open on simulated traffic, each held against the ledger of its faults."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from alerting.backtest.replay import Past, Replay, Replayed, ReplayedClosing
from alerting.rules import reader_of, rules_of
from alerting.rules.habits import HOUR_S, QUARTER_S
from alerting.rules.measures import Measure
from alerting.views.habit_cache import LEAST_MESSAGES, habits_of, shares_of
from benchmarks.backtest.days import LedgerFault
from benchmarks.backtest.simulated import AGAIN_S, CLOSES_AFTER_S, SimulatedPipeline
from lagloss.wire.format import WINDOW_S
from lagloss_server.model.definition import Definition
from lagloss_server.model.window import Window

SETTLES_S: Final = 5_400
"""A window is judged again for so long at most, and then as it stands."""
OFTEN_S: Final = 600
SELDOM_S: Final = 300
"""It is judged each minute for `OFTEN_S`, then every `SELDOM_S`: a day of faults would take four times as long."""
AFTER_S: Final[Mapping[str, float]] = {"budget": 72 * 3_600.0}
"""An incident belongs to a fault that ended so long before it began: a burn rate looks back over days, others over
minutes."""
AFTER_OTHERS_S: Final = 1_200.0


@dataclass(frozen=True)
class Backtested:
    """What the rules made of the ledger's faults."""

    faults: Sequence[LedgerFault]
    incidents: Sequence[Replayed]

    def right(self, incident: Replayed) -> list[LedgerFault]:
        """Return the faults that an incident is right about."""
        return [fault for fault in self.faults if _is_right(incident, fault)]

    def wrong(self) -> list[Replayed]:
        return [incident for incident in self.incidents if not self.right(incident)]

    def finders(self, fault: LedgerFault) -> list[Replayed]:
        """Return the incidents of the rules that have to find a fault."""
        return [
            incident for incident in self.incidents if incident.rule.kind in fault.found_by and _meets(incident, fault)
        ]

    def missed(self) -> list[LedgerFault]:
        """Return the faults that no rule found which had to, or that had to page and did not."""
        return [fault for fault in self.faults if fault.found_by and not self._is_found(fault)]

    def _is_found(self, fault: LedgerFault) -> bool:
        if not self.finders(fault):
            return False
        return not fault.has_to_page or any(
            is_page(incident) and _is_right(incident, fault) for incident in self.incidents
        )


def is_page(incident: Replayed) -> bool:
    """Return whether an incident paged: it was critical, and no other page withheld it."""
    return incident.paged_at_s is not None and not incident.inhibited_by


def _is_right(incident: Replayed, fault: LedgerFault) -> bool:
    return incident.rule.kind in fault.effects and _meets(incident, fault)


def _meets(incident: Replayed, fault: LedgerFault) -> bool:
    after_s = AFTER_S.get(incident.rule.kind, AFTER_OTHERS_S)
    return incident.last_s + WINDOW_S > fault.from_s and incident.first_s < fault.to_s + after_s


@dataclass
class _Minutes:
    """What the rules' past is made of, added up as windows close for the first time."""

    definition: Definition
    seen: dict[str, list[int]] = field(default_factory=dict)
    arrived: list[int] = field(default_factory=list)
    messages: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    shares: dict[str, dict[int, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def __post_init__(self) -> None:
        rules = rules_of(self.definition)
        self.seen = {name: [] for rule in rules for name in rule.watches}
        self._shares: dict[str, tuple[Measure, Measure]] = shares_of(rules)

    def add(self, start_s: int, window: Window) -> None:
        if window.messages:
            self.arrived.append(start_s)
        for checkpoint in window.checkpoints:
            if checkpoint.name in self.seen and checkpoint.beacons:
                self.seen[checkpoint.name].append(start_s)
        self.messages[start_s // QUARTER_S * QUARTER_S].append(window.messages)
        for name, (what, total) in self._shares.items():
            hour = self.shares[name][start_s // HOUR_S * HOUR_S] or [0.0, 0.0]
            self.shares[name][start_s // HOUR_S * HOUR_S] = [
                hour[0] + (what.of(window) or 0.0), hour[1] + (total.of(window) or 0.0)
            ]  # fmt: skip

    def past(self) -> Past:
        quarters = {start: sum(values) / len(values) for start, values in self.messages.items()}
        hours = {
            name: {start: what / total for start, (what, total) in by_hour.items() if total >= LEAST_MESSAGES}
            for name, by_hour in self.shares.items()
        }
        return Past(self.seen, self.arrived, habits_of(quarters, hours))


def backtest(
    definition: Definition,
    faults: Sequence[LedgerFault],
    rate: Callable[[float], float],
    from_s: int,
    to_s: int,
    *,
    step_s: float = 20.0,
    seed: int = 1,
    tiers_s: Sequence[float] = (10.0, 60.0, 300.0),
    judged_from_s: int | None = None,
) -> Backtested:
    """Return the incidents on traffic from one minute to another, each window judged when it is due and again while it
    is unsettled. `judged_from_s`: rules look from then on, and what was before is past."""
    simulated = [fault for each in faults for fault in each.faults]
    rng = np.random.default_rng(seed)
    pipeline = SimulatedPipeline(definition, rate, simulated, rng, step_s, tiers_s)
    minutes, reader, closings = _Minutes(definition), reader_of(definition), []
    last_s = to_s + max(0, int(max((fault.to_s for fault in simulated), default=0)) - to_s) + 2 * WINDOW_S
    for start, at_s, document in _judgements(pipeline, from_s, to_s, definition.spec.grace / 1_000, last_s):
        closings.append(ReplayedClosing(at_s, start, reader.row(start, document)))
        if at_s < start + 2 * WINDOW_S + definition.spec.grace / 1_000:
            minutes.add(start, document)
    judged_from_s = from_s if judged_from_s is None else judged_from_s
    replay = Replay(definition, judged_from_s, to_s, minutes.past())
    replay.run(closings, to_s + SETTLES_S)
    return Backtested(faults, replay.incidents)


def _judgements(
    pipeline: SimulatedPipeline, from_s: int, to_s: int, grace_s: float, last_s: int
) -> Iterable[tuple[int, float, Window]]:
    """Yield each result of each window that differs from the one before: its start, the moment, and the document."""
    unsettled: dict[int, Window] = {}
    closes_s = WINDOW_S + grace_s + CLOSES_AFTER_S
    for start_s in range(from_s, last_s + SETTLES_S, WINDOW_S):
        if start_s < to_s:
            pipeline.run(start_s)
        due_s = (start_s - int(grace_s)) // WINDOW_S * WINDOW_S - WINDOW_S
        now_s = due_s + closes_s
        looked_at = [minute for minute in unsettled if minute >= now_s - OFTEN_S or (start_s - minute) % SELDOM_S == 0]
        for start in [*looked_at, *([due_s] if from_s <= due_s < to_s else [])]:
            document = pipeline.judged(start, now_s)
            if document != unsettled.get(start):
                yield start, now_s, document
            if _is_settled(document) or start < now_s - SETTLES_S:
                unsettled.pop(start, None)
            else:
                unsettled[start] = document
        pipeline.forget(min([*unsettled, due_s - AGAIN_S]) if unsettled else due_s)
        if start_s >= to_s and due_s >= to_s and not unsettled:
            return


def _is_settled(window: Window) -> bool:
    return not window.pending and window.verdict != "unknown"
