"""Windows while a definition was in force that this version of lagloss cannot read: nothing in them is certain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aggregator.closing.context import Versions
from lagloss.wire.format import WINDOW_S
from lagloss_server.model.definition import Definition, StoredPipeline

DEFINITION = Definition.model_validate(
    {
        "apiVersion": "lagloss/v1",
        "kind": "Pipeline",
        "metadata": {"name": "orders"},
        "spec": {"nodes": [{"name": "a", "to": ["b"]}, {"name": "b"}]},
    }
)


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.integers(0, 30), st.integers(1, 6))
def test_every_node_is_unsure_while_an_unreadable_version_was_in_force_and_at_no_other_time(
    readable: list[bool], minute: int, parts: int
) -> None:
    """Versions 1, 2, ... are applied in the middle of every fourth minute; the newest is readable."""
    readable.append(True)
    at_ms = [(4 * number + 2) * 60_000 + 30_000 for number in range(len(readable))]
    versions = Versions()
    for start in range(0, len(readable), parts):  # learned of a few at a time
        some = range(start, min(start + parts, len(readable)))
        stored = [
            StoredPipeline("orders", number + 1, at_ms[number], DEFINITION) for number in some if readable[number]
        ]
        versions = versions.plus(stored, [(number + 1, at_ms[number]) for number in some if not readable[number]])
    start_ms = minute * 60_000
    in_force = [
        max((number for number, applied_ms in enumerate(at_ms) if applied_ms <= moment_ms), default=0)
        for moment_ms in (start_ms, start_ms + 59_999)
    ]
    # before its own time the first version holds, and so does the first readable one before which none was readable
    unsure = any(not readable[number] for number in in_force)
    changed, nodes = versions.changed_in(minute * WINDOW_S)
    assert (nodes == {"a", "b"}) is unsure
    assert changed is (unsure or in_force[0] != in_force[1])
