"""Errors of a document, for those who wrote it: the place in it, and what was expected and found there.

Pydantic's errors name validators, members of unions and classes between the keys that were written, and in their
messages, which whoever wrote a file has never seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from lagloss_server.base.fields import MAX_SHOWN, PATTERNS, describe

Path = tuple[str | int, ...]
"""Keys of mappings and numbers of list items, from the outermost in; empty: the whole document."""
_PLAIN_KEY: Final = re.compile(r"[^\W\d][\w:-]*")
_MAPPING: Final = "a mapping"
_LIST: Final = "a list"
_TEXT: Final = "text"
_KINDS: Final = {
    **dict.fromkeys(("string_type", "string_sub_type", "string_unicode", "invalid_key", "path_type"), _TEXT),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "an integer"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number", "decimal_type", "decimal_parsing"), "a number"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"), _MAPPING),
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type"), _LIST),
    **dict.fromkeys(("none_required", "missing_keyword_only_argument"), "null"),
    **dict.fromkeys(("datetime_type", "datetime_parsing", "datetime_from_date_parsing"), "a date and time"),
    **dict.fromkeys(("date_type", "date_parsing", "date_from_datetime_parsing"), "a date"),
    **dict.fromkeys(("uuid_type", "uuid_parsing"), "a UUID"),
    **dict.fromkeys(("url_type", "url_parsing", "url_scheme", "url_too_long"), "a URL"),
}
"""What a value of the wrong kind should have been, by the type of pydantic's error."""
_BOUNDS: Final = {
    "greater_than": "a number greater than {gt}",
    "greater_than_equal": "a number greater than or equal to {ge}",
    "less_than": "a number less than {lt}",
    "less_than_equal": "a number less than or equal to {le}",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "too_short": "at least {min_length} items",
    "too_long": "at most {max_length} items",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "union_tag_invalid": "{discriminator} to be one of {expected_tags}",
    "union_tag_not_found": "{discriminator} to specify its kind",
}
_SHOWN: Final = frozenset({"literal_error", "enum"})
"""Types of errors of texts that may be shown. Others may be secrets that stand in the wrong place."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """A problem at a location in a document; `problem`: what was expected, and what was found; `wants_text`: text was
    expected there."""

    path: Path
    problem: str
    wants_text: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{write_path(self.path)}: {self.problem}"


def explain(
    error: ValidationError | Sequence[Any], document: object, model: type[BaseModel] | None = None
) -> Iterator[Invalid]:
    """Yield what is wrong with a document, one of each place; at least one.

    Args:
        error: pydantic's, or its list of errors.
        document: what was validated, from JSON or YAML.
        model: what it was to become, to name the keys that it may have.
    """
    errors = error.errors(include_url=False) if isinstance(error, ValidationError) else error
    places: list[tuple[Path, ErrorDetails]] = [(_path(document, error), error) for error in errors]
    while places:
        first = places[0][0]
        related, others = places[:0], places[:0]
        for path, detail in places:
            is_related = path[: len(first)] == first or first[: len(path)] == path
            (related if is_related else others).append((path, detail))
        yield _most_telling(related, model)
        places = others


def keys_given(error: ValidationError) -> dict[int | str, object]:
    """Return as much of a flat document as its errors show."""
    return {item["loc"][0]: item["input"] for item in error.errors() if item["loc"] and item["type"] != "missing"}


def write_path(path: Path) -> str:
    """Return a path as people write it: `spec.nodes[1].taps.out:b.topic`."""
    steps = [f".{step}" if _is_plain(step) else f"[{describe(step)}]" for step in path]
    return "".join(steps).removeprefix(".") or "document"


def _is_plain(step: object) -> bool:
    return isinstance(step, str) and len(step) <= MAX_SHOWN and _PLAIN_KEY.fullmatch(step) is not None


def _path(document: object, error: ErrorDetails) -> Path:
    """Return the steps of an error's place that were written, and the last one if it should have been."""
    path: list[str | int] = []
    part = document
    *_, last = (None, *range(len(error["loc"])))
    for number, step in enumerate(error["loc"]):
        if isinstance(part, Mapping) and step in part:
            part = part[step]
        elif isinstance(part, list | tuple) and step in range(len(part)):
            part = part[int(step)]
        elif not (number == last and isinstance(part, Mapping) and error["type"] in ("missing", "misplaced")):
            continue  # the name of a validator, of a union's member or its tag
        path.append(step)
    return tuple(path)


def _most_telling(related: Sequence[tuple[Path, ErrorDetails]], model: type[BaseModel] | None) -> Invalid:
    """Return one error of those that the members of a union have: of the member that a value comes closest to."""
    deepest = max(len(path) for path, _ in related)
    errors = [error for path, error in related if len(path) == deepest]
    path = next(path for path, _ in related if len(path) == deepest)
    fitting = [error for error in errors if error["type"] not in _KINDS and error["type"] not in _SHOWN]
    if fitting:
        return Invalid(path, _problem(fitting[0], path, model))
    expected = dict.fromkeys(_expected(error, path, model) for error in errors)
    shown = any(error["type"] in _SHOWN or error["type"].endswith("_parsing") for error in errors)
    wants_text = any(_KINDS.get(error["type"]) == _TEXT for error in errors)
    return Invalid(path, f"expected {', or '.join(expected)}, found {_found(errors[0], shown=shown)}", wants_text)


def _problem(error: ErrorDetails, path: Path, model: type[BaseModel] | None) -> str:
    kind = error["type"]
    if kind in ("value_error", "assertion_error") or kind not in (*_BOUNDS, *_KINDS, *_OTHERS):
        text = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        return re.sub("^Input should be ", "expected ", text)
    pattern = PATTERNS.get(error.get("ctx", {}).get("pattern", ""))
    shown = pattern is not None and pattern.is_shown
    return f"expected {_expected(error, path, model)}, found {_found(error, shown=shown)}"


_OTHERS: Final = ("missing", "extra_forbidden", "string_pattern_mismatch", "is_instance_of")


def _expected(error: ErrorDetails, path: Path, model: type[BaseModel] | None) -> str:
    kind, facts = error["type"], error.get("ctx", {})
    if kind in _KINDS:
        return _KINDS[kind]
    if kind in _BOUNDS:
        return _BOUNDS[kind].format_map(facts)
    if kind == "string_pattern_mismatch":
        pattern = PATTERNS.get(facts["pattern"])
        return f"text that matches {facts['pattern']}" if pattern is None else pattern.meaning
    if kind == "extra_forbidden":
        keys = ", ".join(_keys(model, path[:-1])) if model is not None else ""
        return f"one of these keys: {keys}" if keys else "only known keys"
    return "a value" if kind == "missing" else "a different value"


def _found(error: ErrorDetails, *, shown: bool) -> str:
    value, kind = error["input"], error["type"]
    if kind == "missing":
        return "none"
    if kind == "extra_forbidden":
        return describe(error["loc"][-1])
    if isinstance(value, str):
        return describe(value) if shown else "text" if value else "empty text"
    if isinstance(value, list | tuple) and kind in ("too_short", "too_long"):
        return f"{len(value)} items"
    return describe(value)


def _keys(model: type[BaseModel], path: Path) -> list[str]:
    """Return the keys that a mapping at this path of a model's document may have."""
    models = [model]
    for step in path:
        fields = [
            field for model in models for name, field in model.model_fields.items() if step in (name, field.alias)
        ]
        models = list(dict.fromkeys(inner for field in fields for inner in _models(field.annotation))) or models
    return list(dict.fromkeys(field.alias or name for model in models for name, field in model.model_fields.items()))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a type: those of items, values and members of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
