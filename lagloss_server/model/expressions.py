"""Expressions of a tap: which part of a Kafka record is the message id, which the event time, which records count.

Each is kept as it was written, so that a stored definition reads back the same; `docs/taps.md` has the grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, NoReturn, Self, cast, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from lagloss.wire.times import Unit
from lagloss_server.base.fields import describe

Source = Literal["value", "key", "header", "timestamp", "partition", "offset"]
Path = tuple[str | int, ...]
"""Members of objects by name and items of arrays by index, from the outermost in; empty: the whole."""
Scalar = str | int | float | bool | None

MAX_LENGTH: Final = 1_000
"""Characters of one expression."""
MAX_ID_PARTS: Final = 8
MAX_DEPTH: Final = 20
"""Steps of a path, and levels of parentheses in a condition."""
_STEP: Final = re.compile(
    r"""\.(?P<name>[^\W\d][\w-]*|[@$][\w@$-]*)|\[(?P<index>0|[1-9]\d{0,8})\]|\[(?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]"""
)
_HEADER: Final = re.compile(r"""header:(?P<name>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s()=!,'"\[\]]+)""")
_UNIT: Final = re.compile(r"\s+in\s+([^\s'\"\]]+)$")
_WORD: Final = re.compile(r"[A-Za-z]+")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?P<fraction>(?:\.\d+)?(?:[eE][+-]?\d+)?)")
_TEXT: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_CALL: Final = re.compile(r"\s*(?P<name>hash|partition-offset)\s*\(")
POSITION: Final = "partition-offset"
_OPERANDS: Final = "a path such as $.order.id, `key`, `key:$.path` or `header:NAME`"
_LITERALS: Final[dict[str, Scalar]] = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class RecordPart:
    """A part of a Kafka record: of its value or key the field at `path`, the header `name`, or its own timestamp,
    partition or offset.

    A key or a header without a path is its bytes as text, whatever its format; the path of a header is empty, and
    means the text or number that it is as JSON.
    """

    source: Source
    path: Path | None = None
    name: str = ""


_OWN_POSITION: Final = (RecordPart("partition"), RecordPart("offset"))


class _Expression:
    """An expression as it was written, usable as a field of a pydantic model. Equal if written alike."""

    written: Any
    json_schema: ClassVar[dict[str, Any]] = {"type": "string"}

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse the expression. Raises ValueError: what was expected, and what was found."""
        raise NotImplementedError

    @classmethod
    def _of(cls, value: object) -> Self:
        return value if isinstance(value, cls) else cls.parse(value)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(lambda expression: expression.written)
        return core_schema.no_info_plain_validator_function(cls._of, serialization=written)

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(cls.json_schema)


IdForm = Literal["text", "hash", "position"]
"""How an id is made of its parts: joined with `/`; by a hash of them; or as TOPIC/PARTITION/OFFSET of the record in the
first topic, which is the record itself (its partition and offset), or is named by one part or by three."""


@dataclass(frozen=True, slots=True)
class IdExpression(_Expression):
    """The location of the message id: the parts of a record that it is made of."""

    written: str | tuple[str, ...]
    parts: tuple[RecordPart, ...] = field(compare=False)
    form: IdForm = field(default="text", compare=False)

    json_schema: ClassVar[dict[str, Any]] = {
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_ID_PARTS},
        ]
    }

    @classmethod
    def parse(cls, value: object) -> IdExpression:
        """Parse `$.order.id`, `[$.shop, $.order.id]`, `hash($.user, $.at)`, `partition-offset` or
        `partition-offset(header:origin)`.

        Raises:
            ValueError: what was expected, and what was found.
        """
        if isinstance(value, str):
            if value.strip() == POSITION:
                return cls(value, _OWN_POSITION, "position")
            if call := _CALL.match(value):
                is_hash = call["name"] == "hash"
                parts = _Parser(_text(value), _OPERANDS, call.end()).arguments()
                if not is_hash and len(parts) not in (1, 3):
                    expected = "1 part (TOPIC/PARTITION/OFFSET) or 3 (topic, partition, offset)"
                    raise ValueError(f"expected {expected} in {POSITION}(…), found {len(parts)} in {value!r}")
                return cls(value, parts, "hash" if is_hash else "position")
            return cls(value, (_part(value),))
        if (
            isinstance(value, list | tuple)
            and 0 < len(value) <= MAX_ID_PARTS
            and all(isinstance(part, str) for part in value)
        ):
            return cls(tuple(value), tuple(_part(part) for part in value))
        described = repr(value) if isinstance(value, list) else describe(value)
        raise ValueError(f"expected {_OPERANDS}, or a list of 1 to {MAX_ID_PARTS} of these, found {described}")

    @property
    def is_own_position(self) -> bool:
        """Whether it is the position of the record itself."""
        return self.parts == _OWN_POSITION


@dataclass(frozen=True, slots=True)
class TimeExpression(_Expression):
    """The location of the event time; `unit`: the unit of its numbers, None to infer it from their size."""

    written: str
    part: RecordPart = field(compare=False)
    unit: Unit | None = field(compare=False)

    @classmethod
    def parse(cls, value: object) -> TimeExpression:
        """Parse `$.created_at`, `header:time in us` or `timestamp`.

        Raises:
            ValueError: what was expected, and what was found.
        """
        text = _text(value)
        if text.strip() == "timestamp":
            return cls(text, RecordPart("timestamp"), None)
        suffix = _UNIT.search(text.rstrip())
        unit = suffix[1] if suffix else None
        if unit is not None and unit not in get_args(Unit):
            raise ValueError(f"expected `in s`, `in ms`, `in us` or `in ns`, found `in {unit}` in {text!r}")
        part = _part(text[: suffix.start()] if suffix else text, "`timestamp`, ")
        return cls(text, part, cast("Unit | None", unit))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether a part of the record equals one of these; `negated`: none of them. A part that is not there does
    neither."""

    part: RecordPart
    values: tuple[Scalar, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Exists:
    """Whether a part of the record is there, be it null."""

    part: RecordPart


@dataclass(frozen=True, slots=True)
class Negation:
    """Whether a test fails."""

    test: Test


@dataclass(frozen=True, slots=True)
class Junction:
    """Whether all of these tests pass, or any of them."""

    kind: Literal["and", "or"]
    tests: tuple[Test, ...]


Test = Comparison | Exists | Negation | Junction


@dataclass(frozen=True, slots=True)
class ConditionExpression(_Expression):
    """The condition for records of a topic to count."""

    written: str
    test: Test = field(compare=False)

    @classmethod
    def parse(cls, value: object) -> ConditionExpression:
        """Parse `$.type == "order" and not header:test in ["yes", "1"]`.

        Raises:
            ValueError: what was expected, and what was found.
        """
        text = _text(value)
        return cls(text, _Parser(text).condition())

    def parts(self) -> tuple[RecordPart, ...]:
        """Return the parts of a record that it looks at, each once."""
        return tuple(dict.fromkeys(_parts_of(self.test)))


def write_part(part: RecordPart) -> str:
    """Return the expression of a part."""
    if part.source == "header":
        plain = _HEADER.fullmatch(f"header:{part.name}") and part.name[0] not in "'\""
        return f"header:{part.name if plain else _quote(part.name)}{'' if part.path is None else ' as json'}"
    if part.source == "timestamp" or part.path is None:
        return part.source
    steps = [_write_step(step) for step in part.path]
    return f"{'key:' if part.source == 'key' else ''}${''.join(steps)}"


def _write_step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _STEP.fullmatch(f".{step}") else f"[{_quote(step)}]"


def _quote(text: str) -> str:
    escaped = re.sub(r"([\\'])", r"\\\1", text)
    return f"'{escaped}'"


def _parts_of(test: Test) -> Iterator[RecordPart]:
    match test:
        case Comparison(part=part) | Exists(part=part):
            yield part
        case Negation(test=inner):
            yield from _parts_of(inner)
        case Junction(tests=tests):
            for inner in tests:
                yield from _parts_of(inner)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected text with an expression, found {describe(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"expected an expression in Unicode, found an unpaired surrogate in {value!r}") from None
    if len(value) > MAX_LENGTH:
        raise ValueError(f"expected an expression of up to {MAX_LENGTH} characters, found {len(value)}")
    return value


def _part(text: str, others: str = "") -> RecordPart:
    parser = _Parser(_text(text).strip(), f"{others}{_OPERANDS}")
    part = parser.part()
    if parser.at < len(parser.text):
        parser.fail(parser.expected)
    return part


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


class _Parser:
    """A recursive descent over one expression."""

    def __init__(self, text: str, expected: str = _OPERANDS, at: int = 0) -> None:
        self.text = text
        self.at = at
        self.depth = 0
        self.expected = expected

    def fail(self, expected: str) -> NoReturn:
        """Raise ValueError of what stands here."""
        rest = self.text[self.at :]
        rest_text = (
            f"{rest[:30]!r} at character {self.at + 1} of {self.text!r}" if rest else f"the end of {self.text!r}"
        )
        raise ValueError(f"expected {expected}, found {rest_text}")

    def part(self) -> RecordPart:
        """Parse a path, a key or a header."""
        if self._next("$"):
            return RecordPart("value", self._path())
        if self._next("key:"):
            if not self._next("$"):
                self.fail("a path such as $.id after `key:`")
            return RecordPart("key", self._path())
        header = _HEADER.match(self.text, self.at)
        if header:
            self.at = header.end()
            name = header["name"]
            return RecordPart("header", self._as_json(), _unquote(name) if name[0] in "'\"" else name)
        if self._word() == "key":
            self.at += 3
            return RecordPart("key")
        return self.fail(self.expected)

    def _as_json(self) -> Path | None:
        if self._word() != "as":
            return None
        self.at += 2
        if self._word() != "json":
            self.fail("`json` after `as`")
        self.at += 4
        return ()

    def arguments(self) -> tuple[RecordPart, ...]:
        """Parse the rest of the text as 1 to 8 parts and a closing parenthesis."""
        parts = [self._argument()]
        while self._next(","):
            parts.append(self._argument())
        if not self._next(")"):
            self.fail("a comma or a closing parenthesis")
        self._space()
        if self.at < len(self.text):
            self.fail("the end of the expression after the closing parenthesis")
        if len(parts) > MAX_ID_PARTS:
            raise ValueError(f"expected up to {MAX_ID_PARTS} parts, found {len(parts)} in {self.text!r}")
        return tuple(parts)

    def _argument(self) -> RecordPart:
        self._space()
        return self.part()

    def condition(self) -> Test:
        """Parse the whole text as a condition."""
        test = self._junction("or")
        self._space()
        if self.at < len(self.text):
            self.fail("`and`, `or` or the end of the condition")
        return test

    def _path(self) -> Path:
        steps: list[str | int] = []
        while step := _STEP.match(self.text, self.at):
            self.at = step.end()
            if step["index"] is not None:
                steps.append(int(step["index"]))
            else:
                steps.append(step["name"] or _unquote(step["quoted"]))
        if self.at < len(self.text) and self.text[self.at] in ".[":
            self.fail("a member such as .name or ['other name'], or an index such as [0]")
        if len(steps) > MAX_DEPTH:
            raise ValueError(f"expected a path of up to {MAX_DEPTH} steps, found {len(steps)} in {self.text!r}")
        return tuple(steps)

    def _junction(self, kind: Literal["and", "or"]) -> Test:
        def side() -> Test:
            return self._junction("and") if kind == "or" else self._negation()

        tests = [side()]
        while self._word() == kind:
            self.at += len(kind)
            tests.append(side())
        return tests[0] if len(tests) == 1 else Junction(kind, tuple(tests))

    def _negation(self) -> Test:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError(f"expected up to {MAX_DEPTH} nested conditions in {self.text!r}")
        try:
            if self._word() == "not":
                self.at += 3
                return Negation(self._negation())
            if self._next("("):
                test = self._junction("or")
                if not self._next(")"):
                    self.fail("a closing parenthesis")
                return test
            return self._comparison()
        finally:
            self.depth -= 1

    def _comparison(self) -> Test:
        if self._word() == "exists":
            self.at += 6
            self._space()
            return Exists(self.part())
        part = self.part()
        if self._next("=="):
            return Comparison(part, (self._scalar(),))
        if self._next("!="):
            return Comparison(part, (self._scalar(),), negated=True)
        if self._word() == "in":
            self.at += 2
            if not self._next("["):
                self.fail('a list such as ["a", "b"]')
            values = [self._scalar()]
            while self._next(","):
                values.append(self._scalar())
            if not self._next("]"):
                self.fail("a comma or a closing bracket")
            return Comparison(part, tuple(values))
        return self.fail("`==`, `!=` or `in [...]`")

    def _scalar(self) -> Scalar:
        self._space()
        word = self._word()
        if word in _LITERALS:
            self.at += len(word)
            return _LITERALS[word]
        if text := _TEXT.match(self.text, self.at):
            try:
                value = json.loads(text[0]) if text[0][0] == '"' else _unquote(text[0])
                value.encode()
            except ValueError:
                self.fail("a valid JSON string")
            self.at = text.end()
            return str(value)
        if number := _NUMBER.match(self.text, self.at):
            self.at = number.end()
            return float(number[0]) if number["fraction"] else int(number[0])
        return self.fail("quoted text, a number, true, false or null")

    def _word(self) -> str:
        self._space()
        word = _WORD.match(self.text, self.at)
        return word[0] if word else ""

    def _next(self, token: str) -> bool:
        self._space()
        is_next = self.text.startswith(token, self.at)
        self.at += len(token) * is_next
        return is_next

    def _space(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
