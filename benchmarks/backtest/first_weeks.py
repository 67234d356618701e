"""First weeks: what `filtered` and `volume` make of pipelines without a past, with the early baseline and without it.

Windows are generated minute by minute and replayed by the code of `lagloss alerts backtest`. A week in which nothing is
wrong counts false incidents; copies of it with one fault each count what is found.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

import numpy as np
import numpy.typing as npt

from alerting.backtest.replay import Past, Replay, Replayed, ReplayedClosing
from alerting.rules import reader_of, rules_of, unusual
from alerting.rules.habits import HOUR_S, QUARTER_S
from alerting.views.habit_cache import LEAST_MESSAGES, LEAST_OF, habits_of
from lagloss.wire.format import WINDOW_S
from lagloss_server.model.definition import parse_definition

DEFINITION: Final = parse_definition(
    "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: young}\n"
    "spec: {nodes: [{name: src, to: [snk]}, {name: snk}]}"
)
MONDAY_S: Final = 1_794_787_200 // 604_800 * 604_800 + 4 * 86_400
MINUTES: Final = 7 * 1_440
TOGETHER_S: Final = 600
"""Windows are closed so many seconds' worth at a time: incidents follow from windows, and not from when they closed."""
SEEDS: Final = 2
FAULT_MINUTES: Final = 90
AFTER_MINUTES: Final = 60
"""Windows after a fault that are replayed: its end may open nothing."""
FIRST_MINUTES: Final = (25, 45, 180, 720, 1_800, 3_240, 6_120)
"""Minutes of a pipeline's life at which faults begin: in its first hour, day, days, and on its fifth."""
Minutes = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Week:
    """Messages, and those filtered, of each minute from `from_s` on."""

    from_s: int
    messages: npt.NDArray[np.int64]
    filtered: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Traffic:
    """A kind of pipeline. `rate` and `share`: messages per minute, and the share of them that is filtered, by moments
    (epoch s) and minutes since the first."""

    name: str
    rate: Callable[[Minutes, Minutes, np.random.Generator], Minutes]
    share: Callable[[Minutes], Minutes] = lambda at: np.full(len(at), 0.02)

    def week(self, seed: int, minutes: int = MINUTES) -> Week:
        """Draw a week that begins at a random minute of a working day."""
        rng = np.random.default_rng(seed)
        from_s = MONDAY_S + 60 * int(rng.integers(0, 5 * 1_440))
        ages = np.arange(minutes, dtype=np.float64)
        moments = from_s + 60 * ages
        messages = rng.poisson(np.maximum(self.rate(moments, ages, rng), 0.0))
        return Week(from_s, messages, rng.binomial(messages, self.share(moments)))


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault of `FAULT_MINUTES`; `apply` changes messages and filtered messages of its minutes."""

    name: str
    kind: str
    apply: Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], tuple[Any, Any]]


def _hours(moments: Minutes) -> Minutes:
    return moments / HOUR_S % 24


def _day(moments: Minutes) -> Minutes:
    """Return the height of a day: at noon ten times that of the night."""
    hours = _hours(moments)
    awake = 1 / (1 + np.exp(-2.5 * (hours - 7))) - 1 / (1 + np.exp(-2.0 * (hours - 21)))
    return 0.1 + 0.9 * awake


def _is_weekend(moments: Minutes) -> npt.NDArray[np.bool_]:
    return (moments - MONDAY_S) // 86_400 % 7 >= 5


def _bursty(moments: Minutes, ages: Minutes, rng: np.random.Generator) -> Minutes:
    steps = rng.normal(0, math.sqrt(1 - 0.9**2), len(ages))
    level = np.zeros(len(ages))
    for position in range(1, len(ages)):
        level[position] = 0.9 * level[position - 1] + steps[position]
    return 300 * np.exp(level)


def _batches(moments: Minutes, ages: Minutes, rng: np.random.Generator) -> Minutes:
    """Return a job's messages: for eight minutes of each hour, of which it begins a minute or two late."""
    late = np.random.default_rng(len(ages)).integers(0, 3, len(ages) + 60)
    minutes = moments // 60 % 60 - late[(moments // HOUR_S % len(late)).astype(np.int64)] - 5
    return np.where((minutes >= 0) & (minutes < 8), 3_000.0, 0.0)


