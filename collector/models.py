"""What clients send: a batch of beacons of one node, as JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from lagloss.blocks import MAX_REASON_CHARS, epoch_ms
from lagloss.wire import MAX_ID_BYTES


def _time_ms(value: object) -> float:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            value = None
    elif isinstance(value, datetime):
        value = None
    try:
        return epoch_ms(value)
    except ValueError:
        raise ValueError("expected whole epoch milliseconds or RFC 3339 with a zone") from None


def _id_fits(value: str) -> str:
    if not 1 <= len(value.encode()) <= MAX_ID_BYTES:
        raise ValueError(f"expected 1 to {MAX_ID_BYTES} bytes of UTF-8")
    return value


def _is_text(value: str) -> str:
    value.encode()  # JSON can spell half a surrogate pair, UTF-8 cannot
    return value


TimeMs = Annotated[float, BeforeValidator(_time_ms, json_schema_input_type=int | str)]
"""Epoch milliseconds as a number, or RFC 3339 text."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$")]
Label = Annotated[str, Field(min_length=1, max_length=MAX_REASON_CHARS), AfterValidator(_is_text)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Beacon(_Strict):
    """One message at one checkpoint."""

    checkpoint: Annotated[str, Field(pattern=r"^(in|out(:[A-Za-z0-9][A-Za-z0-9_-]{0,99})?|filtered|dead)$")]
    message_id: Annotated[str, AfterValidator(_id_fits)]
    event_time: TimeMs
    observed_at: TimeMs | None = None
    """When it was seen; when the batch came in, if absent."""
    reason: Label | None = None
    replay: Label | None = None


class Batch(_Strict):
    """Beacons of one node of one pipeline; taken whole or not at all."""

    pipeline: Name
    node: Name
    first: bool = False
    """The node is the pipeline's first: its ids are named, and event times out of bounds refused."""
    beacons: Annotated[list[Beacon], Field(min_length=1)]


class Accepted(BaseModel):
    """The broker has acknowledged this many beacons."""

    accepted: int


class Problem(BaseModel):
    """RFC 9457; `position` counts the batch's beacons from 0."""

    type: Literal["about:blank"] = "about:blank"
    title: str
    status: int
    detail: str
    position: int | None = None
    field: str | None = None
