"""YAML files: several documents in one text, and text that YAML reads as something else."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from lagloss_server.base.errors import BadDefinition
from lagloss_server.base.fields import MAX_DURATION_MS, Strict, parse_duration_ms, write_duration
from lagloss_server.base.yaml_files import Document, load_documents, parse_documents, parse_yaml, write_documents
from lagloss_server.model.definition import parse_definition

PIPELINE = """apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: NAME, labels: {LABEL: VALUE}}
spec:
  nodes:
    - {name: NODE, to: [TO], group: g, cluster: CLUSTER}
    - {name: TO, to: [z]}
    - {name: z}
"""
PLACES = {"NAME": "a", "LABEL": "team", "VALUE": "web", "NODE": "b", "TO": "c", "CLUSTER": "eu"}
MISREAD = {
    "no": "a boolean",
    "On": "a boolean",
    "true": "a boolean",
    "2026-11-26": "a date",
    "2026-11-26T12:00:00Z": "a date",
    "12:30:45": "an integer",
    "0x10": "an integer",
    "012": "an integer",
    "1_000": "an integer",
    "1.5": "a number",
    ".inf": "a number",
    "1.0e+3": "a number",
    "null": "nothing",
    "~": "nothing",
}
AS_TEXT = ["1e3", "1e10", "0o17", "y", "N", "a-b", "2026-11", "nope"]


class Item(Strict):
    a: int = 0


def pipeline(place: str, scalar: str) -> str:
    text = PIPELINE
    for word, value in PLACES.items():
        text = text.replace(word, scalar if word == place else value)
    return text


def documents(text: str) -> list[Document]:
    return parse_documents(text, "items.yaml")


def refusal(place: str, scalar: str) -> str | None:
    try:
        parse_definition(pipeline(place, scalar), "p.yaml")
    except BadDefinition as error:
        return str(error)
    return None


@pytest.mark.parametrize("place", [place for place in PLACES if place != "CLUSTER"])
@pytest.mark.parametrize("scalar", MISREAD)
def test_a_name_that_yaml_reads_as_something_else_is_refused_with_what_it_became(place: str, scalar: str) -> None:
    message = refusal(place, scalar)
    assert message is not None
    assert f"YAML reads {scalar} as {MISREAD[scalar]}, so quote it: '{scalar}'" in message
    assert message.startswith(f"p.yaml:{3 if place in ('NAME', 'LABEL', 'VALUE') else 6}: "), message
    assert "expected text" in message or "expected a key that is text" in message


@pytest.mark.parametrize("scalar", [scalar for scalar in MISREAD if MISREAD[scalar] != "nothing"])
def test_so_is_the_name_of_a_cluster_which_nothing_leaves_out(scalar: str) -> None:
    assert f"YAML reads {scalar} as" in str(refusal("CLUSTER", scalar))
    assert refusal("CLUSTER", "null") is None


@pytest.mark.parametrize("scalar", ["no", "12:30:45", "0x10", "null"])
def test_quoted_it_is_the_text_that_was_written(scalar: str) -> None:
    definition = parse_definition(pipeline("VALUE", f"'{scalar}'"))
    assert definition.metadata.labels == {"team": scalar}


@given(
    st.sampled_from([*MISREAD, *AS_TEXT])
    | st.from_regex(r"[-+.:0-9_eExobTZ]{1,12}", fullmatch=True)
    | st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,9}", fullmatch=True),
    st.sampled_from([place for place in PLACES if place != "CLUSTER"]),
)
def test_whatever_scalar_stands_for_a_name_it_is_that_text_or_refused(scalar: str, place: str) -> None:
    try:
        value = yaml.safe_load(f"x: [{scalar}]")["x"][0]
    except (yaml.YAMLError, ValueError):
        assume(False)
    assume(scalar not in PLACES.values() and scalar != "z")
    message = refusal(place, scalar)
    if isinstance(value, str):
        assert message is None or "so quote it" not in message
        assert message is not None or scalar == value
    elif value is None or isinstance(value, bool | int | float) or hasattr(value, "isoformat"):
        assert message is not None
        assert f"YAML reads {scalar} as" in message
        assert f"so quote it: '{scalar}'" in message


@given(st.dictionaries(st.text(), st.text() | st.sampled_from([*MISREAD, *AS_TEXT])))
def test_texts_are_written_so_that_they_are_read_as_texts(texts: dict[str, str]) -> None:
    assert yaml.safe_load(write_documents([texts])) == texts


@pytest.mark.parametrize("text", AS_TEXT[:5])
def test_texts_that_other_readers_of_yaml_take_for_numbers_are_quoted(text: str) -> None:
    assert write_documents([{"a": text}]) == f'---\na: "{text}"\n'


def test_each_document_of_a_text_is_read_with_its_own_lines() -> None:
    first, second, third = documents("# items\n---\na: 1\n---\n# nothing\n---\na: b\n")
    assert first.read(Item).a == 1
    assert (first.is_empty, second.is_empty, third.is_empty) == (False, True, False)
    with pytest.raises(BadDefinition) as refused:
        third.read(Item)
    assert str(refused.value) == "items.yaml:7: document 3: a: expected an integer, found 'b'"


def test_a_document_that_is_alone_has_no_number() -> None:
    with pytest.raises(BadDefinition, match=r"^items.yaml:3: a: expected an integer"):
        documents("\n\na: b\n")[0].read(Item)
    assert documents("") == documents("# nothing\n") == []


def test_what_is_not_yaml_is_refused_with_the_number_of_its_document() -> None:
    with pytest.raises(BadDefinition, match=r"^items.yaml:4: document 2: expected YAML, found the key a twice"):
        documents("a: 1\n---\na: 2\na: 3\n")


def test_aliases_are_refused_in_every_document() -> None:
    with pytest.raises(BadDefinition, match=r"^items.yaml:4: document 2: expected YAML, found the alias"):
        documents("a: 1\n---\na: &x 1\nb: *x\n")


def test_a_file_of_one_document_refuses_another_one() -> None:
    with pytest.raises(BadDefinition, match=r"^items.yaml:3: expected a single document, found another one"):
        parse_yaml(Item, "a: 1\n---\na: 2\n", "items.yaml")


def test_a_problem_has_the_note_of_its_place() -> None:
    (document,) = documents("a: 1")
    with pytest.raises(BadDefinition, match=r"a: expected an integer, found 'x' \(from elsewhere\)$"):
        document.read(Item, {"a": "x"}, {("a",): "from elsewhere"})


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadDefinition, match="expected a readable UTF-8 file"):
        load_documents(path)


@given(st.integers(0, MAX_DURATION_MS) | st.integers(0, 500).map(lambda minutes: minutes * 60_000))
def test_a_duration_is_written_as_it_is_read(ms: int) -> None:
    assert parse_duration_ms(write_duration(ms)) == ms


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0s"), (1_500, "1500ms"), (60_000, "1m"), (90_000, "90s"), (7_200_000, "2h"), (86_400_000, "1d")],
)
def test_a_duration_is_written_in_the_largest_unit_without_a_fraction(ms: int, text: str) -> None:
    assert write_duration(ms) == text
