"""How many processes a node should have: policies side by side, pure functions of what was observed of it.

=============  =====================================================================================================
``queue-lag``  one more when its queue (log size - committed offset) is long and does not shrink; one less when it has
               been empty for a while and one less has been seen to be enough
``cpu``        one more when its processes are above 80 % of a core on average; one less when below 30 % for a while
``rated``      as many as its traffic needs if each takes 80 % of what a process was rated at (`pipeline rate`)
``none``       as many as there are
=============  =====================================================================================================

Each has a band between more and less in which nothing happens (hysteresis), and after each change there is a time in
which nothing changes (cool-down): a new process needs to start and to be given partitions before it shows.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, linear_regression
from typing import Final, Literal

Policy = Literal["none", "queue-lag", "cpu", "rated"]

LONG_S: Final = 3.0
"""A queue is long if it holds more than arrives in this many seconds."""
EMPTY_S: Final = 2.0
"""A queue is empty if it holds less than this: commits trail what is done by a second or so."""
FEW: Final = 50
"""Events that are no queue at all, however little arrives."""
HIGH_CPU: Final = 0.8
LOW_CPU: Final = 0.3
LOAD_OF_RATING: Final = 0.8
"""How much of its rating a process is meant to take; or of the most that it has been seen to do."""


@dataclass(frozen=True, slots=True)
class GroupObservation:
    """Observation of a node at `at_s` (monotonic clock)."""

    at_s: float
    processes: int
    """Those that were wanted."""
    appended: int
    """Records that its topic has been given, ever."""
    committed: int
    """Those of them that it has done."""
    lag_s: float = 0.0
    """How long ago the oldest record that it has not committed was appended, at least."""
    cpu: float = 0.0
    """Mean over its processes, as a share of a core."""

    @property
    def backlog(self) -> int:
        """Waiting records: log size - committed offset."""
        return self.appended - self.committed


@dataclass(frozen=True, slots=True)
class Rules:
    """Bounds and times of a node's scaling."""

    least: int = 1
    most: int = 1
    rating: float = math.inf
    """Events a second that one process sustains within its lag target."""
    trend_s: float = 10.0
    """Stretch looked at before there is one more: shorter, and the steps in which offsets are committed look like a
    trend."""
    quiet_s: float = 30.0
    """How long there must be too little to do before there is one less."""
    cool_down_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Wish:
    """Number of processes that a policy asks for, and why."""

    processes: int
    reason: str = ""


def wish(policy: Policy, observations: Sequence[GroupObservation], changed_at_s: float, rules: Rules) -> Wish:
    """Return how many processes a node should have now, within the bounds.

    Args:
        policy: which one decides.
        observations: observations of the node, oldest first, at least one.
        changed_at_s: when its processes last became more or less; earlier observations show no trend.
        rules: bounds and times.
    """
    now = observations[-1]
    bounded = _within(now.processes, rules)
    if bounded != now.processes:
        return Wish(bounded, f"limits: {rules.least} to {rules.most} processes")
    if now.at_s - changed_at_s < rules.cool_down_s:
        return Wish(now.processes)
    since = [observation for observation in observations if observation.at_s >= changed_at_s]
    wish_ = POLICIES[policy](since, observations, rules)
    return Wish(_within(wish_.processes, rules), wish_.reason)


def none(since: Sequence[GroupObservation], _seen: Sequence[GroupObservation], _rules: Rules) -> Wish:
    """Keep the number of processes."""
    return Wish(since[-1].processes)


def queue_lag(since: Sequence[GroupObservation], observations: Sequence[GroupObservation], rules: Rules) -> Wish:
    """Add one while the queue is long and does not shrink; remove one when it was empty all along and the others can
    take the traffic by their observed rates: a queue may be empty *because* of their number."""
    now = since[-1]
    recent, quiet = _last(since, rules.trend_s), _last(since, rules.quiet_s)
    if recent:
        long = max(FEW, LONG_S * arrivals_per_s(recent))
        if now.backlog > long and _trend(recent) >= 0:
            return Wish(now.processes + 1, f"{now.backlog} events are waiting, above {long:.0f} and not decreasing")
    if quiet:
        empty = max(FEW, EMPTY_S * arrivals_per_s(quiet))
        others = LOAD_OF_RATING * (now.processes - 1) * _most_done_per_s(observations, rules)
        if all(observation.backlog <= empty for observation in quiet) and arrivals_per_s(quiet) <= others:
            return Wish(
                now.processes - 1, f"at most {empty:.0f} events were waiting for the last {rules.quiet_s:.0f} s"
            )
    return Wish(now.processes)


