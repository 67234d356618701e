"""An answer is never larger than a response may be, loses the ends of lists only, and says how much it lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import CallToolResult, TextContent

from dashboard.mcp.answers import MAX_BYTES, Answer, AnswerTooLarge, as_text, fitted

NARROW = "Give a shorter range."
SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=40)
ITEMS = st.recursive(SCALARS, lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=4), max_leaves=6)
DOCUMENTS = st.dictionaries(
    st.text("abc", min_size=1, max_size=3), SCALARS | st.lists(ITEMS | st.lists(ITEMS, max_size=20), max_size=40)
)
MOST = 6_000


def sent(document: dict[str, Any]) -> list[int]:
    """The sizes of the response, as stdio and as HTTP send it."""
    result = CallToolResult(content=[TextContent(text=as_text(document))], structured_content=document)
    response = {"jsonrpc": "2.0", "id": 1, "result": result.model_dump(mode="json", by_alias=True, exclude_none=True)}
    on_stdio = result.model_dump_json(by_alias=True, exclude_unset=True).encode()
    return [len(on_stdio), len(json.dumps(response, separators=(",", ":")))]


def test_windows_of_a_day_fit_as_the_newest_of_them() -> None:
    windows = [{"window_start": f"{minute:04}", "name": "ä\"'\\" * 100} for minute in range(1_440, 0, -1)]
    document = fitted(Answer({"windows": windows}), NARROW)
    (left_out,) = document["left_out"]
    assert document["windows"] == windows[: len(document["windows"])]
    assert left_out == {"list": "windows", "count": 1_440 - len(document["windows"])}
    assert document["narrow"] == NARROW
    assert 0.9 * MAX_BYTES < max(sent(document)) <= MAX_BYTES


def test_an_answer_that_fits_lacks_nothing_and_says_so() -> None:
    assert fitted(Answer({"windows": [1, 2]}), NARROW) == {"windows": [1, 2], "left_out": [], "narrow": None}


def test_items_that_were_not_read_count_as_left_out() -> None:
    document = fitted(Answer({"resolved": [1]}, {"resolved": 7, "open": 0}), NARROW)
    assert document["left_out"] == [{"list": "resolved", "count": 7}]
    assert document["narrow"] == NARROW


def test_lists_within_the_only_item_of_a_list_are_cut() -> None:
    document = fitted(Answer({"windows": [{"links": ["x" * 1_000] * 500, "nodes": ["y"]}]}), NARROW)
    ((window,),) = (document["windows"],)
    assert document["left_out"] == [{"list": "windows[0].links", "count": 500 - len(window["links"])}]
    assert window["nodes"] == ["y"]


def test_one_item_that_is_too_large_is_an_error_with_a_way_out() -> None:
    with pytest.raises(AnswerTooLarge, match=NARROW):
        fitted(Answer({"windows": ["x" * MAX_BYTES]}), NARROW)


@given(DOCUMENTS, st.dictionaries(st.text("abc", min_size=1), st.integers(0, 9), max_size=3))
def test_any_document_is_cut_to_the_limit_and_what_it_lacks_adds_up(
    document: dict[str, Any], unread: dict[str, int]
) -> None:
    try:
        whole = fitted(Answer(document, unread), NARROW, MOST)
    except AnswerTooLarge:
        return
    assert max(sent(whole)) <= MOST
    counts = {entry["list"]: entry["count"] - unread.get(entry["list"], 0) for entry in whole["left_out"]}
    for name, value in document.items():
        if isinstance(value, list):
            assert len(whole[name]) + counts.get(name, 0) == len(value)
        else:
            assert whole[name] == value
