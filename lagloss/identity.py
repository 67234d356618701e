"""Identities: finding a message's id and event time, and the treatment of a message that has none.

Both are set at the source and travel unchanged: as the headers `lagloss-id` (UTF-8) and `lagloss-event-time` (decimal
epoch ms), as fields of the payload, or wherever a function finds them. A replayed message carries the replay's name in
the header `lagloss-replay`, wherever its id is; so do the messages sent on for it. The header `traceparent` is read at
the first node, never written: what traces a service propagates it.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from lagloss.sdk.buffer import Count
from lagloss.sdk.packing import epoch_ms
from lagloss.wire.format import MAX_ID_BYTES, replay_name
from lagloss.wire.times import read_time
from lagloss.wire.traces import TRACEPARENT_HEADER, cut_traceparent, parse_traceparent

ID_HEADER: Final = "lagloss-id"
TIME_HEADER: Final = "lagloss-event-time"
REPLAY_HEADER: Final = "lagloss-replay"
"""The replay's name, on a replayed message."""


class Identity(NamedTuple):
    """A message's id and event time, the replay it is part of, if any, and at the first node its trace."""

    message_id: str
    """1 to 255 bytes of UTF-8."""
    event_time_ms: int
    """Epoch ms."""
    replay: str | None = None
    """The replay's name; None for live traffic."""
    traceparent: str | None = None
    """As W3C's header of that name; None where it is not known, or of no use to the emitter."""

    def headers(self) -> list[tuple[str, str | bytes]]:
        """Return the headers to send along with the message."""
        headers: list[tuple[str, str | bytes]] = [(ID_HEADER, self.message_id), (TIME_HEADER, str(self.event_time_ms))]
        return headers if self.replay is None else [*headers, (REPLAY_HEADER, self.replay)]

    def report(self, method: Callable[..., bool], **more: Any) -> bool:
        """Call a method of an emitter for this message: `identity.report(emitter.filtered, reason="robot")`."""
        return method(self.message_id, self.event_time_ms, replay=self.replay, **more)

    def is_same_message(self, other: Identity) -> bool:
        """Return True if both name the same message, whichever replay it is part of."""
        return self[:2] == other[:2]

    def is_same_copy(self, other: Identity) -> bool:
        """Return True if both name the same message of the same replay, in whichever trace."""
        return self[:3] == other[:3]


@dataclass(frozen=True, slots=True)
class Carrier:
    """A Kafka message or an HTTP request in which an identity is searched."""

    headers: Mapping[str, bytes]
    """By name: as sent in Kafka, in lower case in HTTP."""
    body: bytes
    original: Any
    """The confluent_kafka.Message, or the ASGI scope."""


Source = Callable[[Carrier], Identity | None]
"""Finds the identity; to return None, or to raise, means that there is none."""
Missing = Literal["skip", "draw"] | Callable[[Carrier], Identity | None]
"""The treatment of a message without identity: see `Identities`."""


def from_headers(carrier: Carrier) -> Identity | None:
    """Return the identity in the headers `lagloss-id` and `lagloss-event-time`."""
    return Identity(carrier.headers[ID_HEADER].decode(), int(read_time(carrier.headers[TIME_HEADER].decode(), "ms")))


def from_json(id_field: str, time_field: str) -> Source:
    """Make a source that reads two fields of a JSON object, `a.b` for a field within a field.

    The time is what `lagloss.wire.times` reads: a number, or RFC 3339 with an offset. An id that is a number is read as
    text.
    """

    def source(carrier: Carrier) -> Identity | None:
        content = json.loads(carrier.body)
        message_id, when = _field(content, id_field), _field(content, time_field)
        if isinstance(message_id, int) and not isinstance(message_id, bool):
            message_id = str(message_id)
        return Identity(message_id, int(read_time(when)))

    return source


def replay_of(headers: Mapping[str, bytes]) -> str | None:
    """Return the name of the replay that a message with these headers is part of; None for live traffic."""
    value = headers.get(REPLAY_HEADER)
    return None if value is None else replay_in(value)


def replay_in(value: bytes) -> str:
    """Return the name of the replay in the header `lagloss-replay`, whatever it holds: a header alone makes a
    replay."""
    return replay_name(value.decode(errors="replace"))


def traceparent_of(headers: Mapping[str, bytes]) -> str | None:
    """Return the header `traceparent`, whatever it holds; None without one."""
    value = headers.get(TRACEPARENT_HEADER)
    return None if value is None else cut_traceparent(value.decode("latin-1"))


