"""Generated days: traffic with its days and weeks, deployments and bursts that harm nothing, and a ledger of faults.

Each fault says what it does (`effects`, kinds of rules that are right while it lasts), by which of them it has to be
found (`found_by`), and whether it has to page.
"""

from __future__ import annotations

import math
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


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault. `text`: in the grammar of faults, with a `place` and an `amount` that are drawn: a factor or
    share, or whole seconds."""

    name: str
    text: str
    minutes: tuple[int, int]
    effects: frozenset[str] = frozenset()
    found_by: frozenset[str] = frozenset()
    has_to_page: bool = False
    places: tuple[str, ...] = ()
    amounts: tuple[float, float] | None = None
    seconds: tuple[int, int] | None = None

    def draw(self, rng: np.random.Generator, from_s: float) -> LedgerFault:
        """Draw one that begins then."""
        place = self.places[int(rng.integers(len(self.places)))] if self.places else ""
        amount = round(float(rng.uniform(*self.amounts)), 3) if self.amounts else None
        amount = int(rng.integers(*self.seconds)) if self.seconds else amount
        shortest, longest = self.minutes
        minutes = shortest if shortest == longest else int(rng.integers(shortest, longest + 1))
        text = self.text.format(place=place, amount=amount)
        fault = SimulatedFault.parsed(text, from_s, from_s + minutes * MINUTE_S)
        return LedgerFault(self.name, (fault,), self.effects, self.found_by, self.has_to_page)


_DOWN: Final = LATE | {"blind", "uncertain-loss"}
_DEAD: Final = frozenset({"dead-letters"})
_FILTERED: Final = frozenset({"filtered"})
_VOLUME: Final = frozenset({"volume"})
_DUPLICATES: Final = frozenset({"duplicates"})
_CORRUPTION: Final = frozenset({"corruption"})
_LOSS: Final = frozenset({"loss"})
KINDS: Final = (
    Kind(
        "a link loses 10 to 40 % for minutes", "lose:link:{place}:{amount}", (2, 8), LOST, _LOSS, True,
        places=LINKS[:2], amounts=(0.1, 0.4),
    ),
    Kind(
        "a node loses 2 to 4 % for 5 to 20 min", "lose:node:event-norm:{amount}", (5, 20), LOST, _LOSS, True,
        amounts=(0.02, 0.04),
    ),
    Kind("one minute loses 2 to 3.5 %", f"lose:link:{LINKS[1]}:{{amount}}", (1, 1), LOST, _LOSS, amounts=(0.02, 0.035)),
    Kind(
        "a connector is down for 10 to 14 min", "stop:{place}", (10, 14), _DOWN, frozenset({"staleness", "lag"}), True,
        places=CONNECTORS,
    ),
    Kind(
        "a connector takes 14 to 25 s", "delay:{place}:{amount}s:1", (6, 15), LATE, frozenset({"lag"}), True,
        places=CONNECTORS, seconds=(14, 25),
    ),
    Kind("a node in the middle is down for 7 min", "stop:event-norm", (7, 7), _DOWN, frozenset({"staleness"})),
    Kind(
        "the first node drops beacons for minutes", "blind:col-service", (8, 15),
        frozenset({"blind", "uncertain-loss"}), frozenset({"blind"}), True,
    ),
    Kind(
        "2.5 to 4 % wait for an hour", "stuck:event-norm->event-router:{amount}", (45, 80),
        LATE | {"uncertain-loss"}, frozenset({"uncertain-loss"}), amounts=(0.025, 0.04),
    ),
    Kind(
        "4 to 50 % become dead letters", "dead:{place}:{amount}", (5, 15), _DEAD, _DEAD,
        places=("event-norm", *CONNECTORS), amounts=(0.04, 0.5),
    ),
    Kind(
        "a filter drops 20 to 95 %", "filter:event-norm:{amount}", (20, 60), _FILTERED, _FILTERED,
        amounts=(0.2, 0.95),
    ),
    Kind("traffic falls to 35 % or less", "burst:{amount}", (20, 60), _VOLUME, _VOLUME, amounts=(0.001, 0.35)),
    Kind(
        "2 to 20 % are sent twice", "duplicate:event-norm:{amount}", (5, 15), _DUPLICATES, _DUPLICATES,
        amounts=(0.02, 0.2),
    ),
    Kind(
        "a link changes payloads", "corrupt:{place}:{amount}", (2, 10), _CORRUPTION, _CORRUPTION,
        places=LINKS, amounts=(0.005, 0.05),
    ),
    Kind("a deployment of every node", "restart:all", (2, 2)),
    Kind("up to three times the traffic", "burst:{amount}", (3, 10), amounts=(1.5, 3.0)),
)  # fmt: skip


def plan(rng: np.random.Generator, from_s: float, to_s: float) -> list[LedgerFault]:
    """Return faults of every kind in turn, in random order, at random times from one moment to another."""
    faults, moment_s = list[LedgerFault](), from_s
    remaining: list[Kind] = []
    while True:
        moment_s = moment_s // 60 * 60 + APART_S + 60 * int(rng.integers(0, 60)) + 15
        if not remaining:
            remaining = [KINDS[index] for index in rng.permutation(len(KINDS)).tolist()]
        fault = remaining.pop().draw(rng, moment_s)
        if fault.to_s + APART_S / 2 > to_s:
            return faults
        faults.append(fault)
        moment_s = fault.to_s
