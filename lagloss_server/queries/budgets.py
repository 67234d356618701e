"""Error budgets of many pipelines, judged as reports judge them, in a few statements for all of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lagloss_server.judging.freshness import expected_to_s
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.queries.lru_cache import Remembered
from lagloss_server.store.partitions import DAY_S
from lagloss_server.store.period_reading import RangeTotal
from lagloss_server.store.periods import coverage, first_known_of, joined, series_of
from lagloss_server.store.store import Store
from lagloss_server.sums.error_budget import (
    BUDGET_DAYS,
    OBJECTIVES,
    Budget,
    Objective,
    Target,
    judge,
    targets_of,
    targets_within,
)
from lagloss_server.sums.rollup import period_of

_targets: Final[Remembered[list[Target]]] = Remembered(20_000)

Budgets = Mapping[Objective, Budget | None]
"""None where there was no message to judge."""


class Spending:
    """What the windows of a pipeline come to in the days of its error budgets, in parts with one target each;
    `first_s`: where what is known begins."""

    def __init__(self, parts: Sequence[RangeTotal], targets: Sequence[Target], first_s: int | None) -> None:
        self._totals = [(part.total, target) for part, target in zip(parts, targets, strict=True)]
        self._whole, self._first_s = joined(parts), first_s
        self._judged: tuple[int, Budgets] | None = None

    def budgets(self, expected_to_s: float) -> Budgets:
        """Return the remaining budgets, where windows up to then should have a result; judged anew only where other
        minutes are missing than before."""
        missing = coverage(self._whole, self._first_s, expected_to_s).missing
        if self._judged is None or self._judged[0] != missing:
            judged = [judge(objective, self._totals, missing) for objective in OBJECTIVES]
            self._judged = missing, {attainment.objective: attainment.budget for attainment in judged}
        return self._judged[1]


def read_budgets(store: Store, pipelines: Sequence[StoredPipeline], now_s: float) -> dict[str, Budgets]:
    """Return the remaining error budgets of these pipelines, given by their newest versions."""
    spending = read_spending(store, pipelines, now_s)
    return {
        stored.name: spending[stored.name].budgets(expected_to_s(now_s, stored.definition.spec.grace))
        for stored in pipelines
    }


def read_spending(store: Store, pipelines: Sequence[StoredPipeline], now_s: float) -> dict[str, Spending]:
    """Return what these pipelines, given by their newest versions, have spent of their error budgets up to now."""
    to_s = period_of("day", int(now_s)) + DAY_S
    from_s = to_s - BUDGET_DAYS * DAY_S
    names = [stored.name for stored in pipelines]
    targets = {name: targets_within(target, from_s, to_s) for name, target in read_targets(store, pipelines).items()}
    edges = {name: [*(target.from_s for target in targets[name]), to_s] for name in names}
    parts = series_of(store, edges, counts_only=True)
    first_s = first_known_of(store, names)
    return {name: Spending(parts[name], targets[name], first_s.get(name)) for name in names}


def read_targets(store: Store, pipelines: Sequence[StoredPipeline]) -> dict[str, list[Target]]:
    """Return the targets of these pipelines over time. Versions do not change: only new ones are read."""
    url = str(store.engine.url)
    keys = {stored.name: (url, stored.name, stored.version, stored.applied_at_ms) for stored in pipelines}
    targets = {name: known for name, key in keys.items() if (known := _targets.get(key)) is not None}
    new = {stored.name: [stored] for stored in pipelines if stored.name not in targets}
    several = {name for name, (newest,) in new.items() if newest.version > 1}
    if several:
        passed_over = {stored.name: stored.version for stored in pipelines if stored.name not in several}
        for stored in store.versions(passed_over):
            if stored.name in several and stored.version < new[stored.name][-1].version:
                new[stored.name].insert(-1, stored)
    return targets | {name: _targets.put(keys[name], targets_of(versions)) for name, versions in new.items()}
