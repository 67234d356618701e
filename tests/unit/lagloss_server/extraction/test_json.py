"""JSON records: what is read of them against Python's json, on records that are whole, odd and broken."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lagloss_server.extraction import json_format, kinds
from lagloss_server.extraction.columns import PartColumn
from lagloss_server.extraction.formats import Reader
from lagloss_server.extraction.json_format import JsonReader
from lagloss_server.model.expressions import Path

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


def read_parts(read: Reader, records: list[bytes]) -> list[list[Any] | None]:
    """Each record's parts as such pairs, None if it is not of the reader's format."""
    rows = [read(record) for record in records]
    good = [row for row in rows if row is not None]
    columns = [PartColumn.of_values(part) for part in zip(*good, strict=True)]
    pairs = iter([[part_at(column, row) for column in columns] for row in range(len(good))])
    return [None if row is None else next(pairs) for row in rows]


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
        case bytes():
            return kinds.BYTES, document
        case str():
            try:
                return kinds.TEXT, document.encode()
            except UnicodeEncodeError:
                return kinds.OTHER, None
        case _:
            return kinds.OTHER, None


def read_slowly(text: bytes, paths: list[Path]) -> list[Any] | None:
    try:
        document = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return [look(document, path) for path in paths]


def check(texts: list[bytes]) -> None:
    for paths in (PATHS, [path for path in PATHS if path], PATHS[1:4]):  # the last skips what no path leads to
        for text, parts in zip(texts, read_parts(JsonReader(paths).read, texts), strict=True):
            assert repr(parts) == repr(read_slowly(text, paths)), text  # by which NaN is itself


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
@example(
    [b'"\\udc00"', b'"\\ud83c\\udf89"', b'"\\ud83c\\ud83c\\udf89"', b'{"\\udfff":1,"id":2}', b'"\\ud800a"', b'"\\uD8"']
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
    whole, cut, plain = read_parts(JsonReader(PATHS).read, [text, text[:-1], b"{}"])
    assert cut is None
    assert plain is not None
    assert (whole is None) == (depth == 100_000)


def test_plain_records_are_all_read_by_the_fast_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    record = {
        "id": "8d88348a", "at": "2026-11-25T09:00:00Z", "a": {"b": 17, "c": {"id": -4.25}, "name": "Zoë 🎉 \n \\ \""},
        "items": [{"id": True}, {}, None], "more": [[], {}, [1.5e300, -0], False],
        "ä": 1764064512.1234567, "odd name": "a\nb",
    }  # fmt: skip
    texts = [
        json.dumps(record, ensure_ascii=escaped, indent=indent).encode()
        for escaped in (False, True)
        for indent in (None, 2)
    ]
    check(texts)
    monkeypatch.delattr(json_format, "load_json")
    assert None not in read_parts(JsonReader(PATHS).read, texts)


def test_any_text_is_a_name() -> None:
    for name in ("", "id", "ä", 'a"b', "a\\", "\n", "\0", "🎉", "x" * 1_000):
        text = json.dumps({"other": {name: 1}, name: {name: 7}, "rest": [name]}, ensure_ascii=False).encode()
        assert JsonReader([(name, name)]).read(text) == [7]


def test_a_decimal_is_the_float_that_python_reads() -> None:
    numbers = [
        f"{whole}.{fraction}"
        for whole in (0, 1, 1732178400, 99999999)
        for fraction in ("1", "123", "999999", "9999998", "005", "1" * 30)
    ]
    parts = read_parts(JsonReader([()]).read, [number.encode() for number in numbers])
    assert parts == [[(kinds.FLOAT, float(number))] for number in numbers]


def test_an_integer_of_any_length_is_one_and_no_other_field_suffers_by_it() -> None:
    texts = [b'{"id":"a","a":{"b":' + b"7" * digits + b"}}" for digits in (20, 400, 1_000, 5_000, 100_000)]
    parts = read_parts(JsonReader([("id",), ("a", "b")]).read, texts)
    assert [row[0] for row in parts if row] == [(kinds.TEXT, b"a")] * len(texts)
    assert [row[1][0] for row in parts if row] == [kinds.LARGE_INT] * 3 + [kinds.OTHER] * 2
