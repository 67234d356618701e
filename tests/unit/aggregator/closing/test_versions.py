"""Of many versions of a definition the earlier ones are kept in few bytes, and hold for their windows all the same."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aggregator.closing.context import PARSED, Versions
from lagloss.wire.format import WINDOW_S
from lagloss_server.judging.evidence import EmitterState, Evidence, TallyState
from lagloss_server.model.definition import Definition, StoredPipeline


def stored(number: int) -> StoredPipeline:
    """A version with a node of its own, applied in the middle of the minute of its number."""
    document = {"apiVersion": "lagloss/v1", "kind": "Pipeline", "metadata": {"name": "orders"}}
    spec = {"nodes": [{"name": "a", "to": [f"b{number}"]}, {"name": f"b{number}"}]}
    definition = Definition.model_validate({**document, "spec": spec})
    return StoredPipeline("orders", number, number * 60_000 + 30_000, definition)


@given(st.integers(1, 3 * PARSED), st.integers(1, 5))
def test_each_version_holds_for_its_windows_however_many_are_later(count: int, parts: int) -> None:
    versions = Versions()
    for first in range(1, count + 1, parts):  # learned of a few at a time
        versions = versions.plus([stored(number) for number in range(first, min(first + parts, count + 1))])
    assert len(versions) == count
    assert [version.version for version in versions.stored] == list(range(1, count + 1))[-PARSED:]
    assert versions.checkpoints >= {f"b{number}.in" for number in range(1, count + 1)}
    for minute in range(count + 3):
        number = min(max(1, minute - 1), count)
        assert set(versions.at(minute * WINDOW_S).nodes) == {"a", f"b{number}"}
        changed, nodes = versions.changed_in(minute * WINDOW_S)
        assert changed is (2 <= minute <= count)
        assert nodes == ({"a", f"b{minute - 1}", f"b{minute}"} if changed else set())
    assert set(versions.newest.nodes) == {"a", f"b{count}"}


@given(st.integers(2, 200), st.sampled_from(["a", "b1", "b2", "b3", "z"]), st.booleans())
def test_processes_of_nodes_of_earlier_versions_count_for_an_hour(minute: int, node: str, is_tally: bool) -> None:
    versions = Versions(map(stored, (1, 2, 3)))
    start_s = minute * WINDOW_S
    tally = TallyState(bytes(16), node, f"{node}.in", None, 1, 0)
    emitter = EmitterState(bytes(16), node, 0, start_s * 1000 + 90_000, False, 0, start_s * 1000 + 90_000, 0)
    evidence = Evidence(start_s, start_s * 1000 + 100_000, () if is_tally else [emitter], [tally] if is_tally else ())
    in_force = min(max(1, minute - 1), 3)
    replaced_ms = {"b1": 150_000, "b2": 210_000}.get(node, 0)
    is_before = node in [f"b{number}" for number in range(1, in_force)]
    counts = is_before and start_s * 1000 < replaced_ms + 3_600_000
    assert versions.left_behind(evidence) == ({"a", node, f"b{in_force}"} if counts else set())


def tapped(number: int, groups: Mapping[str, str]) -> StoredPipeline:
    """A version of a and b, with taps of these nodes' groups, applied at the minute of its number."""
    source = {"topic": "t", "id": "$.id", "eventTime": "timestamp"}
    nodes: list[dict[str, Any]] = [{"name": "a", "to": ["b"]}, {"name": "b"}]
    for node in nodes:
        if node["name"] in groups:
            node["taps"] = {"in": {"group": f"{node['name']}{groups[node['name']]}", **source}}
    document = {
        "apiVersion": "lagloss/v1",
        "kind": "Pipeline",
        "metadata": {"name": "orders"},
        "spec": {"nodes": nodes},
    }
    return StoredPipeline("orders", number, number * 60_000, Definition.model_validate(document))


def test_taps_see_nothing_of_a_window_since_a_version_that_has_others() -> None:
    versions = Versions([tapped(1, {"a": "g", "b": "g"}), tapped(2, {"a": "g", "b": "h"}), tapped(3, {"a": "h"})])
    assert versions.seen_until(60) == {"b": 120_000, "a": 180_000}
    assert versions.seen_until(120) == {"a": 180_000, "b": 180_000}
    assert versions.seen_until(180) == {}
    later = versions.plus([tapped(4, {"a": "h", "b": "g"})])
    assert later.seen_until(180) == {"b": 240_000 - 3_600_000}, "its processes may have ended before it was tapped"
    assert later.seen_until(120) == {"a": 180_000, "b": 180_000}
    unreadable = versions.plus([], [(4, 250_000)])
    assert unreadable.seen_until(180) == {"a": 250_000, "b": 250_000}
    assert unreadable.seen_until(60) == {"b": 120_000, "a": 180_000}


def test_definitions_of_earlier_versions_are_not_held() -> None:
    every = [stored(number) for number in range(1, 3 * PARSED)]
    held = [weakref.ref(version.definition) for version in every]
    versions = Versions(every[:5]).plus(every[5:])
    del every
    gc.collect()
    assert [reference() is not None for reference in held] == [False] * (2 * PARSED - 1) + [True] * PARSED
    assert versions.at(2 * WINDOW_S) is versions.at(2 * WINDOW_S), "what was unpacked serves the next windows, too"