def recorded_traceparent(stated: str | None) -> str | None:
    """Return the stated traceparent if its trace is recorded, else that of OpenTelemetry's active span: a service that
    gets none, or one that it does not take, begins a trace."""
    return active_traceparent() if parse_traceparent(stated) is None else stated


def active_traceparent() -> str | None:
    """Return the traceparent of OpenTelemetry's active span.

    None where the host has not loaded OpenTelemetry, or no span is active. Never raises.
    """
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    try:
        span = api.get_current_span().get_span_context()
        return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}" if span.is_valid else None
    except Exception:
        return None


def _field(content: Any, path: str) -> Any:
    for name in path.split("."):
        content = content[name]
    return content


def draw_identity() -> Identity:
    """Draw a fresh id, with the present as event time: for the first node only."""
    return Identity(str(uuid.uuid4()), time.time_ns() // 1_000_000)


class Identities:
    """Finds the identity of each message, and counts messages without one.

    Args:
        source: finds an identity.
        missing: the treatment of a message in which the source finds nothing usable. `"skip"`: it is counted, sends no
            beacon, and the host handles it as ever. `"draw"`: it gets a fresh id and the present as its event time; at
            the pipeline's first node only. A function: called with the carrier; it returns an identity to continue
            with, or None if it has dealt with the message (sent it to a dead-letter queue, for example); that counts.
        first: True at the pipeline's first node.
        reads_traces: read the header `traceparent`, too, for an emitter that `keeps_traces`.

    Raises:
        ValueError: for `"draw"` at another node: a fresh id there would be a lost message and an unexplained one.
    """

    def __init__(
        self,
        source: Source = from_headers,
        missing: Missing = "skip",
        *,
        first: bool = False,
        reads_traces: bool = False,
    ) -> None:
        if missing == "draw" and not first:
            raise ValueError('expected missing="draw" only at the first node: elsewhere, a new id means a new message')
        if missing not in ("skip", "draw") and not callable(missing):
            raise ValueError(f'expected missing to be "skip", "draw" or a function, found {missing!r}')
        self._source = source
        self._missing = missing
        self.reads_traces = reads_traces
        self._skipped = Count()

    @property
    def needs_body(self) -> bool:
        """True if the source may look at more than headers."""
        return self._source is not from_headers

    @property
    def is_handed_over(self) -> bool:
        """True if a function deals with messages that have no identity."""
        return callable(self._missing)

    @property
    def skipped(self) -> int:
        """Messages without identity so far."""
        return self._skipped.read()

    def find(self, carrier: Carrier) -> Identity | None:
        """Return the identity that the message carries, None if it has no usable one. Never raises; counts nothing."""
        try:
            return self._traced(_checked(self._source(carrier), carrier), carrier)
        except Exception:
            return None

    def of(self, carrier: Carrier) -> Identity | None:
        """Return the message's identity; count the message and return None if it has none.

        Raises whatever a `missing` function raises.
        """
        identity = self.find(carrier)
        if identity is None:
            if self._missing == "draw":
                return self._traced(draw_identity(), carrier)
            if callable(self._missing):
                identity = self._traced(_with_replay(self._missing(carrier), carrier), carrier)
            if identity is None:
                self.count_skipped()
        return identity

    def _traced(self, identity_: Identity | None, carrier: Carrier) -> Identity | None:
        """Return the identity with the trace that the headers name, unless it names one itself."""
        if not self.reads_traces or identity_ is None or identity_.traceparent is not None:
            return identity_
        traceparent = traceparent_of(carrier.headers)
        return identity_ if traceparent is None else identity_._replace(traceparent=traceparent)

    def count_skipped(self) -> None:
        """Count a message that sends no beacon."""
        self._skipped.add()


def _checked(identity_: Identity | None, carrier: Carrier) -> Identity | None:
    """Return the identity if emitters would accept it, else None. Raises whatever a malformed identity causes."""
    if identity_ is None or not 1 <= len(identity_.message_id.encode()) <= MAX_ID_BYTES:
        return None
    return _with_replay(identity_._replace(event_time_ms=int(epoch_ms(identity_.event_time_ms))), carrier)


def _with_replay(identity_: Identity | None, carrier: Carrier) -> Identity | None:
    """Return the identity with the replay that the headers name, unless it names one itself."""
    if identity_ is None or identity_.replay is not None:
        return identity_
    return identity_._replace(replay=replay_of(carrier.headers))


def mapping_of(headers: Iterable[tuple[str, Any]] | Mapping[str, Any] | None) -> dict[str, bytes]:
    """Return Kafka headers, in any form that clients use, by name; the last of a name counts."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    return {name: value.encode() if isinstance(value, str) else value or b"" for name, value in pairs}