def cpu(since: Sequence[GroupObservation], _seen: Sequence[GroupObservation], rules: Rules) -> Wish:
    """Add one while the processes are busy, remove one when they have been idle."""
    now = since[-1]
    recent, quiet = _last(since, rules.trend_s), _last(since, rules.quiet_s)
    if recent and (busy := fmean(observation.cpu for observation in recent)) > HIGH_CPU:
        return Wish(now.processes + 1, f"CPU at {busy:.0%}, above {HIGH_CPU:.0%}")
    if quiet and (busy := fmean(observation.cpu for observation in quiet)) < LOW_CPU:
        return Wish(now.processes - 1, f"CPU at {busy:.0%} for {rules.quiet_s:.0f} s, which is below {LOW_CPU:.0%}")
    return Wish(now.processes)


def rated(since: Sequence[GroupObservation], _seen: Sequence[GroupObservation], rules: Rules) -> Wish:
    """Return as many as the traffic needs; fewer only once it has needed no more for a while."""
    now = since[-1]
    recent, quiet = _last(since, rules.trend_s), _last(since, rules.quiet_s)
    per_process = LOAD_OF_RATING * rules.rating
    if recent and (needed := math.ceil(arrivals_per_s(recent) / per_process)) > now.processes:
        return Wish(
            needed, f"{arrivals_per_s(recent):.0f} events/s arrive; the target per process is {per_process:.0f}"
        )
    if quiet:
        peak = _peak_per_s(quiet, rules.trend_s)
        if (needed := max(1, math.ceil(peak / per_process))) < now.processes:
            return Wish(needed, f"up to {peak:.0f} events/s arrive; the target per process is {per_process:.0f}")
    return Wish(now.processes)


POLICIES: Final[Mapping[Policy, Callable[[Sequence[GroupObservation], Sequence[GroupObservation], Rules], Wish]]] = {
    "none": none,
    "queue-lag": queue_lag,
    "cpu": cpu,
    "rated": rated,
}
"""Each is given the observations since the last change, and all that there are."""


def arrivals_per_s(observations: Sequence[GroupObservation]) -> float:
    """Return the mean arrivals per second during these observations; 0 for a single one."""
    first, last = observations[0], observations[-1]
    return (last.appended - first.appended) / (last.at_s - first.at_s) if last.at_s > first.at_s else 0.0


def _within(processes: int, rules: Rules) -> int:
    return min(rules.most, max(rules.least, processes))


def _last(observations: Sequence[GroupObservation], span_s: float) -> Sequence[GroupObservation]:
    """Return the observations of the last `span_s`; none if they cover less time than that."""
    start_s = observations[-1].at_s - span_s
    if observations[0].at_s > start_s:
        return ()
    return [observation for observation in observations if observation.at_s >= start_s]


def _peak_per_s(observations: Sequence[GroupObservation], span_s: float) -> float:
    """Return the highest arrivals per second, on average over any `span_s` of these observations."""
    stretches = (_last(observations[:end], span_s) for end in range(1, len(observations) + 1))
    return max(arrivals_per_s(stretch) for stretch in stretches if stretch)


def _most_done_per_s(observations: Sequence[GroupObservation], rules: Rules) -> float:
    """Return the most events per second of one process, on average over any `quiet_s` in which there were as many all
    along: shorter, and the steps in which offsets are committed would count as speed."""
    most = 0.0
    for end, last in enumerate(observations):
        start = bisect_right(observations, last.at_s - rules.quiet_s, key=lambda observation: observation.at_s) - 1
        stretch = observations[start : end + 1] if start >= 0 else ()
        if stretch and all(observation.processes == last.processes for observation in stretch):
            done_per_s = (last.committed - stretch[0].committed) / (last.at_s - stretch[0].at_s)
            most = max(most, done_per_s / max(1, last.processes))
    return most


def _trend(observations: Sequence[GroupObservation]) -> float:
    """Return the growth of the queue in events per second, by a straight line through the observations."""
    return linear_regression(
        [observation.at_s for observation in observations], [observation.backlog for observation in observations]
    ).slope
