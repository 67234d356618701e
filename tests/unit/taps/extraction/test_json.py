"""JSON records: the compiled walk against Python's json, on records that are whole, odd and broken."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lagloss_server.model.expressions import Path
from taps.extraction import kinds
from taps.extraction.columns import ByteColumn, PartColumn, PartTable
from taps.extraction.json_format import JsonFinder
from taps.extraction.json_walk import find_in_json
from taps.extraction.trie import FlatTrie, PathNode

PATHS: list[Path] = [
    (), ("id",), ("a", "b"), ("a", "c", "id"), ("items", 0, "id"), ("items", 2), ("at",), ("odd name",), ("ä",), ("a",),
]  # fmt: skip


def part_at(column: PartColumn, row: int) -> Any:
    """A part as a pair of its kind and its value."""
    kind, number = int(column.kinds[row]), int(column.numbers[row])
    start = int(column.starts[row])
    span = column.data[start : start + int(column.sizes[row])].tobytes()
    match kind:
        case kinds.ABSENT | kinds.NULL | kinds.OTHER:
            return kind, None
        case kinds.FLOAT:
            return kind, float(column.numbers[row : row + 1].view(np.float64)[0])
        case kinds.TEXT | kinds.BYTES | kinds.UUID | kinds.LARGE_INT:
            return kind, span
        case _:
            return kind, number


def look(document: Any, path: Path) -> Any:
    """The oracle: the same pair, by going through what Python's json makes."""
    for step in path:
        if not isinstance(document, dict if isinstance(step, str) else list):
            return kinds.ABSENT, None
        try:
            document = document[step]
        except (KeyError, IndexError):
            return kinds.ABSENT, None
    match document:
        case None:
            return kinds.NULL, None
        case bool():
            return kinds.BOOL, int(document)
        case int() if -(2**63) <= document < 2**63:
            return kinds.INT, document
        case int():
            return kinds.LARGE_INT, str(document).encode()
        case float():
            return kinds.FLOAT, document
        case str():
            try:
                return kinds.TEXT, document.encode()
            except UnicodeEncodeError:
                return kinds.OTHER, None
        case _:
            return kinds.OTHER, None


def read_slowly(text: bytes) -> list[Any] | None:
    try:
        document = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return [look(document, path) for path in PATHS]


def check(texts: list[bytes]) -> None:
    column = ByteColumn.of(texts)
    table = PartTable.of(column.data, len(PATHS), len(texts))
    rows = np.arange(len(texts))
    broken = set(JsonFinder(PATHS).find(column, rows, table).tolist())
    found = table.columns()
    for row, text in enumerate(texts):
        expected = read_slowly(text)
        assert (row in broken) == (expected is None), text
        if expected is not None:
            assert repr([part_at(each, row) for each in found]) == repr(expected), text  # by which NaN is itself


names = st.sampled_from(["id", "a", "b", "c", "items", "at", "odd name", "ä", "x", "", 'q"uote', "id\\", "\ud800"])
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**25), 10**25), st.integers(-1000, 1000),
    st.floats(), st.integers(-(10**400), 10**400), st.decimals(-(10**9), 10**9, places=3).map(float),
    st.text(max_size=12), st.sampled_from(["2026-11-25T09:00:00Z", "\ud800", "é\u2028🎉", "\x00\x1f"]),
)  # fmt: skip
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=5), max_leaves=20
)
texts = st.builds(
    lambda document, escaped, indent, lead: (lead + json.dumps(document, ensure_ascii=escaped, indent=indent)).encode(
        "utf-8", "surrogatepass"
    ),
    documents, st.booleans(), st.sampled_from([None, 1]),
    st.sampled_from(["", " ", "\n\t", "\ufeff", "\ufeff ", " \ufeff", "\ufeff\ufeff"]),
)  # fmt: skip


@st.composite
def broken_texts(draw: st.DrawFn) -> bytes:
    """A text with a byte changed, left out or put in, or cut off."""
    text = draw(texts)
    at = draw(st.integers(0, len(text)))
    piece = draw(
        st.binary(max_size=2)
        | st.sampled_from([b'"', b"\\", b"}", b",", b":", b"0", b"-", b"\\u12", b"\xff", b"NaN", b"-Infinity", b"Inf"])
    )
    return text[:at] + piece + text[at + draw(st.integers(0, 2)) :] if draw(st.booleans()) else text[:at]


