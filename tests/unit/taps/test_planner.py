"""Planners: simulated topics and groups, whose every record has to be planned once, at its time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from taps.plan import Look, Mark, PartitionLog, Suspect, TapPlan
from taps.planner import (
    ANEW,
    QUIET,
    REACH,
    GroupPlanner,
    NewCommits,
    TopicPlanner,
    beginning,
    lost_tails,
    newest_epochs,
    newly_led,
)

FIRST = TapPlan(0, 0, 8, 1 << 32, positions={0: 0, 1: 0})
STEPS = st.lists(
    st.tuples(st.tuples(st.integers(0, 9), st.integers(0, 9)), st.tuples(st.integers(0, 9), st.integers(0, 9))),
    min_size=1,
    max_size=25,
)
LIMIT = st.integers(1, 20)
Step = tuple[tuple[int, int], tuple[int, int]]
"""Records appended to two partitions, and records of each committed."""


def with_rest(steps: list[Step]) -> list[Step]:
    """The steps, and as many without anything new as one offset per turn takes."""
    return [*steps, *[((0, 0), (0, 0))] * (sum(sum(more) for more, _ in steps) + 2)]


def add(ends: tuple[int, int], more: tuple[int, int]) -> tuple[int, int]:
    return ends[0] + more[0], ends[1] + more[1]


@given(STEPS, LIMIT)
def test_every_offset_of_a_topic_is_planned_once_and_progress_never_claims_more(steps: list[Step], limit: int) -> None:
    planner, last, ends = TopicPlanner(), FIRST, (0, 0)
    planned: list[tuple[int, int]] = []
    at_look: dict[int, tuple[int, int]] = {0: (0, 0)}
    for at, (more, _) in enumerate(with_rest(steps), 1):
        ends = add(ends, more)
        at_look[at] = ends
        logs = {partition: PartitionLog(0, end, end) for partition, end in enumerate(ends)}
        last = planner.plan(last, Look(at, logs), None, limit)
        assert last.number == at
        planned += [(span.partition, offset) for span in last.spans for offset in range(span.start, span.end)]
        done = at_look[last.through_ms]
        assert all((partition, offset) in planned for partition in (0, 1) for offset in range(done[partition]))
    assert sorted(planned) == [(partition, offset) for partition in (0, 1) for offset in range(ends[partition])]
    assert last.through_ms == len(with_rest(steps))


@given(STEPS, LIMIT)
def test_every_offset_that_a_group_has_committed_is_planned_once_at_the_time_of_its_commit(
    steps: list[Step], limit: int
) -> None:
    planner, last, ends, committed = GroupPlanner(lambda *_: False), FIRST, (0, 0), (0, 0)
    times: dict[tuple[int, int], int] = {}
    seen: dict[tuple[int, int], int] = {}
    at_look: dict[int, tuple[int, int]] = {0: (0, 0)}
    for at, (more, taken) in enumerate(with_rest(steps), 1):
        ends = add(ends, more)
        at_look[at] = ends
        before = committed
        committed = (min(ends[0], committed[0] + taken[0]), min(ends[1], committed[1] + taken[1]))
        for partition in (0, 1):
            seen.update({(partition, offset): at for offset in range(before[partition], committed[partition])})
        marks = {p: [Mark(committed[p], at)] for p in (0, 1) if committed[p] > before[p]}
        logs = {partition: PartitionLog(0, end, end) for partition, end in enumerate(ends)}
        last = planner.plan(last, Look(at, logs), NewCommits(at, {0: at}, marks), limit)
        for span in last.spans:
            for offset in range(span.start, span.end):
                assert (span.partition, offset) not in times
                times[span.partition, offset] = next(mark.at_ms for mark in span.commits if mark.offset > offset)
        for partition, until in last.until_ms.items():
            assert all((partition, offset) in times for offset in range(at_look[until][partition]))
        assert all(key in times for key, when in seen.items() if when <= last.through_ms)
    assert times == seen
    assert last.through_ms == len(with_rest(steps))


@given(STEPS)
def test_a_tap_that_rested_plans_what_it_would_have_planned_had_it_looked_each_time(steps: list[Step]) -> None:
    """A rested planner hears of the newest look without news only, just before the next one with news."""
    for is_group in (False, True):
        every, rested = ((GroupPlanner(lambda *_: False) if is_group else TopicPlanner()) for _ in range(2))
        lasts, ends, committed = [FIRST, FIRST], (0, 0), (0, 0)
        still: Look | None = None
        for at, (more, taken) in enumerate(with_rest(steps), 1):
            ends, before = add(ends, more), committed
            committed = (min(ends[0], committed[0] + taken[0]), min(ends[1], committed[1] + taken[1]))
            look = Look(at, {partition: PartitionLog(0, end, end) for partition, end in enumerate(ends)})
            marks = {p: [Mark(committed[p], at)] for p in (0, 1) if committed[p] > before[p]}
            commits = NewCommits(at, at, marks) if is_group else None
            lasts[0] = every.plan(lasts[0], look, commits, 1_000)
            if at > 1 and more == (0, 0) and not marks:
                still = look
                continue
            if still is not None:
                quiet = replace(QUIET, next=lasts[1].commits_at) if is_group else None
                lasts[1] = rested.plan(lasts[1], still, quiet, 1_000)
                assert not lasts[1].spans
            still, lasts[1] = None, rested.plan(lasts[1], look, commits, 1_000)
            expected, planned = lasts
            assert planned.spans == expected.spans
            assert (planned.positions, planned.through_ms) == (expected.positions, expected.through_ms)
            assert planned.until_ms == expected.until_ms


def test_an_open_transaction_holds_progress_back_and_what_retention_took_is_counted() -> None:
    planner = TopicPlanner()
    opened = planner.plan(FIRST, Look(10, {0: PartitionLog(0, 5, 8), 1: PartitionLog(3, 4, 4)}), None, 100)
    assert [(span.partition, span.start, span.end) for span in opened.spans] == [(0, 0, 5), (1, 3, 4)]
    assert opened.gone == {1: 3}
    assert opened.through_ms == 0
    ended = planner.plan(opened, Look(20, {0: PartitionLog(0, 9, 9), 1: PartitionLog(3, 4, 4)}), None, 100)
    assert (ended.spans[0].start, ended.spans[0].end, ended.through_ms, ended.gone) == (5, 9, 20, {})


def test_where_the_log_begins_after_the_first_moment_of_a_tap_an_offset_counts_as_gone() -> None:
    logs = {0: PartitionLog(0, 5, 5), 1: PartitionLog(3, 7, 7), 2: PartitionLog(3, 7, 7), 3: PartitionLog(4, 4, 4)}
    begun = beginning(Look(20, logs), {0: 0, 1: 3, 2: 4, 3: 4}, {2})
    assert begun.positions == {0: 0, 1: 3, 2: 4, 3: 4}
    assert begun.gone == {1: 1, 3: 1}


def test_a_start_that_only_producers_timestamps_suggest_is_not_believed() -> None:
    logs = {0: PartitionLog(0, 9, 9), 1: PartitionLog(0, 3 * REACH, 3 * REACH)}
    begun = beginning(Look(20, logs), {0: 9, 1: 2 * REACH}, set())
    assert begun.positions == {0: 0, 1: 2 * REACH - REACH // 2}
    assert begun.gone == {1: 1}
    assert beginning(Look(20, logs), {0: 9, 1: 2 * REACH}, {0, 1}) == ({0: 9, 1: 2 * REACH}, {})


def test_of_a_topic_that_was_created_anew_all_is_read_and_an_offset_counts_as_gone() -> None:
    logs = {0: PartitionLog(0, 5, 5), 1: PartitionLog(0, 7, 7)}
    planned = TopicPlanner().plan(replace(FIRST, positions=ANEW), Look(20, logs), None, 100)
    assert [(span.partition, span.start, span.end) for span in planned.spans] == [(0, 0, 5), (1, 0, 7)]
    assert planned.gone == {0: 1}


def test_what_retention_took_from_a_group_counts_once_a_commit_has_passed_it() -> None:
    planner = GroupPlanner(lambda *_: False)
    logs = {0: PartitionLog(4, 9, 9), 1: PartitionLog(0, 0, 0)}
    behind = planner.plan(FIRST, Look(10, logs), NewCommits(9, {0: 1}, {}), 100)
    assert (behind.spans, behind.gone, behind.positions[0], behind.until_ms[0]) == ((), {}, 0, 0)
    passed = planner.plan(behind, Look(20, logs), NewCommits(19, {0: 2}, {0: [Mark(6, 15)]}), 100)
    assert [(span.start, span.end, span.commits) for span in passed.spans] == [(4, 6, (Mark(6, 15),))]
    assert (passed.gone, passed.positions[0]) == ({0: 4}, 6)


def test_a_group_that_waits_for_nothing_but_markers_has_taken_all_in() -> None:
    planner = GroupPlanner(lambda partition, start, end: (partition, start, end) == (0, 5, 6))
    logs = {0: PartitionLog(0, 6, 6), 1: PartitionLog(0, 0, 0)}
    level = planner.plan(FIRST, Look(10, logs), NewCommits(9, {0: 1}, {0: [Mark(5, 8)]}), 100)
    assert (level.until_ms, level.through_ms, level.positions[0]) == ({0: 10, 1: 10}, 9, 5)


def test_a_lost_tail_is_seen_by_the_end_of_the_log_or_asked_for_where_it_has_another_leader() -> None:
    asked: dict[int, Suspect] = {}

    def whole_until(suspects: Mapping[int, Suspect]) -> dict[int, int]:
        asked.update(suspects)
        return {1: 6, 3: 5, 4: 8, 6: 9}

    positions = dict.fromkeys(range(8), 8)
    last = replace(FIRST, positions=positions, epochs={0: 2, 1: 2, 2: -1, 3: 2, 4: 2, 6: 2, 7: 2})
    logs = {
        0: PartitionLog(0, 9, 9, 2),  # the same leader
        1: PartitionLog(0, 7, 7, 3),  # shorter, and perhaps grown
        2: PartitionLog(0, 9, 9, 3),  # of an older plan
        3: PartitionLog(1, 9, 9, 3),
        4: PartitionLog(0, 9, 9, 4),
        5: PartitionLog(8, 9, 9, 4),
        6: PartitionLog(0, 12, 12, 3),  # a look has shown more than was planned
        7: PartitionLog(4, 7, 7, 2),  # shorter, by the same leader
    }
    assert lost_tails(last, Look(20, logs), {6: 10}, whole_until) == {1: 6, 3: 5, 6: 9, 7: 7}
    assert asked == {
        1: Suspect(0, 7, 2, 3),
        3: Suspect(1, 8, 2, 3),
        4: Suspect(0, 8, 2, 4),
        6: Suspect(0, 10, 2, 3),
    }


def test_a_partition_has_another_leader_if_its_epoch_is_newer_than_that_which_is_known() -> None:
    last = replace(FIRST, epochs={0: 6, 1: 6, 2: 6, 3: -1})
    logs = {at: PartitionLog(0, 1, 1, epoch) for at, epoch in enumerate((5, 6, 7, 7, 7))}
    assert newly_led(last, Look(20, logs)) == {2}


def test_the_epoch_of_a_leader_that_does_not_know_of_its_end_is_not_taken() -> None:
    last = replace(FIRST, epochs={0: 6, 1: 6, 2: 6})
    logs = {0: PartitionLog(0, 1, 1, 5), 1: PartitionLog(0, 1, 1, -1), 2: PartitionLog(0, 1, 1, 7)}
    assert newest_epochs(last, Look(20, logs)) == {0: 6, 1: 6, 2: 7}
