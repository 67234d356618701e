"""Texts that take a reader's time or memory: each is refused, or costs no more than any other of its length."""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.base.errors import BadDefinition
from lagloss_server.base.fields import NOT_STORABLE, Strict
from lagloss_server.base.invalid import Invalid, write_path
from lagloss_server.base.yaml_files import parse_yaml
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.matchers import Matcher

DEFINITION = """apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: orders}
spec:
  nodes: [{name: shop}]
"""


class AnyFile(Strict):
    a: object = None


def merged(levels: int) -> str:
    """A few hundred bytes, each level of which doubles what stands for them."""
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{at}: &a{at} {{<<: [*a{at - 1}, *a{at - 1}]}}" for at in range(1, levels)]
    return "\n".join(lines)


def nested(levels: int) -> str:
    return "\n".join(f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]" for at in range(1, levels))


@pytest.mark.parametrize("text", [merged(30), "a: &a [1]\nb: *a", nested(9)], ids=["merge keys", "an alias", "nested"])
def test_aliases_are_refused_at_once(text: str) -> None:
    began = time.monotonic()
    with pytest.raises(BadDefinition, match="write out the value"):
        parse_yaml(AnyFile, text, "x.yaml")
    assert time.monotonic() - began < 1


def test_where_an_alias_stands_is_named() -> None:
    with pytest.raises(
        BadDefinition, match=r"orders.yaml:7: expected YAML, found the alias \*n: aliases are not supported"
    ):
        parse_definition(DEFINITION + "  grace: &n 60s\n  maxWait: *n\n", "orders.yaml")


UNSTORABLE = [r'"\0"', r'"\ud800"', r'"a \udc00 b"', r'"\udc00\ud800"']


@pytest.mark.parametrize("text", UNSTORABLE)
@pytest.mark.parametrize(
    ("place", "field", "line"),
    [
        ("  description: TEXT", "spec.description", 6),
        ("  labels: {team: TEXT}", "spec.labels.team", 6),
        ("  labels:\n    TEXT: shop", "spec.labels", 6),
        ("  jobs:\n    - dag: TEXT", "spec.jobs[0].dag", 7),
        ("  what: [1, TEXT]", "spec.what[1]", 6),
    ],
)
def test_text_that_postgresql_cannot_hold_is_refused_by_its_place(text: str, place: str, field: str, line: int) -> None:
    with pytest.raises(BadDefinition) as raised:
        parse_definition(f"{DEFINITION}{place.replace('TEXT', text)}\n", "x.yaml")
    problem = raised.value.facts["problem"]
    assert isinstance(problem, Invalid)
    assert (write_path(problem.path), problem.problem, raised.value.facts["line"]) == (field, NOT_STORABLE, line)


def test_both_halves_of_a_surrogate_pair_are_one_character_as_in_json() -> None:
    told = parse_yaml(AnyFile, r'{"a": {"\ud83d\ude00": ["x\ud83d\ude00", "\ufeff"]}}', "x.json")
    assert told.a == {"\U0001f600": ["x\U0001f600", "\ufeff"]}


@given(st.recursive(st.text(st.characters()), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_what_is_read_can_be_stored_and_is_what_was_written(value: object) -> None:
    """JSON with every character beyond ASCII escaped: what most programs write."""
    written = json.dumps({"a": value})
    try:
        read = parse_yaml(AnyFile, written, "x.json").a
    except BadDefinition as bad:
        assert "\\u0000" in written or re.search(r"\\ud[89a-f]", written), bad  # noqa: PT017
    else:
        assert read == json.loads(written)["a"]
        assert json.dumps(read, ensure_ascii=False).encode()
        assert "\\u0000" not in written


@pytest.mark.parametrize("duration", ["9" * 400 + "s", "1" + "0" * 30 + "d", "367d", "31622401s"])
def test_a_duration_has_a_bound(duration: str) -> None:
    with pytest.raises(BadDefinition, match=r"spec.grace: expected a duration"):
        parse_definition(f"{DEFINITION}  grace: {duration}\n")


def test_no_pattern_of_a_silence_takes_longer_than_its_text() -> None:
    matcher = Matcher.parse(r"rule=~(a+)+b")
    began = time.monotonic()
    assert not matcher.matches({"rule": "a" * 5_000})
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("text", ["rule=~(?=a)b", r"rule=~(a)\1", "rule=~("])
def test_a_pattern_that_re2_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected an RE2 regular expression"):
        Matcher.parse(text)


@pytest.mark.parametrize(
    ("pattern", "value", "matches"),
    [
        ("lag.*", "lag/node/mid", True),
        ("lag", "lag/node", False),
        ("a|b", "b", True),
        ("", "", True),
        ("ü.", "üß", True),
    ],
)
def test_patterns_match_the_whole_value(pattern: str, value: str, matches: bool) -> None:
    assert Matcher.parse(f"rule=~{pattern}").matches({"rule": value}) is matches
    assert Matcher.parse(f"rule!~{pattern}").matches({"rule": value}) is not matches


def test_a_key_that_stands_twice_is_named() -> None:
    taps = "{out: {topic: t, id: key, eventTime: timestamp},\n out: {topic: u, id: key, eventTime: timestamp}}"
    text = "kind: Pipeline\nspec: {nodes: [{name: a, taps: " + taps + "}]}"
    with pytest.raises(BadDefinition, match=r"orders.yaml:3: expected YAML, found the key out twice"):
        parse_definition(text, "orders.yaml")
