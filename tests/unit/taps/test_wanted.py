"""Taps of versions that come one after another: each goes on for as long as every version has it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.wire.format import RETENTION_MS
from lagloss_server.model.definition import Definition, StoredPipeline
from taps.wanted import PipelineTaps, first_window_ms, taps_after

TOPICS = ("x", "y", "z")


def version(
    number: int, topic: str, reader: dict[str, str] | None = None, lookback: str | None = None
) -> StoredPipeline:
    """A version of two nodes, whose first writes a topic that is tapped, as is the second's reader, if it has one."""
    taps = {"out": {"topic": topic, "id": "$.id", "eventTime": "timestamp"}}
    last = {"name": "b", **({"taps": {"in": reader}} if reader else {})}
    document = {
        "apiVersion": "lagloss/v1",
        "kind": "Pipeline",
        "metadata": {"name": "orders"},
        "spec": {
            "nodes": [{"name": "a", "to": ["b"], "taps": taps}, last],
            **({"lookback": lookback} if lookback else {}),
        },
    }
    return StoredPipeline("orders", number, number * 600_000, Definition.model_validate(document))


VERSIONS = {(number, topic): version(number, topic) for number in range(1, 8) for topic in TOPICS}


@given(st.lists(st.sampled_from([*TOPICS, None]), min_size=1, max_size=6), st.sampled_from(TOPICS), st.integers(1, 7))
def test_a_tap_began_with_the_first_version_since_which_all_have_it(
    earlier: list[str | None], newest: str, parts: int
) -> None:
    """None stands for a version that is unreadable: whether it had the tap is not known."""
    topics = [*earlier, newest]
    stored = [VERSIONS[number, topic] for number, topic in enumerate(topics, 1) if topic is not None]
    taps: PipelineTaps | None = None
    for start in range(0, len(stored), parts):
        taps = taps_after(taps, stored[start : start + parts])
    began = len(topics)
    while began > 1 and topics[began - 2] == newest:
        began -= 1
    assert taps is not None
    (running,) = taps.running()
    assert running.since_ms == first_window_ms(VERSIONS[began, newest])
    assert running.tap.topic == newest
    each = [*taps.replaced, running]
    assert [tap.until_ms for tap in each] == [tap.since_ms for tap in each[1:]] + [None], "each window has one tap"
    assert running.after == {tap.emitter for tap in taps.replaced}


@pytest.mark.parametrize(
    ("of_before", "of_after", "is_moved"),
    [
        ({"group": "g"}, {"group": "h"}, False),  # of the same topic
        ({"group": "g"}, {"group": "g", "topic": "y", "id": "$.id", "eventTime": "timestamp"}, True),
        ({"group": "g"}, None, False),  # a process may read it, and report the same lanes
    ],
)
def test_a_tap_is_moved_if_taps_take_its_node_in_elsewhere(
    of_before: dict[str, str], of_after: dict[str, str] | None, is_moved: bool
) -> None:
    taps = taps_after(None, [version(1, "x", of_before), version(2, "x", of_after)])
    (replaced,) = taps.replaced
    assert (replaced.tap.node, replaced.is_moved) == ("b", is_moved)


def test_a_tap_is_moved_no_more_once_its_topic_is_read_again() -> None:
    elsewhere = {"group": "g", "topic": "y", "id": "$.id", "eventTime": "timestamp"}
    versions = [version(1, "x", {"group": "g"}), version(2, "x", elsewhere), version(3, "x", {"group": "g"})]
    assert [tap.is_moved for tap in taps_after(None, versions[:2]).replaced] == [True]
    assert [tap.is_moved for tap in taps_after(None, versions).replaced] == [False, True]
    assert [tap.is_moved for tap in taps_after(None, [*versions[:2], version(3, "x")]).replaced] == [False, False]


def test_only_the_first_version_looks_back() -> None:
    first, second = version(1, "x", lookback="5m"), version(2, "y", lookback="5m")
    taps = taps_after(None, [first, second])
    (replaced,), (running,) = taps.replaced, taps.running()
    assert replaced.since_ms == first.applied_at_ms - 300_000
    assert replaced.until_ms == running.since_ms == second.applied_at_ms


def test_a_tap_that_was_replaced_is_known_for_a_week() -> None:
    week = RETENTION_MS // 600_000
    versions = [version(1, "x"), version(2, "y"), version(2 + week - 1, "z")]
    assert len(taps_after(None, versions).replaced) == 2
    assert len(taps_after(None, [*versions[:2], version(2 + week, "z")]).replaced) == 1
