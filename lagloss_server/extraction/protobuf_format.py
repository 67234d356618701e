"""Protobuf records: their parts by Google's library.

Proto3 does not write a field without presence that has its default, so such a field is there: 0, "" or the first name
of an enum. A field with presence (`optional`, in a `oneof`, a message) that is not set is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from lagloss_server.extraction.values import ABSENT, Moment
from lagloss_server.model.expressions import Path

TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
MAX_LISTED_DEPTH: Final = 5
"""Of paths that are listed: a recursive message has no end."""
Step = Callable[[Any], Any]
"""A step from a message to a value within it, or to `ABSENT`."""


class ProtobufReader:
    """Reads the parts at some paths of messages of one type."""

    def __init__(self, descriptor: Any, paths: Sequence[Path]) -> None:
        self._parse = GetMessageClass(descriptor).FromString
        self._steps = [_steps(descriptor, path) for path in paths]

    def read(self, record: bytes) -> list[object] | None:
        """Return the part at each path, None if these bytes are not a message of the type."""
        try:
            message = self._parse(record)
        except DecodeError:
            return None
        return [_walk(message, steps) for steps in self._steps]


def _walk(value: Any, steps: Sequence[Step]) -> object:
    for step in steps:
        value = step(value)
        if value is ABSENT:
            break
    return value


def message_paths(descriptor: Any, above: Path = ()) -> Iterator[Path]:
    """Yield the paths of the plain fields of a message, through messages within messages."""
    for field in descriptor.fields:
        path = (*above, field.name)
        if field.is_repeated:
            continue
        inner = field.message_type
        if inner is None or inner.full_name == TIMESTAMP or inner.full_name in _WRAPPERS:
            yield path
        elif len(path) < MAX_LISTED_DEPTH:
            yield from message_paths(inner, path)


def _steps(descriptor: Any, path: Path) -> list[Step]:
    """Return the way from a message to the value at a path."""
    steps: list[Step] = []
    place, field = descriptor, None
    for name in path:
        child = _child(place, name)
        if child is None:
            return [lambda _: ABSENT]
        step, place, field = child
        steps.append(step)
    return [*steps, *_ending(place, field)]


def _child(place: Any, name: str | int) -> tuple[Step, Any, Any] | None:
    """Return the step of a path, the place that it reaches, and the descriptor of its field; None if it leads nowhere.

    A place is the descriptor of a message, or of a repeated field, or None if the value has no parts.
    """
    if place is None:
        return None
    if _is_map(place):
        entry = place.message_type.fields_by_name
        if not isinstance(name, str) or entry["key"].type != place.TYPE_STRING:
            return None
        return _entry(name), entry["value"].message_type, entry["value"]
    if _is_repeated(place):
        return None if isinstance(name, str) else (_item(name), place.message_type, place)
    field = field_of(place, name) if isinstance(name, str) else None
    if field is None:
        return None
    return _member(field), field if _is_repeated(field) else field.message_type, field


def field_of(descriptor: Any, name: str) -> Any:
    """Return the field of a message with this name, its own or that in JSON; None if there is none."""
    return descriptor.fields_by_name.get(name) or next((f for f in descriptor.fields if f.json_name == name), None)


def _is_repeated(place: Any) -> bool:
    return bool(getattr(place, "is_repeated", False))


def _is_map(place: Any) -> bool:
    return _is_repeated(place) and place.message_type is not None and place.message_type.GetOptions().map_entry


def _member(field: Any) -> Step:
    member = attrgetter(field.name)
    if _is_repeated(field) or not field.has_presence:
        return member
    name = field.name
    return lambda message: member(message) if message.HasField(name) else ABSENT


def _item(index: int) -> Step:
    return lambda items: items[index] if index < len(items) else ABSENT


def _entry(key: str) -> Step:
    return lambda entries: entries.get(key, ABSENT)


def _ending(place: Any, field: Any) -> list[Step]:
    """Return what makes the value at the end of a path one that has a form as id or time, if it is not one already."""
    if place is None:
        if field.enum_type is None:
            return []
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return [lambda number: names.get(number, number)]
    if not _is_repeated(place) and place.full_name == TIMESTAMP:
        return [lambda stamp: Moment(stamp.seconds * 1_000_000_000 + stamp.nanos)]
    if not _is_repeated(place) and place.full_name in _WRAPPERS:
        return [attrgetter("value")]
    return []  # a message, a list or a map, which has no such form
