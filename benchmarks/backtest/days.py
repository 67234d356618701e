"""Generated days: traffic with its days and weeks, deployments and bursts that harm nothing, and a ledger of faults.

Each fault says what it does (`effects`, kinds of rules that are right while it lasts), by which of them it has to be
found (`found_by`), and whether it has to page.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.backtest.faults import SimulatedFault

DAY_S: Final = 86_400
HOUR_S: Final = 3_600
PER_SECOND: Final = 60.0
"""Events per second at noon of a working day."""
LATE: Final = frozenset({"lag", "on-time", "staleness", "budget"})
LOST: Final = frozenset({"loss", "on-time", "budget"})
APART_S: Final = 7_200
"""Faults begin at least so long after the one before has ended: what a rule opens belongs to one of them."""


@dataclass(frozen=True, slots=True)
class LedgerFault:
    """A fault as the ledger has it. `faults`: what the simulated pipeline does."""

    name: str
    faults: tuple[SimulatedFault, ...]
    effects: frozenset[str]
    found_by: frozenset[str] = frozenset()
    has_to_page: bool = False

    @property
    def from_s(self) -> float:
        return min(fault.from_s for fault in self.faults)

    @property
    def to_s(self) -> float:
        return max(fault.to_s for fault in self.faults)


def day_rate(moment_s: float) -> float:
    """Return events per second: a working day's noon is six times its night, a weekend's half of that, and mornings
    begin at six."""
    hour, weekday = moment_s / HOUR_S % 24, int(moment_s // DAY_S + 3) % 7
    height = 0.5 if weekday >= 5 else 1.0
    awake = 1 / (1 + math.exp(-2.5 * (hour - 6.5)))
    return PER_SECOND * height * (1 / 6 + 5 / 6 * awake * math.sin(math.pi * min(hour + 1, 24) / 25) ** 2)


LINKS: Final = ("col-service->event-norm", "event-norm->event-router", "event-router->conn-ga", "event-router->conn-fb")
CONNECTORS: Final = ("conn-ga", "conn-fb")
MINUTE_S: Final = 60.0


class _Plan:
    """Draws one fault of each kind, at a moment."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def _minutes(self, least: int, most: int) -> float:
        return MINUTE_S * int(self._rng.integers(least, most + 1))

    def _share(self, least: float, most: float) -> float:
        return round(float(self._rng.uniform(least, most)), 3)

    def _one_of(self, names: tuple[str, ...]) -> str:
        return names[int(self._rng.integers(len(names)))]

    def _fault(self, text: str, at_s: float, lasts_s: float) -> tuple[SimulatedFault, ...]:
        return (SimulatedFault.parsed(text, at_s, at_s + lasts_s),)

    def heavy_loss(self, at_s: float) -> LedgerFault:
        text = f"lose:link:{self._one_of(LINKS[:2])}:{self._share(0.1, 0.4)}"
        faults = self._fault(text, at_s, self._minutes(2, 8))
        return LedgerFault("a link loses 10 to 40 % for minutes", faults, LOST, frozenset({"loss"}), True)

    def steady_loss(self, at_s: float) -> LedgerFault:
        text = f"lose:node:event-norm:{self._share(0.02, 0.04)}"
        faults = self._fault(text, at_s, self._minutes(5, 20))
        return LedgerFault("a node loses 2 to 4 % for 5 to 20 min", faults, LOST, frozenset({"loss"}), True)

    def lossy_minute(self, at_s: float) -> LedgerFault:
        text = f"lose:link:{LINKS[1]}:{self._share(0.02, 0.035)}"
        faults = self._fault(text, at_s, MINUTE_S)
        return LedgerFault("one minute loses 2 to 3.5 %", faults, LOST, frozenset({"loss"}))

    def outage(self, at_s: float) -> LedgerFault:
        faults = self._fault(f"stop:{self._one_of(CONNECTORS)}", at_s, self._minutes(10, 14))
        effects = LATE | {"blind", "uncertain-loss"}
        return LedgerFault(
            "a connector is down for 10 to 14 min", faults, effects, frozenset({"staleness", "lag"}), True
        )

    def slowness(self, at_s: float) -> LedgerFault:
        text = f"delay:{self._one_of(CONNECTORS)}:{int(self._rng.integers(14, 25))}s:1"
        faults = self._fault(text, at_s, self._minutes(6, 15))
        return LedgerFault("a connector takes 14 to 25 s", faults, LATE, frozenset({"lag"}), True)

    def stalled_middle(self, at_s: float) -> LedgerFault:
        faults = self._fault("stop:event-norm", at_s, 7 * MINUTE_S)
        effects = LATE | {"blind", "uncertain-loss"}
        return LedgerFault("a node in the middle is down for 7 min", faults, effects, frozenset({"staleness"}))

    def blindness(self, at_s: float) -> LedgerFault:
        faults = self._fault("blind:col-service", at_s, self._minutes(8, 15))
        effects = frozenset({"blind", "uncertain-loss"})
        return LedgerFault("the first node drops beacons for minutes", faults, effects, frozenset({"blind"}), True)

    def stuck_partition(self, at_s: float) -> LedgerFault:
        text = f"stuck:event-norm->event-router:{self._share(0.025, 0.04)}"
        faults = self._fault(text, at_s, self._minutes(45, 80))
        effects = LATE | {"uncertain-loss"}
        return LedgerFault("2.5 to 4 % wait for an hour", faults, effects, frozenset({"uncertain-loss"}))

    def dead_letters(self, at_s: float) -> LedgerFault:
        text = f"dead:{self._one_of(('event-norm', *CONNECTORS))}:{self._share(0.04, 0.5)}"
        faults = self._fault(text, at_s, self._minutes(5, 15))
        effects = frozenset({"dead-letters"})
        return LedgerFault("4 to 50 % become dead letters", faults, effects, effects)

    def filter_bug(self, at_s: float) -> LedgerFault:
        text = f"filter:event-norm:{self._share(0.2, 0.95)}"
        faults = self._fault(text, at_s, self._minutes(20, 60))
        effects = frozenset({"filtered"})
        return LedgerFault("a filter drops 20 to 95 %", faults, effects, effects)

    def missing_traffic(self, at_s: float) -> LedgerFault:
        text = f"burst:{self._share(0.001, 0.35)}"
        faults = self._fault(text, at_s, self._minutes(20, 60))
        effects = frozenset({"volume"})
        return LedgerFault("traffic falls to 35 % or less", faults, effects, effects)

    def duplicates(self, at_s: float) -> LedgerFault:
        text = f"duplicate:event-norm:{self._share(0.02, 0.2)}"
        faults = self._fault(text, at_s, self._minutes(5, 15))
        effects = frozenset({"duplicates"})
        return LedgerFault("2 to 20 % are sent twice", faults, effects, effects)

    def corruption(self, at_s: float) -> LedgerFault:
        text = f"corrupt:{self._one_of(LINKS)}:{self._share(0.005, 0.05)}"
        faults = self._fault(text, at_s, self._minutes(2, 10))
        effects = frozenset({"corruption"})
        return LedgerFault("a link changes payloads", faults, effects, effects)

    def deployment(self, at_s: float) -> LedgerFault:
        return LedgerFault("a deployment of every node", self._fault("restart:all", at_s, 2 * MINUTE_S), frozenset())

    def burst(self, at_s: float) -> LedgerFault:
        text = f"burst:{self._share(1.5, 3)}"
        return LedgerFault("up to three times the traffic", self._fault(text, at_s, self._minutes(3, 10)), frozenset())


KINDS: Final[tuple[Callable[[_Plan, float], LedgerFault], ...]] = (
    _Plan.heavy_loss,
    _Plan.steady_loss,
    _Plan.lossy_minute,
    _Plan.outage,
    _Plan.slowness,
    _Plan.stalled_middle,
    _Plan.blindness,
    _Plan.stuck_partition,
    _Plan.dead_letters,
    _Plan.filter_bug,
    _Plan.missing_traffic,
    _Plan.duplicates,
    _Plan.corruption,
    _Plan.deployment,
    _Plan.burst,
)


def plan(rng: np.random.Generator, from_s: float, to_s: float) -> list[LedgerFault]:
    """Return faults of every kind in turn, in random order, at random times from one moment to another."""
    draw, found, at_s = _Plan(rng), list[LedgerFault](), from_s
    left: list[Callable[[_Plan, float], LedgerFault]] = []
    while True:
        at_s = at_s // 60 * 60 + APART_S + 60 * int(rng.integers(0, 60)) + 15
        if not left:
            left = [KINDS[at] for at in rng.permutation(len(KINDS)).tolist()]
        fault = left.pop()(draw, at_s)
        if fault.to_s + APART_S / 2 > to_s:
            return found
        found.append(fault)
        at_s = fault.to_s