@given(st.lists(texts | broken_texts() | st.binary(max_size=20), max_size=6))
@example(
    [b'{"id":1,"id":2}', b'{"a":{"b":1},"a":{"c":{"id":2}}}', b'{"\\u0069d":7}', b"[1,]", b"{,}", b"01", b"-", b"1."]
)
@example([b"-0", b"1e5", b"1E+2", b"0.1", b"123456789012345678", b"1234567890123456789", b"NaN", b"Infinity", b"1e999"])
@example(
    [
        b"Infinity",
        b"-Infinity",
        b"+Infinity",
        b"-NaN",
        b"nan",
        b"inf",
        b"Infinit",
        b"-I",
        b"N",
        b"NaNa",
        b"[NaN,-Infinity]",
    ]
)
@example([b"\xef\xbb\xbf", b"\xef\xbb", b"\xef\xbb\xbf1", "{}".encode("utf-16"), "{}".encode("utf-16-le"), b"{'id':1}"])
@example(
    [
        b'{"id":"a",}',
        b'{"id":1}//',
        b'{"id":1}\0',
        b'{"id":1}{"id":2}',
        b'{"id":1}\r\n',
        b"1e400",
        b"-1e400",
        b"0." + b"1" * 400,
    ]
)
@example([b"\xef\xbb\xbf{}", b'"\xc0\x80"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\xe2\x82"', b'{"\xff":1}'])
@example(
    [b'{"id":"' + b"x" * 62 + b'"}', b'{"id":"' + b"x" * 63 + b'"}', b'{"id":"' + b"x" * 200, b"tru", b"true", b"nul"]
)
def test_parts_are_those_that_pythons_json_finds_and_what_is_no_json_is_not(batch: list[bytes]) -> None:
    check(batch)


@pytest.mark.parametrize("depth", [63, 64, 65, 900, 100_000])
@pytest.mark.parametrize("open_close", [("[", "]"), ('{"a":', "}")])
def test_depth_is_bounded_and_no_crash(depth: int, open_close: tuple[str, str]) -> None:
    text = (open_close[0] * depth + "1" + open_close[1] * depth).encode()
    column = ByteColumn.of([text, text[:-1], b"{}"])
    table = PartTable.of(column.data, len(PATHS), 3)
    broken = JsonFinder(PATHS).find(column, np.arange(3), table).tolist()
    assert 1 in broken
    assert 2 not in broken
    assert (0 in broken) == (depth == 100_000)


def test_plain_records_are_all_found_by_the_compiled_walk() -> None:
    record = {
        "id": "8d88348a", "at": "2026-11-25T09:00:00Z", "a": {"b": 17, "c": {"id": -4.25}, "name": "Zoë 🎉 \n \\ \""},
        "items": [{"id": True}, {}, None], "more": [[], {}, [1.5e300, -0], False],
        "ä": 1764064512.1234567, "odd name": "a\nb",
    }  # fmt: skip
    texts = [json.dumps(record, ensure_ascii=False, indent=indent).encode() for indent in (None, 2)] * 100
    column = ByteColumn.of(texts)
    table = PartTable.of(column.data, len(PATHS), len(texts))
    assert find_in_json(column, FlatTrie.of(PathNode.of(PATHS)), table).all()
    check(texts)


def test_a_decimal_is_the_float_that_python_reads() -> None:
    numbers = [
        f"{whole}.{fraction}"
        for whole in (0, 1, 1732178400, 99999999)
        for fraction in ("1", "123", "999999", "9999998", "005", "1" * 30)
    ]
    column = ByteColumn.of([number.encode() for number in numbers])
    table = PartTable.of(column.data, 1, len(numbers))
    assert not JsonFinder([()]).find(column, np.arange(len(numbers)), table).size
    (found,) = table.columns()
    assert [part_at(found, row)[1] for row in range(len(numbers))] == [float(number) for number in numbers]


def test_an_integer_of_any_length_is_one_and_no_other_field_suffers_by_it() -> None:
    texts = [b'{"id":"a","a":{"b":' + b"7" * digits + b"}}" for digits in (20, 400, 1_000, 5_000, 100_000)]
    column = ByteColumn.of(texts)
    table = PartTable.of(column.data, len(PATHS), len(texts))
    assert not JsonFinder(PATHS).find(column, np.arange(len(texts)), table).size
    ids, numbers = (table.columns()[PATHS.index(path)] for path in (("id",), ("a", "b")))
    assert [part_at(ids, row) for row in range(len(texts))] == [(kinds.TEXT, b"a")] * len(texts)
    assert [part_at(numbers, row)[0] for row in range(len(texts))] == [kinds.LARGE_INT] * 3 + [kinds.OTHER] * 2
