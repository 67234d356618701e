"""Taps of versions that come one after another: each goes on for as long as every version has it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.model.definition import Definition, StoredPipeline
from taps.wanted import PipelineTaps, first_window_ms, taps_after

TOPICS = ("x", "y", "z")


def version(number: int, topic: str) -> StoredPipeline:
    taps = {"out": {"topic": topic, "id": "$.id", "eventTime": "timestamp"}}
    document = {
        "apiVersion": "lagloss/v1",
        "kind": "Pipeline",
        "metadata": {"name": "orders"},
        "spec": {"nodes": [{"name": "a", "to": ["b"], "taps": taps}, {"name": "b"}]},
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
