"""Offsets of source connectors as workers of Kafka Connect store them: one JSON record for each part of a source."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

OffsetReason = Literal["bad_key", "bad_offset", "no_topic"]
"""Why a record of Connect's offset topic says nothing about a partition: bad_key: its key does not name a connector and
a part of its source; bad_offset: its value is not an offset; no_topic: the source is not a topic of Kafka, as a
database that Debezium reads."""
OFFSET_REASONS: Final[tuple[OffsetReason, ...]] = get_args(OffsetReason)
_MAX_OFFSET: Final = (1 << 63) - 2


class SourcePartition(NamedTuple):
    """A partition of Kafka that a connector mirrors. `alias`: what the connector calls its source cluster."""

    alias: str
    topic: str
    partition: int


class SourceOffset(NamedTuple):
    """The next offset that a connector takes of a partition, as a group would commit it: MirrorMaker stores that of the
    last record which it has mirrored or skipped. None: it was reset."""

    connector: str
    source: SourcePartition
    next: int | None


class OddOffset(NamedTuple):
    """A record that says nothing about a partition. `connector`: whose it is, None where that cannot be read."""

    connector: str | None
    reason: OffsetReason


def parse_source_offset(key: bytes | None, value: bytes | None) -> SourceOffset | OddOffset:
    """Return the offset in a record of Connect's offset topic, as its JsonConverter writes it without schemas.

    `["mirror", {"cluster": "a", "partition": 0, "topic": "orders"}]` is its key, `{"offset": 41}` its value.
    """
    named = _json(key)
    match named:
        case [str(connector), dict() | None as source]:
            pass
        case _:
            return OddOffset(None, "bad_key")
    match source:  # of MirrorMaker's source connector; its other connectors have other keys
        case {"cluster": str(alias), "topic": str(topic), "partition": int(partition)} if (
            len(source or ()) == 3 and not isinstance(partition, bool) and 0 <= partition < 1 << 31
        ):
            place = SourcePartition(alias, topic, partition)
        case _:
            return OddOffset(connector, "no_topic")
    stored = None if value is None else _json(value)
    match stored:
        case None if value is None or value.strip() == b"null":
            return SourceOffset(connector, place, None)
        case {"offset": int(offset)} if not isinstance(offset, bool) and 0 <= offset <= _MAX_OFFSET:
            return SourceOffset(connector, place, offset + 1)
        case _:
            return OddOffset(connector, "bad_offset")


def _json(raw: bytes | None) -> Any:
    """Return the value in JSON; None if it cannot be read."""
    try:
        return msgspec.json.decode(raw or b"null")
    except (msgspec.DecodeError, RecursionError):
        return None
