"""CSV that a spreadsheet may open."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.queries.csv_lines import csv_lines


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=2, max_size=2)))
def test_what_is_written_is_read_again_and_never_a_formula(rows: list[list[str]]) -> None:
    text = "".join(csv_lines(("a", "b"), rows))
    read = list(csv.reader(io.StringIO(text, newline="")))
    assert read[0] == ["a", "b"]
    assert [[cell.removeprefix("'") for cell in row] for row in read[1:]] == [
        [cell.removeprefix("'") for cell in row] for row in rows
    ]
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for row in read for cell in row)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@a", "\ta", "\ra"])
def test_a_text_that_would_be_computed_gets_an_apostrophe(text: str) -> None:
    line = list(csv_lines(("a",), [[text]]))[1]
    assert next(csv.reader(io.StringIO(line, newline=""))) == [f"'{text}"]


def test_numbers_stay_numbers_and_none_is_empty() -> None:
    assert list(csv_lines(("a", "b"), [[-1.5, None]])) == ["a,b\r\n", "-1.5,\r\n"]
