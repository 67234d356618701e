"""What scaling policies want: never more than the bounds, never in a hurry, and more where more waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_under_test.harness.policies import POLICIES, GroupObservation, Policy, Rules, Wish, arrivals_per_s, wish
from pipeline_under_test.stream.processes.observed import lag_of

RULES = Rules(least=1, most=3, rating=100)
LONG_AGO = -1000.0
policies = st.sampled_from(sorted(POLICIES))


def seen(
    seconds: int, *, per_s: float = 100, backlog: Sequence[int] | int = 0, cpu: float = 0.5, processes: int = 2
) -> list[GroupObservation]:
    """One observation a second; `backlog` is that of each, or all."""
    backlogs = [backlog] * seconds if isinstance(backlog, int) else backlog
    totals = [10_000 + int(per_s * at) for at in range(seconds)]
    return [
        GroupObservation(float(at), processes, total, total - waits, 0.0, cpu)
        for at, (total, waits) in enumerate(zip(totals, backlogs, strict=True))
    ]


def busy_before(history: list[GroupObservation], per_s: float) -> list[GroupObservation]:
    """The same after 40 s in which so much a second was done."""
    first = history[0]
    past = [
        replace(first, at_s=at, appended=int(first.appended + at * per_s), committed=int(first.appended + at * per_s))
        for at in (float(ago) for ago in range(-40, 0))
    ]
    return [*past, *history]


Second = tuple[float, int, float, float]
"""Seconds since the last look, records appended since, which share of what waits is done by now, and CPU."""
looks: st.SearchStrategy[list[Second]] = st.lists(
    st.tuples(st.sampled_from((0.5, 1.0, 4.0)), st.integers(0, 2_000), st.floats(0, 1), st.floats(0, 1.5)),
    min_size=1,
    max_size=30,
)


def _history(processes: int, looks: list[Second]) -> list[GroupObservation]:
    appended, committed, at_s, found = 0, 0, 0.0, []
    for after_s, arrived, done, cpu in looks:
        at_s, appended = at_s + after_s, appended + arrived
        committed += int(done * (appended - committed))
        found.append(GroupObservation(at_s, processes, appended, committed, 0.0, cpu))
    return found


histories = st.builds(_history, st.integers(1, 5), looks)
"""Any node's observations: what came in and what was done never get less."""


@given(histories, policies, st.integers(1, 4), st.integers(0, 4), st.floats(-100, 300))
def test_no_policy_leaves_the_bounds(
    history: list[GroupObservation], policy: Policy, least: int, more: int, changed_at_s: float
) -> None:
    rules = replace(RULES, least=least, most=least + more)
    assert least <= wish(policy, history, changed_at_s, rules).processes <= least + more


@given(histories, policies, st.floats(0, 14.9))
def test_nothing_changes_while_it_cools_down(history: list[GroupObservation], policy: Policy, ago_s: float) -> None:
    rules = replace(RULES, most=5)
    now = history[-1]
    assert wish(policy, history, now.at_s - ago_s, rules) == Wish(now.processes)


@given(histories, st.integers(0, 5_000))
def test_of_two_queues_that_differ_only_now_the_longer_never_gets_fewer_processes(
    history: list[GroupObservation], more: int
) -> None:
    rules = replace(RULES, most=9)
    longer = [*history[:-1], replace(history[-1], committed=history[-1].committed - more)]
    wanted, wanted_longer = (wish("queue-lag", one, LONG_AGO, rules).processes for one in (history, longer))
    assert wanted_longer >= wanted


@given(histories, policies)
def test_all_but_ratings_change_by_one_process_at_a_time(history: list[GroupObservation], policy: Policy) -> None:
    rules = replace(RULES, least=0, most=9)
    change = wish(policy, history, LONG_AGO, rules).processes - history[-1].processes
    assert policy == "rated" or abs(change) <= 1


@given(histories)
def test_what_a_policy_does_it_gives_a_reason_for(history: list[GroupObservation]) -> None:
    for policy in POLICIES:
        made = wish(policy, history, LONG_AGO, replace(RULES, most=9))
        assert bool(made.reason) == (made.processes != history[-1].processes)


@settings(max_examples=30)
@given(
    policies,
    st.integers(1, 300),
    st.lists(st.tuples(st.integers(10, 60), st.integers(0, 600), st.floats(0, 1)), min_size=1, max_size=6),
)
def test_changes_are_never_closer_than_the_cool_down(
    policy: Policy, capacity: int, phases: list[tuple[int, int, float]]
) -> None:
    """A node simulated second by second through phases of traffic; each process does `capacity` events a second."""
    processes, appended, committed, second, changed_at_s, history = 1, 0, 0, 0, 0, []
    for seconds, per_s, cpu in phases:
        for _ in range(seconds):
            second, appended = second + 1, appended + per_s
            committed = min(appended, committed + capacity * processes)
            history.append(GroupObservation(float(second), processes, appended, committed, 0.0, cpu))
            wanted = wish(policy, history[-60:], changed_at_s, RULES).processes
            if wanted != processes:
                assert second - changed_at_s >= RULES.cool_down_s
                processes, changed_at_s = wanted, second


