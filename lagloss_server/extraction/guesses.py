"""Guesses: which parts of a topic's records are likely ids and event times, from a sample of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from lagloss_server.base.fields import is_storable
from lagloss_server.base.format import datetime_of
from lagloss_server.extraction import kinds
from lagloss_server.extraction.avro_format import BadAvroSchema, avro_paths
from lagloss_server.extraction.columns import I64, ByteColumn, PartColumn
from lagloss_server.extraction.formats import FormatReader, Schemas, wire_schema_ids
from lagloss_server.extraction.ids import measure_ids, write_ids
from lagloss_server.extraction.json_format import load_json
from lagloss_server.extraction.protobuf_format import message_paths
from lagloss_server.extraction.protobuf_schema import BadProtobufSchema, ProtobufFile
from lagloss_server.extraction.spec import Format, Records
from lagloss_server.extraction.times import read_times
from lagloss_server.model.expressions import MAX_LENGTH, Path, RecordPart, write_part
from lagloss_server.model.message_ids import readable_id

MAX_PATHS: Final = 500
MAX_HEADERS: Final = 50
MAX_DEPTH: Final = 5
NEAR_MS: Final = 7 * 86_400_000.0
"""An event time is that near to the time of its record, or it is a date of something else."""
LEAST_SHARE: Final = 0.5
"""Of the records in which a part is to work, to be a guess at all."""
_ID_NAME: Final = re.compile(
    r"(^|[_\-.:])(id|uuid|guid|key|number|no|nr|ref|reference)$|(Id|ID|Uuid|UUID|Key)$", re.ASCII
)
_MESSAGE_NAME: Final = re.compile(
    r"(message|msg|event|record|trace|correlation|request)[_-]?(id|uuid|key)$", re.IGNORECASE
)
_TIME_NAME: Final = re.compile(r"time|date|(^|[_\-.@])(ts|at|when|created|occurred|updated)$|(At|Ts|On)$", re.ASCII)
_EVENT_TIME_NAME: Final = re.compile(r"event|occur|creat|produc|emit", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Guess:
    """An expression; the share of the records in which it gives an id, or a time near the record's own; of ids, the
    share of different ones among them; and an example of what it gives."""

    expression: str
    share: float
    distinct: float
    example: str


@dataclass(frozen=True, slots=True)
class Guesses:
    """Likely ids and event times, the likeliest first."""

    ids: tuple[Guess, ...]
    times: tuple[Guess, ...]


def guess(
    records: Records,
    form: Format = "auto",
    schema: str | None = None,
    message: str | None = None,
    registry: Schemas | None = None,
) -> Guesses:
    """Guess from a sample of a topic's records, with headers as lists; a thousand are enough.

    Raises:
        BadTapSchema, ProtobufCompilerMissing, RegistryUnreachable: as an `Extractor`.
    """
    if not len(records):
        return Guesses((), ())
    values, keys = ByteColumn.of(records.values), ByteColumn.of(records.keys)
    parts: dict[RecordPart, PartColumn] = {}
    value_paths = _paths(values, form, schema, message, registry)
    columns, _ = FormatReader(value_paths, form, schema, message, registry).read(values)
    parts.update({RecordPart("value", path): column for path, column in zip(value_paths, columns, strict=True)})
    key_paths = _paths(keys, "auto", None, None, registry)
    if key_paths == [()]:  # plain text
        parts.update([_plain_or_quoted(RecordPart("key"), keys)])
    else:
        columns, _ = FormatReader(key_paths, "auto", None, None, registry).read(keys)
        parts.update({RecordPart("key", path): column for path, column in zip(key_paths, columns, strict=True)})
    names = Counter(name for row in records.headers for name in {name for name, _ in row or ()})
    for name, _ in names.most_common(MAX_HEADERS):
        parts.update([_plain_or_quoted(RecordPart("header", name=name), records.header(name))])
    written = {write_part(part): column for part, column in parts.items()}
    written = {
        expression: column
        for expression, column in written.items()
        if 0 < len(expression) <= MAX_LENGTH and is_storable(expression)
    }
    times = _times(written, np.asarray(records.timestamp_ms, np.int64))
    return Guesses(_ids(written, {guess.expression for guess in times}), times)


def _plain_or_quoted(part: RecordPart, column: ByteColumn) -> tuple[RecordPart, PartColumn]:
    """Return a key or a header as it is, or as JSON if most are texts in quotes, as Spring's mappers write them."""
    (column_,), _ = FormatReader([()], "json", None, None, None).read(column)
    if 2 * np.count_nonzero(column_.kinds == kinds.TEXT) > np.count_nonzero(~column.is_null):
        return replace(part, path=()), column_
    return part, PartColumn.of_bytes(column)


