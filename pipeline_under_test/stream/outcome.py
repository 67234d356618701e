"""Outcome of a scenario, beside its expectation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline_under_test.harness.loss_watch import FalseLoss
from pipeline_under_test.stream.scenario import Scenario

Verdict = Mapping[str, Any]
"""A verdict's document."""


@dataclass(frozen=True)
class ScenarioOutcome:
    """One scenario's result; `problems` are empty where all was as expected. Lags in ms, times in seconds."""

    scenario: str
    verdict: Verdict | None = None
    false_losses: tuple[FalseLoss, ...] = ()
    restarts: int = 0
    took_s: float = 0.0
    problems: tuple[str, ...] = field(default=())

    @property
    def max_lag_ms(self) -> float:
        return max((window["e2e_lag_ms"]["max"] or 0.0 for window in windows_of(self.verdict or {})), default=0.0)

    def document(self) -> dict[str, Any]:
        verdict = self.verdict or {}
        return {
            "scenario": self.scenario,
            "ok": not self.problems,
            "problems": list(self.problems),
            "injected": verdict.get("injected"),
            "measured": verdict.get("measured"),
            "false_losses": len(self.false_losses),
            "restarts": self.restarts,
            "max_lag_ms": self.max_lag_ms,
            "verdicts": [window["verdict"] for window in windows_of(verdict)],
            "seconds": round(self.took_s),
        }


def windows_of(verdict: Verdict) -> list[Mapping[str, Any]]:
    """Return lagloss's windows in a verdict that hold messages, oldest first."""
    windows = [row["measured"] for row in verdict.get("windows", ())]
    return [window for window in windows if window is not None and window["messages"]]


def problems_of(
    scenario: Scenario, verdict: Verdict, false_losses: Sequence[FalseLoss], restarts: int
) -> tuple[str, ...]:
    """Return all that is not as expected, a sentence each."""
    problems = _always(verdict, false_losses)
    injected, measured, expect = verdict["injected"], verdict["measured"], scenario.expect
    for place in sorted({*expect.lost, *injected["lost_at"]}):
        lost, loss = injected["lost_at"].get(place, 0), expect.lost.get(place)
        if loss is None:
            problems.append(f"expected nothing lost at {place}, found {lost}")
        elif loss.count is not None:
            problems += loss.count.problems(f"lost at {place}", lost)
        elif loss.share is not None:
            problems += loss.share.problems(f"share lost at {place}", lost / max(1, injected["messages"]))
    problems += expect.duplicates.problems("duplicates", measured["duplicates"])
    problems += expect.dead.problems("dead", injected["dead"])
    problems += expect.filtered.problems("filtered", injected["filtered"])
    problems += expect.restarts.problems("restarts", restarts)
    windows = windows_of(verdict)
    missing = set(expect.verdicts) - {window["verdict"] for window in windows}
    if missing:
        problems.append(f"expected a window with the verdict {', '.join(sorted(missing))}, found none")
    return (*problems, *_lag_problems(scenario, [window["e2e_lag_ms"]["p95"] or 0.0 for window in windows]))


def _always(verdict: Verdict, false_losses: Sequence[FalseLoss]) -> list[str]:
    """Check what holds for every scenario."""
    problems = []
    if not verdict["agree"]:
        first = verdict["differences"][0]
        problems.append(
            f"expected ledger = windows, found {len(verdict['differences'])} differences, the first: {first['what']}, "
            f"injected {first['injected']}, measured {first['measured']}, window {first['window_start_s']}"
        )
    if verdict["waiting"]:
        problems.append(f"expected all windows to be settled, found {', '.join(verdict['waiting'])} still waiting")
    if verdict["injected"]["pending"]:
        problems.append(f"expected every event to be settled, found {verdict['injected']['pending']} pending")
    if false_losses:
        wrong = false_losses[0]
        problems.append(
            f"expected only injected losses at any time, found {len(false_losses)} moments with others, the first: "
            f"window {wrong.window_start_s} reported {wrong.reported} lost of {wrong.injected} injected "
            f"{', '.join(wrong.ids)}"
        )
    return problems


def _lag_problems(scenario: Scenario, p95s_ms: Sequence[float]) -> list[str]:
    lag = scenario.expect.lag
    if lag is None:
        return []
    problems, highest, last = [], max(p95s_ms, default=0.0), p95s_ms[-1] if p95s_ms else 0.0
    if highest <= lag.above:
        problems.append(f"expected a p95 lag above {lag.above / 1000:g} s, found at most {highest / 1000:.1f} s")
    if last >= lag.then_below:
        problems.append(f"expected the last p95 lag below {lag.then_below / 1000:g} s, found {last / 1000:.1f} s")
    return problems
