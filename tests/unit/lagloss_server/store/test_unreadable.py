"""Stored rows, whatever stands in one of them: that one is set aside by name, and all others are read."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lagloss_server.model.definition import as_document, load_definition
from lagloss_server.store import store as stored
from lagloss_server.store import tokens, users
from lagloss_server.store.results import unpack_rollup, unpack_window
from lagloss_server.store.tap_rows import read_taps_of
from lagloss_server.store.unreadable import NEWER, RESULTS, UnreadableRow, UnreadableRows, read_each
from lagloss_server.sums.rollup import Rollup
from tests.support.window_documents import chain, document, result_of, window_of

ROOT = Path(__file__).parents[4]
DOCUMENTS = [
    as_document(load_definition(ROOT / "pipeline_under_test" / name))
    for name in ("stream/clicks.yaml", "stream/clicks-tapped.yaml", "stream/shadow.yaml", "batch/scores-files.yaml")
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def row(name: str, document: Any, version: int = 1, applied_at: int = 1_795_000_000_000) -> Any:
    text = document if isinstance(document, str) else json.dumps(document)
    return SimpleNamespace(name=name, version=version, applied_at=applied_at, deleted_at=None, definition=text)


def named(document: dict[str, Any], name: str) -> dict[str, Any]:
    return document | {"metadata": document["metadata"] | {"name": name}}


def places(part: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a document, the document itself too."""
    yield path
    steps = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for step, inner in steps:
        yield from places(inner, (*path, step))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    whole = copy.deepcopy(document)
    part = whole
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return whole


@settings(max_examples=40)
@given(st.data())
def test_whatever_stands_in_one_definition_all_others_are_read(data: st.DataObject) -> None:
    rows = [row(f"p{at}", named(document, f"p{at}")) for at, document in enumerate(DOCUMENTS)]
    at = data.draw(st.sampled_from(range(len(rows))))
    broken = json.loads(rows[at].definition)
    broken = changed(broken, data.draw(st.sampled_from(list(places(broken)))), data.draw(ANYTHING))
    rows[at] = row(f"p{at}", broken)
    found = stored._read_versions(rows)
    others = [f"p{other}" for other in range(len(rows)) if other != at]
    assert [each.name for each in found if each.name != f"p{at}"] == others
    assert [each.pipeline for each in found.unreadable] == [] if len(found) == len(rows) else [f"p{at}"]
    for each in found:  # what services make of a definition once it is read
        _ = each.definition.graph, each.definition.taps, each.definition.sample
    for each in found.unreadable:
        assert each.why.isprintable()
        assert len(each.why) <= 200


@settings(max_examples=40)
@given(st.data())
def test_a_key_that_only_a_newer_version_knows_says_so_with_its_place(data: st.DataObject) -> None:
    document = named(data.draw(st.sampled_from(DOCUMENTS)), "orders")
    mappings = [path for path in places(document) if isinstance(_at(document, path), dict)]
    of_names = (
        {"labels"},
        {"taps"},
        {"spans"},
        {"destinations"},
        {"checkpoints"},
        {"extraction"},
    )  # whose keys are anybody's
    path = data.draw(st.sampled_from([path for path in mappings if not path or {path[-1]} not in of_names]))
    later = changed(document, (*path, "futureField"), 1)
    (aside,) = stored._read_versions([row("orders", later, 3)]).unreadable
    assert aside.place == "definition orders/3"
    assert "futureField" in aside.why or "cannot be read" in aside.why
    if "taps" not in path:  # a tap is one of several kinds of mapping
        assert aside.why.startswith(NEWER), aside.why


