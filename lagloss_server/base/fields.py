"""Fields of lagloss's YAML files: durations, names, and models that reject unknown keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)(ms|s|m|h|d)")
MAX_DURATION_MS: Final = 366 * 86_400_000
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


MAX_SHOWN: Final = 60
"""Characters of a text that a message shows."""


def describe(value: object) -> str:
    """Return what a part of a document is, for messages: short, as it is written there rather than as Python has it."""
    if isinstance(value, Mapping):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, date):  # a datetime is one
        return f"the date {value.isoformat()}"
    if isinstance(value, int) and abs(value) >= 10**MAX_SHOWN:  # Python refuses to write thousands of digits
        return "a huge number"
    text = repr(value) if isinstance(value, str | int | float) else "another value"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def parse_duration_ms(text: object) -> int:
    """Parse `500ms`, `60s`, `15m`, `1h` or `7d` into milliseconds.

    Raises:
        ValueError: for anything else.
    """
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"expected a duration such as 500ms, 60s, 15m or 1h, found {describe(text)}")
    return round(float(match[1]) * _UNIT_MS[match[2]])


def write_duration(ms: int) -> str:
    """Write milliseconds as `parse_duration_ms` reads them, in the largest unit that has no fraction: `90s`, `1h`."""
    if ms == 0:
        return "0s"
    return next(f"{ms // size}{unit}" for unit, size in reversed(_UNIT_MS.items()) if ms % size == 0)


def _bounded(text: object) -> int:
    duration_ms = parse_duration_ms(text)
    if duration_ms > MAX_DURATION_MS:
        raise ValueError(f"expected a duration of up to 366d, found {text!r}")
    return duration_ms


def _above_zero(ms: int) -> int:
    if ms <= 0:
        raise ValueError(f"expected a duration above 0, found {ms}ms")
    return ms


DurationMs = Annotated[
    int, BeforeValidator(_bounded), PlainSerializer(write_duration, return_type=str, when_used="json")
]
"""A duration as text, kept in milliseconds."""
PositiveMs = Annotated[DurationMs, AfterValidator(_above_zero)]


def _is_no_switch(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("number", "expected a number, found {found}", {"found": describe(value)})
    return value


NUMBER: Final = BeforeValidator(_is_no_switch)
"""Of a number: YAML's `yes` is none, which would be 1."""


@dataclass(frozen=True, slots=True)
class TextPattern:
    """What texts of a pattern are, for messages; `is_shown`: whether one that does not match can be shown there, since
    it is no secret in the wrong place."""

    meaning: str
    is_shown: bool


PATTERNS: Final[dict[str, TextPattern]] = {}
"""By the regular expression."""


def like(pattern: str, meaning: str, *, is_shown: bool = True, **limits: Any) -> Any:
    """Return the field of a text that matches a pattern, of which errors say what it means."""
    PATTERNS[pattern] = TextPattern(meaning, is_shown)
    return Field(pattern=pattern, **limits)


NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$"
Name = Annotated[
    str,
    like(NAME_PATTERN, "a name of 1 to 100 letters, digits, `-` and `_` that starts with a letter or digit"),
]
"""Letters, digits, `-` and `_`: no dot or slash, which separate the parts of checkpoints and keys."""


NOT_STORABLE: Final = "expected text without NUL and unpaired surrogates"


def is_storable(text: str) -> bool:
    """Return whether PostgreSQL can hold this text: JSON and YAML can spell NUL and half of a surrogate pair, and
    neither text nor jsonb can hold them."""
    try:
        return "\0" not in text and text.encode() is not None
    except UnicodeEncodeError:
        return False


def _storable(text: str) -> str:
    if not is_storable(text):
        raise PydanticCustomError("text", NOT_STORABLE)
    return text


Text = Annotated[str, AfterValidator(_storable)]
"""Text that PostgreSQL can hold."""
MAX_DESCRIPTION: Final = 2_000
Description = Annotated[str, Field(max_length=MAX_DESCRIPTION)]
MAX_LISTED: Final = 1_000
"""Items of a list in a file of operators, such as receivers, routes, reports or teams."""
MAX_RULE: Final = 1_000
"""Characters of a recurrence rule (RFC 5545)."""


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: longer than a file's name may be
        raise ValueError(f"expected a time zone such as Europe/Berlin, found {describe(name)}") from error
    return name


Zone = Annotated[str, AfterValidator(_zone)]
"""The IANA name of a time zone."""


def refuse(problems: Iterable[tuple[tuple[str | int, ...], str]]) -> None:
    """Raise pydantic's ValidationError of these problems, if there are any.

    Each is a place in the whole file, and the expectation and the finding there. For checks that involve several parts
    of a file.
    """
    details = [
        InitErrorDetails(
            type=PydanticCustomError("misplaced", "{problem}", {"problem": problem}), loc=place, input=None
        )
        for place, problem in problems
    ]
    if details:
        raise ValidationError.from_exception_data("file", details)


class Strict(BaseModel):
    """A part of a YAML file: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