def test_a_queue_that_grows_gets_one_process_more() -> None:
    growing = seen(20, backlog=[100 * at for at in range(20)])
    assert wish("queue-lag", growing, LONG_AGO, RULES).processes == 3


def test_a_long_queue_that_stands_gets_one_more_and_one_that_shrinks_does_not() -> None:
    assert wish("queue-lag", seen(20, backlog=2000), LONG_AGO, RULES).processes == 3
    shrinking = seen(20, backlog=[2000 - 50 * at for at in range(20)])
    assert wish("queue-lag", shrinking, LONG_AGO, RULES).processes == 2


def test_what_waits_for_its_commit_is_no_queue() -> None:
    waits = seen(40, per_s=1000, backlog=1500)
    assert wish("queue-lag", waits, LONG_AGO, RULES).processes == 2
    assert wish("queue-lag", busy_before(waits, 3000), 0.0, RULES).processes == 1


def test_a_queue_must_have_been_empty_all_along_for_one_process_less() -> None:
    once = [0] * 40
    once[20] = 300
    assert wish("queue-lag", busy_before(seen(40, backlog=once), 300), 0.0, RULES).processes == 2
    assert wish("queue-lag", busy_before(seen(40), 300), 0.0, RULES).processes == 1
    assert wish("queue-lag", busy_before(seen(25), 300), 0.0, RULES).processes == 2  # not long enough


@pytest.mark.parametrize(("done_per_s", "wanted"), [(240, 2), (260, 1)])
def test_an_empty_queue_is_not_enough_for_one_less_unless_the_others_could_take_the_traffic(
    done_per_s: int, wanted: int
) -> None:
    """100 events a second for two; each has done half of what was done before, of which 80 % count."""
    assert wish("queue-lag", busy_before(seen(40), done_per_s), 0.0, RULES).processes == wanted


def test_under_steady_traffic_processes_become_more_until_they_are_enough_and_then_stay() -> None:
    """Ten minutes, second by second, of a node whose process does 100 events a second and commits every four."""
    processes, appended, done, committed, changed_at_s, history = 1, 0, 0, 0, 0, []
    changes = []
    for second in range(600):
        appended += 240
        done = min(appended, done + 100 * processes)
        committed = done if second % 4 == 0 else committed
        history.append(GroupObservation(float(second), processes, appended, committed))
        wanted = wish("queue-lag", history[-300:], changed_at_s, RULES).processes
        if wanted != processes:
            processes, changed_at_s = wanted, second
            changes.append(wanted)
    assert changes == [2, 3]


def test_what_was_seen_before_the_last_change_counts_no_more() -> None:
    assert wish("queue-lag", busy_before(seen(40), 300), 20.0, RULES).processes == 2


@pytest.mark.parametrize(("busy", "wanted"), [(0.9, 3), (0.8, 2), (0.5, 2), (0.3, 2), (0.2, 1)])
def test_cpu_makes_it_more_when_busy_and_less_when_idle(busy: float, wanted: int) -> None:
    assert wish("cpu", seen(40, cpu=busy), LONG_AGO, RULES).processes == wanted


def test_cpu_does_not_see_a_queue() -> None:
    """The experiment `cpu-misleads` in short: the thread waits, so the CPU idles while the queue grows."""
    waiting = seen(40, backlog=[500 * at for at in range(40)], cpu=0.4)
    assert wish("cpu", waiting, LONG_AGO, RULES).processes == 2
    assert wish("queue-lag", waiting, LONG_AGO, RULES).processes == 3


@pytest.mark.parametrize(("per_s", "wanted"), [(10, 1), (80, 1), (81, 2), (160, 2), (161, 3), (1000, 3)])
def test_a_rating_says_how_many_at_once(per_s: int, wanted: int) -> None:
    for processes in (1, 2, 3):
        history = seen(41, per_s=per_s, processes=processes)
        assert wish("rated", history, LONG_AGO, RULES).processes == wanted


def test_a_short_lull_takes_no_rated_process_away() -> None:
    appended = [150 * min(at, 25) + 10 * max(0, at - 25) for at in range(41)]
    history = [GroupObservation(float(at), 2, total, total) for at, total in enumerate(appended)]
    assert wish("rated", history, LONG_AGO, RULES).processes == 2


def test_without_a_rating_nothing_is_needed() -> None:
    assert wish("rated", seen(41, per_s=1e6), LONG_AGO, Rules(1, 3)).processes == 1


def test_arrivals_are_an_average_and_none_for_a_single_look() -> None:
    assert arrivals_per_s(seen(11, per_s=70)) == 70
    assert arrivals_per_s(seen(1)) == 0


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=30),
    st.integers(0, 2_000),
)
def test_lag_is_the_time_since_the_log_is_known_to_be_past_the_committed_offset(
    grown: list[int], committed: int
) -> None:
    place = ("topic", 0)
    ends = [(float(at), {place: sum(grown[: at + 1])}) for at in range(len(grown))]
    past = [at for at, of in ends if of[place] > committed]
    assert lag_of(place, committed, ends) == (ends[-1][0] - past[0] if past else 0.0)