def _at(part: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        part = part[step]
    return part


@pytest.mark.parametrize(
    "document",
    [
        "",
        "null",
        "[" * 100_000,
        "9" * 5_000,
        json.dumps(named(DOCUMENTS[0], "another")),
        json.dumps(named(DOCUMENTS[0], "orders") | {"apiVersion": "lagloss/v2"}),
    ],
    ids=["empty", "null", "deep", "huge", "another name", "another format"],
)
def test_no_text_of_a_definition_ends_the_reading(document: str) -> None:
    found = stored._read_versions([row("orders", document), row("good", named(DOCUMENTS[0], "good"))])
    assert [each.name for each in found] == ["good"]
    assert [each.place for each in found.unreadable] == ["definition orders/1"]
    assert (NEWER in found.unreadable[0].why) is ("lagloss/v2" in document)


@pytest.mark.parametrize("applied_at", [-1, 1 << 62])
def test_a_definition_of_no_time_is_set_aside(applied_at: int) -> None:
    found = stored._read_versions([row("orders", named(DOCUMENTS[0], "orders"), applied_at=applied_at)])
    assert (len(found), len(found.unreadable)) == (0, 1)


def token_row(**changes: Any) -> Any:
    good = {"id": "a1", "pipeline": "orders", "scope": "intake", "rate": None, "secret_hash": bytes(32)}
    return SimpleNamespace(**good | {"created_at": 1_795_000_000_000, "revoked_at": None} | changes)


@pytest.mark.parametrize(
    "changes", [{"scope": "read"}, {"scope": ""}, {"rate": -1}, {"secret_hash": b""}, {"created_at": 1 << 62}]
)
def test_a_token_that_this_version_cannot_judge_lets_no_caller_in(changes: dict[str, Any]) -> None:
    found = read_each(
        [token_row(id="good"), token_row(**changes)],
        tokens._token,
        lambda row, why: UnreadableRow("token", row.pipeline, row.id, why),
    )
    assert [token.id for token in found] == ["good"]
    assert [each.place for each in found.unreadable] == ["token orders/a1"]


@given(ANYTHING, ANYTHING)
def test_a_user_of_an_unknown_role_or_without_groups_gets_nothing(role: Any, groups: Any) -> None:
    known = role in ("viewer", "operator")
    listed = isinstance(groups, list) and all(isinstance(group, str) for group in groups)
    made = users._readable(
        SimpleNamespace(name="ann", role=role, groups=groups, created_at=None, password_hash="")  # type: ignore[arg-type]
    )
    assert (made is not None) is (known and listed)


@given(ANYTHING)
def test_a_tap_of_any_document_costs_no_other(document: Any) -> None:
    (tap, *_) = load_definition(ROOT / "pipeline_under_test" / "stream" / "clicks-tapped.yaml").taps
    rows = [SimpleNamespace(tap=each, pipeline="clicks", node="n") for each in (document, tap.document())]
    found = read_taps_of(rows)  # type: ignore[arg-type]
    assert found[-1][0] == tap
    assert [each.place for each in found.unreadable] == ["tap clicks/n"]


def test_what_a_process_has_set_aside_is_replaced_kind_by_kind() -> None:
    aside = UnreadableRows()
    assert aside.health_note() == "ok"
    aside.replace("definition", [UnreadableRow("definition", "orders", "3", "no")])
    aside.replace("silence", [UnreadableRow("silence", "", "7d1c", "neither")])
    assert aside.health_note() == "ok; unreadable: definition orders/3 (no), silence 7d1c (neither)"
    assert aside.counts() == {"definition": 1, "silence": 1}
    aside.replace("definition", [])
    assert aside.counts() == {"silence": 1}


def test_a_result_that_cannot_be_unpacked_is_named_until_it_can() -> None:
    window = result_of(window_of(document(chain(), 600)))
    with_revision = unpack_window("chain", 600, b"\0", revision=2)
    assert unpack_window("chain", 600, b"not packed") is None
    assert with_revision is None
    assert unpack_rollup("chain", "hour", 3_600, b"\xff") is None
    try:
        assert [row.place for row in RESULTS] == [
            "rollup chain/hour/3600",
            "window chain/600",
            "window chain/600/2",
        ]
        assert UnreadableRows().counts() == {"rollup": 1, "window": 2}
        assert "window chain/600 (cannot be read: " in UnreadableRows().health_note()
        assert unpack_window("chain", 600, window.pack()) == window
        assert [row.place for row in RESULTS] == ["rollup chain/hour/3600", "window chain/600/2"]
    finally:
        assert unpack_window("chain", 600, window.pack(), revision=2) == window
        assert unpack_rollup("chain", "hour", 3_600, Rollup().pack()) is not None
    assert list(RESULTS) == []
