"""Extraction: message ids and event times of the records of a topic, by columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
import numpy.typing as npt

from lagloss_server.extraction import kinds
from lagloss_server.extraction.columns import I8, ByteColumn, PartColumn
from lagloss_server.extraction.conditions import FALSE, UNKNOWN, judge
from lagloss_server.extraction.formats import FormatReader, Schemas
from lagloss_server.extraction.id_forms import named_positions, read_ids, with_named, without
from lagloss_server.extraction.reasons import CODES, REASONS, Reason
from lagloss_server.extraction.spec import Extracted, Extraction, Records
from lagloss_server.extraction.times import read_times
from lagloss_server.model.expressions import RecordPart

_VALUE: Final = RecordPart("value", ())
_LEFT_OUT: Final = -1
"""Beside the codes of reasons: a row that the condition leaves out."""


class Extractor:
    """Extracts ids and event times as an `Extraction` says.

    Raises:
        BadTapSchema: the schema given cannot be used.
        ProtobufCompilerMissing: it is the text of a .proto, for which there is no compiler.
    """

    def __init__(self, extraction: Extraction, registry: Schemas | None = None) -> None:
        self._extraction, self._registry = extraction, registry
        parts = extraction.parts()
        self._values = tuple(part for part in parts if part.source == "value")
        self._keys = tuple(part for part in parts if part.source == "key" and part.path is not None)
        self._json_headers = tuple(part for part in parts if part.source == "header" and part.path is not None)
        read = {*self._values, *self._keys, *self._json_headers}
        self._others = tuple(part for part in parts if part not in read)
        schema, message = extraction.schema, extraction.message
        self._value_reader = FormatReader(_paths(self._values), extraction.format, schema, message, registry)
        self._key_reader = FormatReader(_paths(self._keys), "auto", None, None, registry)
        self._header_reader = FormatReader([()], "json", None, None, None)

    def __reduce__(self) -> tuple[type[Extractor], tuple[Extraction, Schemas | None]]:
        """Let tasks of Spark make it anew: readers of the formats' libraries cannot be pickled."""
        return type(self), (self._extraction, self._registry)

    def extract(self, records: Records) -> Extracted:
        """Return the ids and times of these records.

        Raises:
            RegistryUnreachable: a schema is wanted that the registry cannot be asked for.
        """
        extraction, read = self._extraction, self._read(records)
        ids = read_ids(extraction, [read.parts[part] for part in extraction.id.parts])
        times, time_codes = read_times(read.parts[extraction.event_time.part], extraction.event_time.unit)
        id_codes = [read.codes[part] for part in extraction.id.parts]
        if named := named_positions(extraction, records):
            ids, id_codes = with_named(ids, named), [without(codes, named) for codes in id_codes]
        codes = _first([*id_codes, read.codes[extraction.event_time.part], ids.codes, time_codes])
        left_out = 0
        if extraction.where is not None:
            # of a value that is null every condition is decided
            unread = {part: np.where(code == CODES["no_value"], 0, code) for part, code in read.codes.items()}
            truth = judge(extraction.where.test, read.parts, {part: code > 0 for part, code in unread.items()})
            undecided = _first([unread[part] for part in extraction.where.parts()])
            codes = np.where(truth == UNKNOWN, undecided, codes)
            codes[truth == FALSE] = _LEFT_OUT
            left_out = int(np.count_nonzero(truth == FALSE))
        rows = np.flatnonzero(codes == 0)
        return Extracted(rows, ids.write(rows), times[rows], left_out, _unreadable(codes))

    def _read(self, records: Records) -> _Read:
        parts: dict[RecordPart, PartColumn] = {}
        codes: dict[RecordPart, I8] = dict.fromkeys(self._others, np.zeros(len(records), np.int8))
        wants_keys = any(part.source == "key" for part in (*self._keys, *self._others))
        keys = ByteColumn.of(records.keys if wants_keys else ())
        if self._values:
            values = ByteColumn.of(records.values)
            columns, unread = self._value_reader.read(values)
            unread[:, values.is_null] = CODES["no_value"]
            parts.update(zip(self._values, columns, strict=True))
            codes.update(zip(self._values, unread, strict=True))
            if _VALUE in parts:
                parts[_VALUE].kinds[values.is_null] = kinds.NO_VALUE
        if self._keys:
            columns, unread = self._key_reader.read(keys)
            parts.update(zip(self._keys, columns, strict=True))
            codes.update(zip(self._keys, unread, strict=True))
        for part in self._json_headers:
            (parts[part],), (codes[part],) = self._header_reader.read(records.header(part.name))
        for part in self._others:
            if part.source == "timestamp":
                parts[part] = PartColumn.of_millis(np.array(records.timestamp_ms, np.int64))
            elif part.source == "partition":
                parts[part] = PartColumn.of_integers(np.array(records.partitions, np.int64))
            elif part.source == "offset":
                parts[part] = PartColumn.of_integers(np.array(records.offsets, np.int64))
            elif part.source == "header":
                parts[part] = PartColumn.of_bytes(records.header(part.name))
                codes[part] = records.broken_headers()
            else:
                parts[part] = PartColumn.of_bytes(keys)
        return _Read(parts, codes)


@dataclass(frozen=True, slots=True)
class _Read:
    """The parts of some records; and of each part why a row of it could not be read: a code of `CODES`, or 0."""

    parts: Mapping[RecordPart, PartColumn]
    codes: Mapping[RecordPart, I8]


def _first(codes: Sequence[I8]) -> I8:
    """Return of each row the first code that is not 0."""
    return reduce(lambda before, after: np.where(before, before, after), codes)


def _paths(parts: Sequence[RecordPart]) -> list[tuple[str | int, ...]]:
    return [part.path or () for part in parts]


def _unreadable(codes: I8) -> dict[Reason, npt.NDArray[np.intp]]:
    """Return the rows of each reason, ascending."""
    return {REASONS[code - 1]: np.flatnonzero(codes == code) for code in np.unique(codes).tolist() if code > 0}