def _ids(parts: Mapping[str, PartColumn], times: set[str]) -> tuple[Guess, ...]:
    guesses = []
    for expression, column in parts.items():
        label = expression.removesuffix(" as json")
        sizes, codes = measure_ids([column])
        rows = np.flatnonzero(codes == 0)
        if rows.size < LEAST_SHARE * codes.size or (expression in times and not _ID_NAME.search(label)):
            continue
        ids = write_ids([column], sizes, rows)
        share, distinct = rows.size / codes.size, len(set(ids)) / len(ids)
        if len(ids) > 1 and len(set(ids)) == 1:
            continue
        # a name outweighs a share of different ids that a repeated message, or an update, lowers a little
        is_named = expression != "key" and _ID_NAME.search(label)  # a key is often another thing's
        name = 0.3 if _MESSAGE_NAME.search(label) else 0.2 if is_named else 0
        depth = 0.02 * len(re.findall(r"[.\[]", expression))
        guesses.append((2 * share + distinct + name - depth, Guess(expression, share, distinct, readable_id(ids[0]))))
    return _ranked(guesses)


def _times(parts: Mapping[str, PartColumn], timestamp_ms: I64) -> tuple[Guess, ...]:
    guesses = []
    for expression, column in parts.items():
        times, codes = read_times(column, None)
        near = (codes == 0) & (np.abs(times - timestamp_ms) <= NEAR_MS)
        share = np.count_nonzero(near) / near.size
        if share < LEAST_SHARE:
            continue
        is_typed = bool(np.isin(column.kinds, (kinds.MILLIS, kinds.MICROS, kinds.NANOS, kinds.MOMENT)).any())
        name = 0.2 if is_typed or _TIME_NAME.search(expression.removesuffix(" as json")) else 0
        name += 0.1 if _EVENT_TIME_NAME.search(expression) else 0
        early = 0.05 * float((times[near] <= timestamp_ms[near]).mean())  # an event is before its record
        depth = 0.02 * len(re.findall(r"[.\[]", expression))
        example = _example(float(times[near][0]))
        distinct = np.unique(times[near]).size / np.count_nonzero(near)
        guesses.append((share + name + early - depth, Guess(expression, share, distinct, example)))
    stamps = np.unique(timestamp_ms).size / timestamp_ms.size
    return (*_ranked(guesses), Guess("timestamp", 1.0, stamps, _example(int(timestamp_ms[0]))))


def _example(at_ms: float) -> str:
    return datetime_of(at_ms / 1_000).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ranked(scored_guesses: Sequence[tuple[float, Guess]]) -> tuple[Guess, ...]:
    return tuple(guess for _, guess in sorted(scored_guesses, key=lambda scored: (-scored[0], scored[1].expression)))


def _paths(
    column: ByteColumn, form: Format, schema: str | None, message: str | None, registry: Schemas | None
) -> list[Path]:
    """Return the paths of a column's plain fields, by its schema or by what is there; the whole where it has none."""
    paths: dict[Path, None] = {}
    if schema is not None:
        paths.update(dict.fromkeys(_schema_paths(form, schema, message)))
    else:
        for schema_id in wire_schema_ids(column) if registry is not None and form != "text" else ():
            registered = registry.schema(schema_id) if registry is not None else None
            try:
                if registered is not None and registered.kind == "AVRO":
                    paths.update(dict.fromkeys(avro_paths(registered.text, registered.references)))
                elif registered is not None and registered.kind == "PROTOBUF":
                    paths.update(dict.fromkeys(message_paths(ProtobufFile.registered(registered).nested([0]))))
            except (BadAvroSchema, BadProtobufSchema):
                continue
        if form in ("auto", "json"):
            for record in column.rows():
                paths.update(dict.fromkeys(_json_paths(record or b"")))
                if len(paths) > MAX_PATHS:
                    break
    short = [path for path in paths if len(path) <= MAX_DEPTH][:MAX_PATHS]
    return short or [()]


def _schema_paths(form: Format, schema: str, message: str | None) -> Iterator[Path]:
    try:
        if form == "avro":
            yield from avro_paths(schema, {})
        else:
            yield from message_paths(ProtobufFile.given(schema).message(message))
    except (BadAvroSchema, BadProtobufSchema):
        return  # the reader says so


def _json_paths(text: bytes) -> Iterator[Path]:
    if text[:1] == b"\0":
        text = text[5:]
    try:
        document = load_json(text)
    except (ValueError, RecursionError):
        return
    if isinstance(document, dict):
        yield from _members(document, ())


def _members(document: Mapping[str, Any], above: Path) -> Iterator[Path]:
    for name, value in document.items():
        path = (*above, name)
        if isinstance(value, dict) and len(path) < MAX_DEPTH:
            yield from _members(value, path)
        elif isinstance(value, str | int | float) and name.isprintable():
            yield path
