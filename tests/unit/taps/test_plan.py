"""Plans: marks, looks and shares against slow and obvious ways to find the same."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from taps.plan import (
    EndMark,
    EndMarks,
    Look,
    Looks,
    Mark,
    OffsetSpan,
    PartitionLog,
    TapPlan,
    merged_commits,
    shared_out,
)

OFFSETS = st.integers(0, 50)
GROWTH = st.lists(st.integers(0, 10), min_size=1, max_size=40)


def grown(steps: list[int]) -> list[int]:
    return [sum(steps[: at + 1]) for at in range(len(steps))]


def look(at_ms: int, end: int) -> Look:
    return Look(at_ms, {0: PartitionLog(0, end, end)})


@given(GROWTH, st.data())
def test_a_record_s_marks_say_since_when_it_cannot_have_been_there(steps: list[int], data: st.DataObject) -> None:
    ends = grown(steps)
    marks, position = EndMarks(), 0
    for at, end in enumerate(ends):
        marks.add(look(at, end))
        upto = data.draw(st.integers(position, end))
        taken = marks.take(0, position, upto)
        for offset in range(position, upto):
            known = [mark.at_ms for mark in taken if mark.offset <= offset]
            assert max(known, default=None) == max(
                (t for t, e in enumerate(ends[: at + 1]) if e <= offset), default=None
            )
        position = upto


@given(st.lists(st.tuples(GROWTH, GROWTH), min_size=1, max_size=1), st.data())
def test_a_look_is_passed_once_every_partition_is_past_its_end(
    found: list[tuple[list[int], list[int]]], data: st.DataObject
) -> None:
    ends = list(zip(*map(grown, found[0]), strict=False))
    looks, newest = Looks(), -1
    positions = [0, 0]
    for at, end in enumerate(ends):
        looks.add(at, dict(enumerate(end)))
        positions = [data.draw(st.integers(before, now)) for before, now in zip(positions, end, strict=True)]
        newest = max(newest, looks.passed(dict(enumerate(positions))) or -1)
        passed = [t for t in range(at + 1) if all(p >= e for p, e in zip(positions, ends[t], strict=True))]
        assert newest == max([t for t in passed if t], default=-1)


@given(st.dictionaries(st.integers(0, 9), st.integers(1, 100), min_size=1), st.integers(0, 300))
def test_shares_use_the_limit_and_none_exceeds_its_want(wanted: dict[int, int], limit: int) -> None:
    shares = shared_out(wanted, limit)
    assert shares.keys() == wanted.keys()
    assert all(shares[at] <= wanted[at] for at in wanted)
    assert sum(shares.values()) == min(limit, sum(wanted.values()))
    least = min((shares[at] for at in wanted if shares[at] < wanted[at]), default=limit)
    assert all(share <= least + 1 for share in shares.values())


@given(st.lists(OFFSETS, max_size=30), st.integers(0, 20))
def test_a_record_is_taken_in_by_the_first_commit_past_it(offsets: list[int], position: int) -> None:
    commits = [Mark(offset, at) for at, offset in enumerate(offsets)]
    merged = merged_commits(merged_commits((), commits[:10], position), commits[10:], position)
    for offset in range(position, 51):
        first = next((mark.at_ms for mark in commits if mark.offset > offset), None)
        assert next((mark.at_ms for mark in merged if mark.offset > offset), None) == first


def test_a_plan_survives_its_document() -> None:
    plan = TapPlan(
        7,
        1_000,
        8,
        1 << 32,
        spans=(OffsetSpan(1, 5, 9, (EndMark(4, 10, 11), EndMark(9, 20, 21)), (Mark(9, 15),)),),
        gone={1: 2},
        positions={1: 9, 2: 0},
        until_ms={1: 900},
        through_ms=880,
        topic_id="abc",
        commits_at={3: 17},
        commits={2: (Mark(3, 30),)},
        void={1: Mark(1_000, 40)},
        epochs={1: 3, 2: 0},
    )
    assert TapPlan.of(json.loads(json.dumps(plan.document()))) == plan


def test_a_plan_that_was_stored_without_epochs_is_read() -> None:
    plan = TapPlan(7, 1_000, 8, 1 << 32, positions={1: 9})
    document = plan.document()
    del document["epochs"]
    assert TapPlan.of(document) == plan
