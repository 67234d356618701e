"""Which messages a place has overtaken, where their times were supplied: between two moments they were last seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.judging.arithmetic import CutInsidePattern, Overtaken
from lagloss_server.judging.facts import Pattern, merge_patterns

MOMENTS = st.integers(0, 12)
SIGHTINGS = st.tuples(MOMENTS, MOMENTS).map(lambda pair: (min(pair), max(pair)))
"""When a message was last seen at the earliest, and at the latest."""


@st.composite
def cuts(draw: st.DrawFn) -> Overtaken:
    edges = sorted(draw(st.sets(MOMENTS, max_size=4)))
    return Overtaken(draw(MOMENTS), tuple(zip(edges[::2], edges[1::2], strict=False)))


def alone(sighting: tuple[int, int]) -> Pattern:
    seen_ms, by_ms = map(float, sighting)
    return Pattern(1, 1, (), seen_ms, seen_ms, by_ms, by_ms)


def is_overtaken(overtaken: Overtaken, sighting: tuple[int, int]) -> bool:
    """Whether it is, whenever between the two moments the message was really last seen."""
    return all(
        moment < overtaken.before and not any(start <= moment < end for start, end in overtaken.held)
        for moment in range(sighting[0], sighting[1] + 1)
    )


@given(cuts(), SIGHTINGS)
def test_a_message_is_overtaken_if_it_is_at_each_moment_at_which_it_can_have_been_last_seen(
    overtaken: Overtaken, sighting: tuple[int, int]
) -> None:
    assert overtaken.holds(alone(sighting)) is is_overtaken(overtaken, sighting)


@given(cuts(), st.lists(SIGHTINGS, min_size=1, max_size=6))
def test_messages_that_were_added_up_between_the_cuts_are_judged_as_each_of_them(
    overtaken: Overtaken, sightings: list[tuple[int, int]]
) -> None:
    for pattern in merge_patterns(map(alone, sightings), tuple(sorted(set(overtaken.cuts)))):
        assert pattern.by_first_ms is not None
        inside = [each for each in sightings if pattern.seen_first_ms <= each[0] <= pattern.seen_last_ms]  # type: ignore[operator]
        inside = [each for each in inside if pattern.by_first_ms <= each[1] <= pattern.by_last_ms]  # type: ignore[operator]
        assert {is_overtaken(overtaken, each) for each in inside} == {overtaken.holds(pattern)}
    assert sum(pattern.count for pattern in merge_patterns(map(alone, sightings), overtaken.cuts)) == len(sightings)


def test_messages_on_both_sides_of_a_cut_have_to_be_looked_at_one_by_one() -> None:
    with pytest.raises(CutInsidePattern):
        Overtaken(100, ((20, 50),)).holds(Pattern(1, 2, (), 40, 60, 70, 70))
    with pytest.raises(CutInsidePattern):
        Overtaken(60).holds(Pattern(1, 2, (), 40, 40, 50, 70))
