"""Extraction: message ids and event times of the records of a topic, by columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from lagloss_server.model.expressions import RecordPart, Source
from taps.extraction.columns import I8, ByteColumn, PartColumn
from taps.extraction.conditions import FALSE, UNKNOWN, judge
from taps.extraction.formats import FormatReader, Schemas
from taps.extraction.headers import header_column
from taps.extraction.ids import measure_ids, write_ids
from taps.extraction.reasons import CODES, REASONS, Reason
from taps.extraction.spec import Extracted, Extraction, Records
from taps.extraction.times import read_times


class Extractor:
    """Extracts ids and event times as an `Extraction` says.

    Raises:
        BadTapSchema: the schema given cannot be used.
        ProtobufCompilerMissing: it is the text of a .proto, for which there is no compiler.
    """

    def __init__(self, extraction: Extraction, registry: Schemas | None = None) -> None:
        self._extraction = extraction
        parts = extraction.parts()
        self._values = tuple(part for part in parts if part.source == "value")
        self._keys = tuple(part for part in parts if part.source == "key" and part.path is not None)
        self._others = tuple(part for part in parts if part not in self._values + self._keys)
        schema, message = extraction.schema, extraction.message
        self._value_reader = FormatReader(_paths(self._values), extraction.format, schema, message, registry)
        self._key_reader = FormatReader(_paths(self._keys), "auto", None, None, registry)

    def extract(self, records: Records) -> Extracted:
        """Return the ids and times of these records.

        Raises:
            RegistryUnreachable: a schema is wanted that the registry cannot be asked for.
        """
        found = _Found(self, records)
        extraction = self._extraction
        ids = [found.parts[part] for part in extraction.id.parts]
        sizes, codes = measure_ids(ids)
        times, time_codes = read_times(found.parts[extraction.event_time.part], extraction.event_time.unit)
        codes = np.where(codes, codes, time_codes)
        for source in {part.source for part in (*extraction.id.parts, extraction.event_time.part)}:
            if source in found.codes:
                codes = np.where(found.codes[source], found.codes[source], codes)
        left_out = 0
        if extraction.where is not None:
            truth = judge(extraction.where.test, found.parts, found.unread)
            for unread in found.codes.values():
                codes = np.where((truth == UNKNOWN) & (unread > 0), unread, codes)
            codes[truth == FALSE] = -1
            left_out = int(np.count_nonzero(truth == FALSE))
        rows = np.flatnonzero(codes == 0)
        return Extracted(rows, write_ids(ids, sizes, rows), times[rows], left_out, _unreadable(codes))

    def read_parts(self, records: Records) -> tuple[dict[RecordPart, PartColumn], dict[Source, I8]]:
        """Return each part of these records, and by source why a row of it cannot be read: a code of `CODES`, or 0."""
        parts: dict[RecordPart, PartColumn] = {}
        codes: dict[Source, I8] = {}
        keys = ByteColumn.of(records.keys) if any(part.source == "key" for part in self._extraction.parts()) else None
        if self._values:
            values = ByteColumn.of(records.values)
            columns, codes["value"] = self._value_reader.read(values)
            codes["value"][values.is_null] = CODES["no_value"]
            parts.update(zip(self._values, columns, strict=True))
        if self._keys and keys is not None:
            columns, codes["key"] = self._key_reader.read(keys)
            parts.update(zip(self._keys, columns, strict=True))
        for part in self._others:
            if part.source == "timestamp":
                parts[part] = PartColumn.of_millis(np.array(records.timestamp_ms, np.int64))
            elif part.source == "header":
                parts[part] = PartColumn.of_bytes(header_column(records.headers, part.name))
            elif keys is not None:
                parts[part] = PartColumn.of_bytes(keys)
        return parts, codes


class _Found:
    """The parts of some records, and where they could not be read."""

    def __init__(self, extractor: Extractor, records: Records) -> None:
        self.parts, self.codes = extractor.read_parts(records)
        none = np.zeros(len(records), np.bool_)
        sources = {source: codes > 0 for source, codes in self.codes.items()}
        self.unread: Mapping[RecordPart, npt.NDArray[np.bool_]] = {
            part: none if part.source == "key" and part.path is None else sources.get(part.source, none)
            for part in self.parts
        }


def _paths(parts: Sequence[RecordPart]) -> list[tuple[str | int, ...]]:
    return [part.path or () for part in parts]


def _unreadable(codes: I8) -> dict[Reason, npt.NDArray[np.intp]]:
    """Return the rows of each reason, ascending."""
    return {REASONS[code - 1]: np.flatnonzero(codes == code) for code in np.unique(codes).tolist() if code > 0}