TRAFFIC: Final = (
    Traffic("steady", lambda moments, ages, rng: np.full(len(ages), 600.0)),
    Traffic(
        "diurnal",
        lambda moments, ages, rng: 600 * _day(moments) * np.where(_is_weekend(moments), 0.5, 1.0),
        lambda moments: 0.02 + 0.06 * (1 - _day(moments)),
    ),
    Traffic("bursty", _bursty),
    Traffic("hourly batch", _batches),
    Traffic("ramp-up", lambda moments, ages, rng: 5 + 600 * np.minimum(ages / 4_320, 1) ** 2),
    Traffic("weekend pause", lambda moments, ages, rng: 600 * _day(moments) * ~_is_weekend(moments)),
)
FAULTS: Final = (
    InjectedFault("90 % filtered", "filtered", lambda messages, filtered: (messages, messages * 9 // 10)),
    InjectedFault("40 % filtered", "filtered", lambda messages, filtered: (messages, messages * 4 // 10)),
    InjectedFault("no messages", "volume", lambda messages, filtered: (messages * 0, filtered * 0)),
    InjectedFault("a tenth of the messages", "volume", lambda messages, filtered: (messages // 10, filtered // 10)),
)


def with_fault(week: Week, fault: InjectedFault, at_minute: int) -> tuple[Week, int] | None:
    """Return the week with a fault that begins then, or in the first of the next hours that have traffic, and when that
    is; None if none has."""
    usual = week.messages.mean()
    while at_minute + FAULT_MINUTES + AFTER_MINUTES < len(week.messages):
        during, before = slice(at_minute, at_minute + FAULT_MINUTES), slice(max(0, at_minute - 60), at_minute)
        has_traffic = min(week.messages[during].mean(), week.messages[before].mean()) > 0.2 * usual
        if has_traffic or (at_minute < 60 and week.messages[during].any()):
            messages, filtered = week.messages.copy(), week.filtered.copy()
            messages[during], filtered[during] = fault.apply(messages[during], filtered[during])
            return Week(week.from_s, messages, filtered), at_minute
        at_minute += 60
    return None


def replayed(week: Week, from_minute: int = 0, minutes: int = MINUTES) -> list[Replayed]:
    """Return the incidents of both rules in some minutes of a week, of which the ones before are known."""
    reader, to_minute = reader_of(DEFINITION), min(from_minute + minutes, len(week.messages))
    rows = np.zeros(to_minute, reader.windows(()).rows.dtype)
    rows["start"] = week.from_s + WINDOW_S * np.arange(to_minute)
    rows["messages"], rows["filtered"] = week.messages[:to_minute], week.filtered[:to_minute]
    starts = rows["start"].tolist()
    closings = [
        ReplayedClosing((start // TOGETHER_S + 1) * TOGETHER_S + WINDOW_S, start, tuple(row))
        for start, row in zip(starts, rows.tolist(), strict=True)
    ]
    from_s = starts[0] + WINDOW_S * from_minute
    without = [rule.name for rule in rules_of(DEFINITION) if rule.name not in ("filtered", "volume")]
    replay = Replay(DEFINITION, from_s, starts[-1] + 2 * TOGETHER_S, past_of(week, to_minute), without)
    replay.run(closings, math.inf)
    return replay.incidents


def past_of(week: Week, to_minute: int) -> Past:
    """Return the habits of the minutes before, as the alerter reads them."""
    starts = week.from_s + WINDOW_S * np.arange(to_minute)
    quarters, hours = {}, {}
    for step_s in (QUARTER_S, HOUR_S):
        steps, first, counts = np.unique(starts // step_s * step_s, return_index=True, return_counts=True)
        messages = np.add.reduceat(week.messages[:to_minute], first)
        filtered = np.add.reduceat(week.filtered[:to_minute], first)
        for step, count, total, part in zip(steps.tolist(), counts, messages, filtered, strict=True):
            if count < LEAST_OF * step_s / WINDOW_S:
                continue
            if step_s == QUARTER_S:
                quarters[step] = float(total / count)
            elif total >= LEAST_MESSAGES:
                hours[step] = float(part / total)
    return Past(habits=habits_of(quarters, {"filtered / messages": hours}))


@dataclass
class Score:
    """Incidents where nothing was wrong, and faults found of those injected."""

    false: int = 0
    found: int = 0
    faults: int = 0


def scored(traffic: Traffic, seeds: int = SEEDS) -> Iterator[tuple[str, str, int | None, Score]]:
    """Yield pipeline, fault (empty: none), the minute it begins at, and the score."""
    for seed in range(seeds):
        week = traffic.week(seed)
        yield traffic.name, "", None, Score(false=len(replayed(week)))
        for fault in FAULTS:
            for at_minute in FIRST_MINUTES:
                faulty = with_fault(week, fault, at_minute)
                if faulty is None:
                    continue
                incidents = replayed(faulty[0], faulty[1], FAULT_MINUTES + AFTER_MINUTES)
                end_s = week.from_s + 60 * (faulty[1] + FAULT_MINUTES)
                right = [each for each in incidents if each.rule.kind == fault.kind and each.first_s < end_s]
                score = Score(len(incidents) - len(right), bool(right), 1)
                yield traffic.name, fault.name, at_minute, score


def without_early_baseline() -> Any:
    """Return a context in which rules need three days of history, as they did before."""
    return mock.patch.multiple(unusual, completed=lambda usual, *_: usual, BELOW_BY_DAYS=np.full(8, 0.4))


def total(scores: Iterator[tuple[str, str, int | None, Score]]) -> dict[tuple[str, str], Score]:
    """Return the scores by pipeline and fault, and by the minute at which faults began."""
    totals: dict[tuple[str, str], Score] = {}
    for pipeline, fault, at_minute, score in scores:
        keys = [(pipeline, fault)]
        if at_minute is not None:
            keys.append(("", f"{fault} after {at_minute} min"))
        for key in keys:
            into = totals.setdefault(key, Score())
            into.false, into.found = into.false + score.false, into.found + score.found
            into.faults += score.faults
    return totals


def table(seeds: int = SEEDS) -> str:
    """Return the Markdown tables: false incidents and faults found, before and after, by pipeline and by age."""
    before: dict[tuple[str, str], Score] = {}
    after: dict[tuple[str, str], Score] = {}
    for totals, context in ((before, without_early_baseline()), (after, mock.MagicMock())):
        with context:
            for key, score in total(each for traffic in TRAFFIC for each in scored(traffic, seeds)).items():
                totals[key] = score
    names = [fault.name for fault in FAULTS]
    rows = [
        f"| pipeline | false incidents | false after a fault | {' | '.join(names)} |",
        f"|---|---|---|{'---|' * len(names)}",
    ]
    for traffic in TRAFFIC:
        faults = [(traffic.name, name) for name in ("", *names)]
        false = [scores[faults[0]].false for scores in (before, after)]
        later = [sum(scores[key].false for key in faults[1:]) for scores in (before, after)]
        found = [f"{before[key].found} → {after[key].found} of {after[key].faults}" for key in faults[1:]]
        rows.append(f"| {traffic.name} | {false[0]} → {false[1]} | {later[0]} → {later[1]} | {' | '.join(found)} |")
    rows += ["", f"| fault begins after | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for minute in FIRST_MINUTES:
        keys = [("", f"{name} after {minute} min") for name in names]
        cells = [f"{before[key].found} → {after[key].found} of {after[key].faults}" for key in keys]
        age = f"{minute} min" if minute < 60 else f"{minute / 60:g} h"
        rows.append(f"| {age} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """Print the tables of first weeks, `before → after`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backtest.first_weeks", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    print(table(parser.parse_args().seeds))


if __name__ == "__main__":
    main()
