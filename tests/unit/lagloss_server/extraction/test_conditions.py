"""Conditions on records, against plain Python with three truth values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.extraction.conditions import FALSE, TRUE, UNKNOWN, judge
from lagloss_server.extraction.values import Uuid
from lagloss_server.model.expressions import (
    Comparison,
    ConditionExpression,
    Exists,
    Junction,
    Negation,
    RecordPart,
    Test,
)
from tests.unit.lagloss_server.extraction.test_ids_and_times import UUID_, parts_of

A, B = RecordPart("value", ("a",)), RecordPart("value", ("b",))
UNREAD, TOMBSTONE = object(), object()


def judged(text: str, **columns: list[Any]) -> list[int]:
    names = {A: columns.get("a", [...]), B: columns.get("b", [...] * len(columns.get("a", [...])))}
    parts = {
        part: parts_of([... if value is UNREAD else value for value in column])[0] for part, column in names.items()
    }
    unread = {part: np.array([value is UNREAD for value in column]) for part, column in names.items()}
    return judge(ConditionExpression.parse(text).test, parts, unread).tolist()


def passing(text: str, *values: Any) -> list[Any]:
    return [value for value, truth in zip(values, judged(text, a=list(values)), strict=True) if truth == TRUE]


def test_values_are_equal_to_literals_of_their_kind_only() -> None:
    values = ["1", b"1", 1, 1.0, True, None, "one", ...]
    assert passing('$.a == "1"', *values) == ["1", b"1"]
    assert passing("$.a == 1", 1, "1", 2, None) == [1]
    assert passing("$.a == 1", 1.0, True) == [1.0]
    assert passing("$.a == 1.0", 1, 1.5) == [1]
    assert passing("$.a == 1.5", 1, 1.5) == [1.5]
    assert passing("$.a == true", *values) == [True]
    assert passing("$.a == false", False, 0, None) == [False]
    assert passing("$.a == null", *values) == [None]
    assert passing("exists $.a", *values) == values[:-1]


def test_large_integers_and_uuids_are_compared_as_a_whole() -> None:
    assert passing(f"$.a == {2**70}", 2**70, 2**70 + 1, 2**62) == [2**70]
    assert passing(f"$.a == {10**400}", 2**70, 1.5) == []
    assert passing(f'$.a == "{UUID_}"', Uuid(UUID_.bytes), Uuid(bytes(16)), str(UUID_)) == [UUID_.bytes, str(UUID_)]
    assert passing(f'$.a == "{str(UUID_).upper()}"', Uuid(UUID_.bytes)) == []


def test_what_is_not_there_differs_from_nothing() -> None:
    assert passing('$.a != "x"', "x", "y", None, 1, ...) == ["y", None, 1]
    assert passing('not $.a == "x"', "x", "y") == ["y"]
    assert judged('not $.a == "x"', a=[...]) == [TRUE]
    assert passing('$.a in ["x", 1, null]', "x", 1, None, "y", 2) == ["x", 1, None]
    assert passing('not $.a in ["x"]', "x", "y") == ["y"]


@pytest.mark.parametrize(
    ("text", "truth"),
    [("$.a == 1 and $.b == 1", UNKNOWN), ("$.a == 1 and $.b == 2", FALSE), ("$.a == 1 or $.b == 1", TRUE),
     ("$.a == 1 or $.b == 2", UNKNOWN), ("not $.a == 1", UNKNOWN), ("exists $.a", UNKNOWN), ("$.a != 1", UNKNOWN)],
)  # fmt: skip
def test_what_could_not_be_read_leaves_a_condition_open_unless_the_rest_decides(text: str, truth: int) -> None:
    assert judged(text, a=[UNREAD], b=[1]) == [truth]


def any_test_of(parts: Sequence[RecordPart], literals: Sequence[tuple[Any, ...]]) -> st.SearchStrategy[Test]:
    """Draw any test of these parts, whose comparisons are with these literals."""
    leaves = st.one_of(
        st.sampled_from(parts).map(Exists),
        st.builds(Comparison, st.sampled_from(parts), st.sampled_from(literals), st.booleans()),
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.builds(Negation, inner)
            | st.builds(Junction, st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3).map(tuple))
        ),
        max_leaves=8,
    )


def truth_of(test: Test, row: Mapping[RecordPart, Any]) -> bool | None:
    """Return what a test says of a record, as obviously as can be; None: unknown."""
    match test:
        case Negation(test=inner):
            found = truth_of(inner, row)
            return None if found is None else not found
        case Junction(kind=kind, tests=tests):
            found_all = [truth_of(each, row) for each in tests]
            decisive = kind == "or"
            return decisive if decisive in found_all else None if None in found_all else not decisive
    value = row[test.part]
    if value is UNREAD:
        return None
    if value is TOMBSTONE:  # null, and nothing exists in it, itself included
        return isinstance(test, Comparison) and (None in test.values) != test.negated
    if isinstance(test, Exists) or value is ...:
        return value is not ...
    equal = any(type(value) is type(each) and value == each for each in test.values)
    return equal != test.negated


values = st.sampled_from([1, 2, "x", None, ..., True, UNREAD])


@given(
    any_test_of([A, B], [(1,), ("x",), (None, True), (2, "x")]),
    st.lists(st.tuples(values, values), min_size=1, max_size=6),
)
def test_any_condition_is_judged_as_the_oracle_does(test: Test, rows: list[tuple[Any, Any]]) -> None:
    columns = {A: [a for a, _ in rows], B: [b for _, b in rows]}
    parts = {part: parts_of([... if v is UNREAD else v for v in column])[0] for part, column in columns.items()}
    unread = {part: np.array([v is UNREAD for v in column]) for part, column in columns.items()}
    expected = [truth_of(test, {A: a, B: b}) for a, b in rows]
    assert judge(test, parts, unread).tolist() == [{None: UNKNOWN, True: TRUE, False: FALSE}[each] for each in expected]
