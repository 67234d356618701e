"""Values of parts as readers of formats return them: None, bool, int, float, str or bytes, or of a type defined here.

Values of all other types, objects and arrays among them, have no form as id or time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from lagloss_server.extraction.reasons import CODES, Reason
from lagloss_server.model.expressions import Path


class Absent:
    """The part does not exist in this record."""


ABSENT: Final = Absent()


@dataclass(frozen=True, slots=True)
class UnreadablePart:
    """The part of a record that could not be read."""

    reason: Reason

    @property
    def code(self) -> int:
        return CODES[self.reason]


class Millis(int):
    """Milliseconds since the epoch, by the schema."""


class Micros(int):
    """Microseconds since the epoch, by the schema."""


class Nanos(int):
    """Nanoseconds since the epoch, by the schema."""


class Days(int):
    """Days since the epoch, by the schema."""


class Moment(int):
    """A timestamp of Protobuf, in nanoseconds since the epoch."""


class Uuid(bytes):
    """The 16 bytes of a UUID."""


def value_at(document: Any, path: Path) -> Any:
    """Return the value at a path through dicts and lists, `ABSENT` if there is none."""
    for step in path:
        if isinstance(step, str):
            if not isinstance(document, dict) or step not in document:
                return ABSENT
        elif not isinstance(document, list) or step >= len(document):
            return ABSENT
        document = document[step]
    return document
