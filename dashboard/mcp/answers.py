"""Answers within a size that an agent can read: lists are cut from their ends, and the answer says so."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypedDict

import msgspec

from lagloss.errors import UsageError
from lagloss_server.net.responses import encode

MAX_BYTES: Final = 100_000
"""Of a response as it is sent. A document is in it twice, as the protocol recommends: structured, and as text."""
_ENVELOPE_BYTES: Final = 2_000
"""Of the response around the document: its id, and the server's name and version."""
JsonObject: TypeAlias = dict[str, Any]


class AnswerTooLarge(UsageError):
    """The answer would be larger than {limit} bytes with one item per list. {narrow}"""


class LeftOut(TypedDict):
    """A list of the answer that was cut from its end, and the number of items that it lacks."""

    list: str
    count: int


class Completeness(TypedDict):
    """What an answer lacks; `narrow`: how to ask for it, null if nothing is left out."""

    left_out: list[LeftOut]
    narrow: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The document that a tool read, and by list the number of items that it did not read."""

    document: Mapping[str, Any]
    unread: Mapping[str, int] = field(default_factory=dict)


def fitted(answer: Answer, narrow: str, max_bytes: int = MAX_BYTES) -> JsonObject:
    """Return the document with `Completeness`, as JSON, and such that a response holds it. Of the largest list with
    several items, the last ones are left out first: lists are sorted newest or worst first.

    Raises:
        AnswerTooLarge: one item of each list is too much.
    """
    document: JsonObject = msgspec.json.decode(encode(answer.document))
    counts = {path: count for path, count in answer.unread.items() if count}
    while True:
        left_out = [LeftOut(list=path, count=count) for path, count in counts.items()]
        whole = {**document, **Completeness(left_out=left_out, narrow=narrow if left_out else None)}
        excess = _sent_bytes(whole) + _ENVELOPE_BYTES - max_bytes
        if excess <= 0:
            return whole
        cuttable = [(path, items) for path, items in _lists(document) if len(items) > 1]
        if not cuttable:
            raise AnswerTooLarge(limit=max_bytes, narrow=narrow)
        path, items = max(cuttable, key=lambda entry: _sent_bytes(entry[1]))
        counts[path] = counts.get(path, 0) + _shorten(items, excess)


def as_text(document: JsonObject) -> str:
    """Return the document as the text of a response."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _sent_bytes(part: object) -> int:
    """Return the size of a part of a document in a response, at most: structured, and in a text, whose quotation marks
    and letters beyond ASCII are escaped."""
    text = json.dumps(part, ensure_ascii=False, separators=(",", ":"))
    return len(json.dumps(part, separators=(",", ":"))) + len(json.dumps(text))


def _lists(part: object, path: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield each list of a document with its path, outer ones first."""
    if isinstance(part, dict):
        for name, value in part.items():
            yield from _lists(value, f"{path}.{name}" if path else name)
    elif isinstance(part, list):
        yield path, part
        for index, value in enumerate(part):
            yield from _lists(value, f"{path}[{index}]")


def _shorten(items: list[Any], excess: int) -> int:
    """Remove items from the end until so many bytes are gone, or one item remains; return their number."""
    before = len(items)
    while len(items) > 1 and excess > 0:
        excess -= _sent_bytes(items.pop())
    return before - len(items)
