"""What to extract from the records of a topic, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from lagloss_server.model.expressions import ConditionExpression, IdExpression, RecordPart, TimeExpression
from taps.extraction.reasons import Reason

Format = Literal["auto", "json", "avro", "protobuf", "text"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one topic, of any partitions, a row each. `timestamp_ms`: the record's own, ms since the epoch.

    `keys` and `values` may be Arrow arrays of type binary or large_binary, and `headers` one of lists of structs (key,
    value), as Spark's Kafka source has them; they are then read in place.
    """

    timestamp_ms: npt.NDArray[np.int64]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers | None]

    def __len__(self) -> int:
        return len(self.timestamp_ms)


@dataclass(frozen=True, slots=True)
class Extraction:
    """What to extract from the records of a topic: their ids and event times, of those that pass `where`.

    `schema`: the text of an Avro schema or a .proto, or a FileDescriptorSet in base64, of records without the number of
    a schema in a registry; `message`: the name of a Protobuf message in it.

    Raises:
        ValueError: these do not fit together.
    """

    id: IdExpression
    event_time: TimeExpression
    where: ConditionExpression | None = None
    format: Format = "auto"
    schema: str | None = None
    message: str | None = None

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"expected a format of {', '.join(FORMATS)}, found {self.format!r}")
        if self.schema is not None and self.format not in ("avro", "protobuf"):
            raise ValueError(f"expected a schema only with the format avro or protobuf, found it with {self.format}")
        if self.message is not None and (self.format != "protobuf" or self.schema is None):
            raise ValueError("expected the name of a message only with the format protobuf and a schema")
        if self.format == "text" and any(part.source == "value" and part.path for part in self.parts()):
            raise ValueError("expected `$` alone for a value with the format text, which has no fields")

    def parts(self) -> tuple[RecordPart, ...]:
        """Return the parts of a record that are looked at, each once."""
        where = self.where.parts() if self.where else ()
        return tuple(dict.fromkeys((*self.id.parts, self.event_time.part, *where)))


@dataclass(frozen=True, slots=True)
class Extracted:
    """What records gave: `rows`, ascending, that have an id and a time and pass `where`, with their ids (UTF-8 of 1 to
    255 bytes) and event times (ms since the epoch); how many rows `where` leaves out; and, by reason, how many rows
    could not be read, and one of them."""

    rows: npt.NDArray[np.intp]
    ids: list[bytes]
    event_ms: npt.NDArray[np.float64]
    left_out: int
    unreadable: Mapping[Reason, tuple[int, int]]
