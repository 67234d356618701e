"""Expressions of taps: read, refused with a reason, and written back as they were."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from lagloss_server.base.fields import Strict
from lagloss_server.model.expressions import (
    Comparison,
    ConditionExpression,
    Exists,
    IdExpression,
    Junction,
    Negation,
    RecordPart,
    Scalar,
    TimeExpression,
    write_part,
)


class Tap(Strict):
    id: IdExpression
    time: TimeExpression
    where: ConditionExpression | None = None


def value(*path: str | int) -> RecordPart:
    return RecordPart("value", path)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("$", value()),
        ("$.order_id", value("order_id")),
        ("$.a.b[0].c", value("a", "b", 0, "c")),
        ("$['odd name']['it\\'s']", value("odd name", "it's")),
        ('$["a.b"]', value("a.b")),
        ("$.@timestamp", value("@timestamp")),
        ("$.order-id", value("order-id")),
        ("$.größe", value("größe")),
        ("key", RecordPart("key")),
        ("key:$", RecordPart("key", ())),
        ("key:$.id", RecordPart("key", ("id",))),
        ("header:order-id", RecordPart("header", name="order-id")),
        ("header:'odd name'", RecordPart("header", name="odd name")),
        ("header:id as json", RecordPart("header", (), "id")),
        ("header:'id as json'  as  json", RecordPart("header", (), "id as json")),
        ("header:as as json", RecordPart("header", (), "as")),
    ],
)
def test_an_id_may_be_any_part_of_a_record(text: str, part: RecordPart) -> None:
    assert IdExpression.parse(text).parts == (part,)
    assert TimeExpression.parse(text).part == part


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected text with an expression, found ''"),
        ("order_id", "expected a path such as $.order.id, `key`, `key:$.path` or `header:NAME`, found 'order_id'"),
        ("$.", "expected a member such as .name or ['other name'], or an index such as [0], found '.' at character 2"),
        ("$.a[-1]", "found '[-1]' at character 4"),
        ("$.a b", "found ' b' at character 4"),
        ("key:id", "expected a path such as $.id after `key:`, found 'id'"),
        ("header:", "found 'header:'"),
        ("header:id as text", "expected `json` after `as`, found 'text' at character 14"),
        ("header:id as", "expected `json` after `as`, found the end"),
        ("header:id as jsonp", "expected `json` after `as`, found 'jsonp'"),
        ("header:id as json.x", "found '.x' at character 18"),
        ("key as json", "found ' as json' at character 4"),
        ("timestamp", "found 'timestamp'"),
        ("$" + ".a" * 21, "expected a path of up to 20 steps, found 21"),
        ("$." + "a" * 1_000, "expected an expression of up to 1000 characters, found 1002"),
        ("$.\ud800", "expected an expression in Unicode"),
        (7, "found 7"),
        ([], "or a list of 1 to 8 of these, found []"),
        (["$.a", 1], "found ['$.a', 1]"),
    ],
)
def test_what_is_no_id_is_refused_with_what_was_expected_and_found(text: object, message: str) -> None:
    with pytest.raises(ValueError) as refused:
        IdExpression.parse(text)
    assert message in str(refused.value)


def test_a_time_may_be_the_records_own_and_may_have_a_unit() -> None:
    assert TimeExpression.parse("timestamp").part == RecordPart("timestamp")
    assert TimeExpression.parse("$.at in us").unit == "us"
    assert TimeExpression.parse("header:'sent in'  in  s").part == RecordPart("header", name="sent in")
    assert TimeExpression.parse("key").unit is None
    sent = TimeExpression.parse("header:sent as json in us")
    assert (sent.part, sent.unit, sent.written) == (RecordPart("header", (), "sent"), "us", "header:sent as json in us")


@pytest.mark.parametrize("text", ["$.at in h", "$.at in", "timestamp in ms", "in ms", "$.at ms"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        TimeExpression.parse(text)


def test_a_header_may_be_compared_as_json() -> None:
    quoted = RecordPart("header", (), "x")
    test = ConditionExpression.parse(
        'header:x as json in ["a", 1] and exists header:x as json and header:x == "a"'
    ).test
    assert test == Junction(
        "and", (Comparison(quoted, ("a", 1)), Exists(quoted), Comparison(RecordPart("header", name="x"), ("a",)))
    )


def test_conditions_bind_not_before_and_before_or() -> None:
    a, b, c = (Comparison(value(name), (1,)) for name in "abc")
    test = ConditionExpression.parse("$.a == 1 or $.b == 1 and not $.c == 1").test
    assert test == Junction("or", (a, Junction("and", (b, Negation(c)))))
    test = ConditionExpression.parse("($.a==1 or $.b==1) and $.c==1").test
    assert test == Junction("and", (Junction("or", (a, b)), c))


@pytest.mark.parametrize(
    ("text", "values", "negated"),
    [
        ('== "order"', ("order",), False),
        ("!= 'it\\'s'", ("it's",), True),
        ('== "\\u00e9\\n"', ("é\n",), False),
        ("== -2.5e3", (-2500.0,), False),
        ("== 0", (0,), False),
        ("in [true, false, null]", (True, False, None), False),
    ],
)
def test_a_part_is_compared_with_values_as_json_writes_them(
    text: str, values: tuple[Scalar, ...], negated: bool
) -> None:
    found = ConditionExpression.parse(f"header:x {text}").test
    assert found == Comparison(RecordPart("header", name="x"), values, negated)
    assert [type(each) for each in found.values] == [type(each) for each in values]


def test_a_condition_names_each_part_that_it_looks_at_once() -> None:
    found = ConditionExpression.parse('exists $.a and (key == "x" or not $.a in [1])')
    assert found.parts() == (value("a"), RecordPart("key"))
    assert isinstance(found.test, Junction)
    assert found.test.tests[0] == Exists(value("a"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("$.a", "expected `==`, `!=` or `in [...]`, found the end"),
        ("$.a = 1", "expected `==`, `!=` or `in [...]`, found '= 1'"),
        ("$.a == order", "expected quoted text, a number, true, false or null, found 'order'"),
        ('$.a == "x', "expected quoted text"),
        ('$.a == "\\ud800"', "expected a valid JSON string"),
        ("$.a in []", "expected quoted text"),
        ("$.a in [1 2]", "expected a comma or a closing bracket"),
        ("$.a == 1 or", "found the end"),
        ("($.a == 1", "expected a closing parenthesis"),
        ("$.a == 1 $.b == 2", "expected `and`, `or` or the end of the condition, found '$.b == 2'"),
        ("not " * 30 + "$.a == 1", "expected up to 20 nested conditions"),
        ("(" * 30 + "$.a == 1" + ")" * 30, "expected up to 20 nested conditions"),
    ],
)
def test_what_is_no_condition_is_refused_with_what_was_expected_and_found(text: str, message: str) -> None:
    with pytest.raises(ValueError) as refused:
        ConditionExpression.parse(text)
    assert message in str(refused.value)


@given(st.text(max_size=40) | st.text(alphabet="$.[]'\"\\ keyhadrtimsp:=!()0123andorin", max_size=40))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    for kind in (IdExpression, TimeExpression, ConditionExpression):
        try:
            found = kind.parse(text)
        except ValueError:
            continue
        assert found.written == text


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["a in us", "it's in ms", "'", "key"]
)
parts = st.one_of(
    st.lists(names | st.integers(0, 99), max_size=5).map(lambda path: RecordPart("value", tuple(path))),
    st.lists(names | st.integers(0, 99), max_size=5).map(lambda path: RecordPart("key", tuple(path))),
    st.builds(RecordPart, st.just("header"), st.sampled_from([None, ()]), names),
    st.just(RecordPart("key")),
)


@given(parts)
def test_a_part_that_is_written_is_read_back(part: RecordPart) -> None:
    assert IdExpression.parse(write_part(part)).parts == (part,)
    assert TimeExpression.parse(write_part(part)).part == part
    in_us = TimeExpression.parse(write_part(part) + " in us")
    assert (in_us.part, in_us.unit) == (part, "us")


def test_a_definition_keeps_expressions_as_they_were_written() -> None:
    given = {
        "id": ["$.shop", " $['order id']", "header:id  as json"],
        "time": "header:at as json  in ms",
        "where": "$.a==1 and header:b as json!=null",
    }
    read = Tap.model_validate(given)
    assert json.loads(read.model_dump_json()) == given
    assert Tap.model_validate_json(read.model_dump_json()) == read
    assert Tap(id=read.id, time=read.time, where=read.where) == read
    assert hash(read.id) == hash(IdExpression.parse(given["id"]))


def test_a_definition_says_where_an_expression_is_wrong() -> None:
    with pytest.raises(ValueError) as refused:
        Tap.model_validate({"id": "order_id", "time": "timestamp"})
    assert "expected a path such as $.order.id" in str(refused.value)


def test_editors_get_a_schema_of_expressions() -> None:
    found = TypeAdapter(Tap).json_schema()["properties"]
    assert found["time"]["type"] == "string"
    assert {"type": "string"} in found["id"]["anyOf"]


@pytest.mark.parametrize(
    ("text", "form", "parts"),
    [
        ("hash($.a,key)", "hash", (value("a"), RecordPart("key"))),
        (
            " hash ( header:a-b as json , key:$.x ) ",
            "hash",
            (RecordPart("header", (), "a-b"), RecordPart("key", ("x",))),
        ),
        ("hash($)", "hash", (value(),)),
        ("partition-offset", "position", (RecordPart("partition"), RecordPart("offset"))),
        ("partition-offset(header:origin)", "position", (RecordPart("header", name="origin"),)),
        ("partition-offset($.t, $.p, $.o)", "position", (value("t"), value("p"), value("o"))),
        ("header:hash", "text", (RecordPart("header", name="hash"),)),
    ],
)
def test_an_id_may_be_a_hash_or_the_position_of_a_record(text: str, form: str, parts: tuple[RecordPart, ...]) -> None:
    expression = IdExpression.parse(text)
    assert (expression.form, expression.parts, expression.written) == (form, parts, text)
    assert expression.is_own_position == (text == "partition-offset")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hash()", "expected a path such as $.order.id, `key`, `key:$.path` or `header:NAME`, found ')'"),
        ("hash($.a", "expected a comma or a closing parenthesis, found the end"),
        ("hash($.a) ", None),
        ("hash($.a)/x", "expected the end of the expression after the closing parenthesis, found '/x'"),
        ("hash(hash($.a))", "found 'hash($.a))'"),
        (f"hash({', '.join(['$.a'] * 9)})", "expected up to 8 parts, found 9"),
        ("partition-offset(header:a, header:b)", "1 part (TOPIC/PARTITION/OFFSET) or 3 (topic, partition, offset)"),
        ("partition", "found 'partition'"),
        ("hash($." + "a" * 1_000 + ")", "up to 1000 characters"),
        (["hash($.a)", "$.b"], "found 'hash($.a)'"),
    ],
)
def test_a_hash_that_cannot_be_read_is_refused_with_its_place(text: object, message: str | None) -> None:
    if message is None:
        assert IdExpression.parse(text).form == "hash"
        return
    with pytest.raises(ValueError) as refused:
        IdExpression.parse(text)
    assert message in str(refused.value)
