"""`python -m benchmarks.backtest`: the table of the default rules on 30 generated days and all scenarios."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from benchmarks.backtest.days import DAY_S, LATE, LOST, LedgerFault, day_rate, plan
from benchmarks.backtest.faults import SimulatedFault
from benchmarks.backtest.score import Backtested, backtest, is_page
from lagloss.wire.format import WINDOW_S
from lagloss_server.incidents.runbooks import KINDS
from lagloss_server.model.definition import Definition, as_document
from pipeline_under_test.stream.scenario import Scenario, load_scenario, shipped_scenarios, stream_definition
from pipeline_under_test.stream.topology import PIPELINE

FIRST_S: Final = 1_794_960_000 // DAY_S * DAY_S
DAYS: Final = 30
QUIET_DAYS: Final = 7
"""Days before the first fault, in which the pipeline gets its habits."""
SEED: Final = 1
LAG_S: Final = 2 * WINDOW_S
"""Lag that is over sooner is no breach by the defaults, which want 2 windows of 3."""
_EFFECTS: Final = {
    "lose-link": LOST,
    "lose-node": LOST,
    "poison": frozenset({"dead-letters"}),
    "dead": frozenset({"dead-letters"}),
    "filter": frozenset({"filtered"}),
    "duplicate": frozenset({"duplicates"}),
    "corrupt": frozenset({"corruption"}),
}
"""Kinds of rules that are right while a scenario's fault lasts; of all others those about lag."""


def generated_days(days: int = DAYS, seed: int = SEED, quiet_days: int = QUIET_DAYS) -> Backtested:
    """Return the backtest of generated days; faults begin after the quiet ones."""
    document = as_document(stream_definition(PIPELINE, warehouse=False))
    document["spec"]["sla"]["staleness"]["checkpoints"] = {"event-norm.out": "3m"}
    to_s = FIRST_S + days * DAY_S
    faults = plan(np.random.default_rng(seed), FIRST_S + quiet_days * DAY_S, to_s)
    return backtest(Definition.model_validate(document), faults, day_rate, FIRST_S, to_s, seed=seed)


def played(scenario: Scenario) -> Backtested:
    """Return the backtest of one scenario's load and faults."""
    load_s = scenario.load.minutes * 60
    faults = list(_ledger(scenario, load_s))
    tiers_s = [tier / 1_000 for tier in scenario.run.tiers]
    to_s = FIRST_S + int(-(-load_s // WINDOW_S)) * WINDOW_S

    def rate(at_s: float) -> float:
        return scenario.load.rate if at_s < FIRST_S + load_s else 0.0

    return backtest(scenario.definition(), faults, rate, FIRST_S, to_s, step_s=1.0, tiers_s=tiers_s)


def scenarios() -> Iterator[tuple[Scenario, Backtested]]:
    """Yield the scenarios of the repository with their backtests; those with a table are not simulated."""
    for path in shipped_scenarios():
        scenario = load_scenario(path)
        if not scenario.run.warehouse:
            yield scenario, played(scenario)


def _ledger(scenario: Scenario, load_s: float) -> Iterator[LedgerFault]:
    """Yield a scenario's faults as the ledger has them. What it expects of the run is what has to be found."""
    expected = scenario.expect
    for injected in scenario.faults:
        from_s = FIRST_S + injected.at / 1_000
        to_s = FIRST_S + load_s if injected.for_ is None else from_s + injected.for_ / 1_000
        effects = _EFFECTS.get(injected.fault.kind, LATE | {"duplicates", "blind", "uncertain-loss"})
        found_by = frozenset[str]()
        if effects == LOST and expected.lost:
            found_by = frozenset({"loss"})
        elif "dead-letters" in effects and expected.dead.min:
            found_by = frozenset({"dead-letters"})
        elif "lag" in effects and expected.lag is not None and to_s - from_s >= LAG_S:
            found_by = frozenset({"lag", "on-time"})
        yield LedgerFault(injected.fault.text, (SimulatedFault.of(injected.fault, from_s, to_s),), effects, found_by)


def table(results: Sequence[Backtested]) -> str:
    """Return the Markdown table: by kind of rule, the incidents and how many were right, the pages and how many were,
    and the faults that it has to find and found."""
    rows = [
        "| kind | incidents | right | pages | right | faults | found |",
        "|---|---|---|---|---|---|---|",
    ]
    missed = {id(fault) for result in results for fault in result.missed()}
    for kind in KINDS:
        incidents = [
            (result, incident) for result in results for incident in result.incidents if incident.rule.kind == kind
        ]
        right = [(scored, incident) for scored, incident in incidents if scored.right(incident)]
        pages = [pair for pair in incidents if is_page(pair[1])]
        faults = [fault for result in results for fault in result.faults if kind in fault.found_by]
        hit = [fault for fault in faults if id(fault) not in missed]
        right_pages = sum(pair in right for pair in pages)
        cells = (len(incidents), len(right), len(pages), right_pages, len(faults), len(hit))
        rows.append(f"| `{kind}` | {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def main() -> None:
    """Print the table, what was missed and what was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backtest", description=__doc__)
    parser.add_argument("--days", type=int, default=DAYS)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    days = [generated_days(arguments.days, arguments.seed), *(scenario for _, scenario in scenarios())]
    print(table(days))
    for result in days:
        for fault in result.missed():
            print(f"missed: {fault.name}, from {fault.from_s:.0f}")
        for incident in result.wrong():
            kind = "page" if is_page(incident) else "ticket"
            print(f"wrong {kind}: {incident.rule.name}, from {incident.first_s}, worst {incident.change.worst:.3g}")


if __name__ == "__main__":
    main()
