"""Why a record has no id or time: the reasons, which docs/taps.md lists."""

from __future__ import annotations

from typing import Final, Literal, get_args

Reason = Literal[
    "no_value",
    "not_json",
    "not_avro",
    "not_protobuf",
    "unknown_schema",
    "no_id",
    "bad_id",
    "no_time",
    "bad_time",
    "bad_headers",
]
"""no_value: a tombstone, whose value has neither id nor time; not_json, not_avro, not_protobuf: its bytes are not of
that format, or not of the schema; unknown_schema: the registry does not know the schema that it names, or the schema
cannot be used; no_id, no_time: the field is not there, or null; bad_id: no text, integer or bytes, or not of 1 to 255
bytes; bad_time: no number, or no text that is a time; bad_headers: a header is asked, and a name is no UTF-8."""

REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
CODES: Final[dict[Reason, int]] = {reason: code for code, reason in enumerate(REASONS, 1)}
"""Reasons as numbers in arrays, where 0 means none."""
