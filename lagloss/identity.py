"""Where a message's id and event time come from, and what becomes of a message that has none.

Both are set at the source and travel unchanged: as the headers `lagloss-id` (UTF-8) and `lagloss-event-time` (decimal
epoch ms), as fields of the payload, or wherever a function finds them. A message that a replay brings back says so in
the header `lagloss-replay`, wherever its id is; what is sent on for it says so, too.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from lagloss.sdk.buffer import Count
from lagloss.sdk.packing import epoch_ms
from lagloss.wire.format import MAX_ID_BYTES, name_fits

ID_HEADER: Final = "lagloss-id"
TIME_HEADER: Final = "lagloss-event-time"
REPLAY_HEADER: Final = "lagloss-replay"
"""The replay's name, on a message that a replay brings back."""
UNNAMED_REPLAY: Final = "unnamed"
"""Stands for a replay whose name cannot be one: empty, or too long."""


class Identity(NamedTuple):
    """Which message it is, and which replay brought it, if one did."""

    message_id: str
    """1 to 255 bytes of UTF-8."""
    event_time_ms: int
    """Epoch ms."""
    replay: str | None = None
    """The replay's name; None for live traffic."""

    def headers(self) -> list[tuple[str, str | bytes]]:
        """Return the headers to send with the message."""
        own: list[tuple[str, str | bytes]] = [(ID_HEADER, self.message_id), (TIME_HEADER, str(self.event_time_ms))]
        return own if self.replay is None else [*own, (REPLAY_HEADER, self.replay)]

    def tell(self, say: Callable[..., bool], **more: Any) -> bool:
        """Call a method of an emitter for this message: `identity.tell(emitter.filtered, reason="robot")`."""
        return say(self.message_id, self.event_time_ms, replay=self.replay, **more)

    def is_same_message(self, other: Identity) -> bool:
        """Return whether it is the same message, whichever replay brought it."""
        return self[:2] == other[:2]


@dataclass(frozen=True, slots=True)
class Carrier:
    """What an identity is looked for in: a Kafka message or an HTTP request."""

    headers: Mapping[str, bytes]
    """Names as sent in Kafka, in lower case in HTTP."""
    body: bytes
    original: Any
    """The confluent_kafka.Message, or the ASGI scope."""


Source = Callable[[Carrier], Identity | None]
"""Finds the identity; None, or whatever it raises, means that there is none."""
Missing = Literal["skip", "draw"] | Callable[[Carrier], Identity | None]
"""What becomes of a message without identity: see `Identities`."""


def from_headers(carrier: Carrier) -> Identity | None:
    """Return the identity in the headers `lagloss-id` and `lagloss-event-time`."""
    return Identity(carrier.headers[ID_HEADER].decode(), int(carrier.headers[TIME_HEADER]))


def from_json(id_field: str, time_field: str) -> Source:
    """Return a source that reads two fields of a JSON object, `a.b` for a nested field. The time is epoch ms or RFC
    3339 with a zone; a numeric id is taken as text."""

    def source(carrier: Carrier) -> Identity | None:
        content = json.loads(carrier.body)
        message_id, when = _field(content, id_field), _field(content, time_field)
        if isinstance(message_id, int) and not isinstance(message_id, bool):
            message_id = str(message_id)
        if isinstance(when, str):
            when = datetime.fromisoformat(when)
        return Identity(message_id, int(epoch_ms(when)))

    return source


def replay_of(headers: Mapping[str, bytes]) -> str | None:
    """Return the name of the replay that a message with these headers belongs to; None for live traffic."""
    value = headers.get(REPLAY_HEADER)
    if value is None:
        return None
    name = value.decode(errors="replace")
    return name if name and name_fits(name) else UNNAMED_REPLAY


def _field(content: Any, path: str) -> Any:
    for name in path.split("."):
        content = content[name]
    return content


def drawn() -> Identity:
    """Return a fresh id with the present as event time: for the first node only."""
    return Identity(str(uuid.uuid4()), time.time_ns() // 1_000_000)


class Identities:
    """Gives each message its identity, and counts those that have none.

    Args:
        source: where to look.
        missing: what to do where the source finds nothing usable. `"skip"`: the message is counted, no beacon speaks of
            it, and the host handles it as ever. `"draw"`: it gets a fresh id and the present as its event time; at the
            pipeline's first node only. A function: is called with the carrier; it gives an identity to go on with, or
            None where it has dealt with the message (put it into a dead-letter queue, say), which counts.
        first: whether this is the pipeline's first node.

    Raises:
        ValueError: for `"draw"` at another node: a fresh id there would be a lost message and an unexplained one.
    """

    def __init__(self, source: Source = from_headers, missing: Missing = "skip", *, first: bool = False) -> None:
        if missing == "draw" and not first:
            raise ValueError('expected missing="draw" at the first node only: elsewhere a fresh id is another message')
        if missing not in ("skip", "draw") and not callable(missing):
            raise ValueError(f'expected missing to be "skip", "draw" or a function, found {missing!r}')
        self._source = source
        self._missing = missing
        self._skipped = Count()

    @property
    def needs_body(self) -> bool:
        """Whether the source may look at more than headers."""
        return self._source is not from_headers

    @property
    def is_handed_over(self) -> bool:
        """Whether a function deals with messages that have no identity."""
        return callable(self._missing)

    @property
    def skipped(self) -> int:
        """Messages without identity so far."""
        return self._skipped.read()

    def find(self, carrier: Carrier) -> Identity | None:
        """Return the identity that the message carries, or None if it has no usable one. Raises nothing, counts
        nothing."""
        try:
            return _checked(self._source(carrier), carrier)
        except Exception:
            return None

    def of(self, carrier: Carrier) -> Identity | None:
        """Return the message's identity, or None, which is counted. Raises what a `missing` function raises."""
        found = self.find(carrier)
        if found is None:
            if self._missing == "draw":
                return drawn()
            if callable(self._missing):
                found = _with_replay(self._missing(carrier), carrier)
            if found is None:
                self.count_skipped()
        return found

    def count_skipped(self) -> None:
        """Count a message that no beacon will be sent for."""
        self._skipped.add()


def _checked(found: Identity | None, carrier: Carrier) -> Identity | None:
    """Return the identity if emitters would take it; raise whatever an unusable one leads to."""
    if found is None or not 1 <= len(found.message_id.encode()) <= MAX_ID_BYTES:
        return None
    return _with_replay(found._replace(event_time_ms=int(epoch_ms(found.event_time_ms))), carrier)


def _with_replay(found: Identity | None, carrier: Carrier) -> Identity | None:
    """Add the replay named in the headers, unless the identity names one itself."""
    if found is None or found.replay is not None:
        return found
    return found._replace(replay=replay_of(carrier.headers))


def mapping_of(headers: Iterable[tuple[str, Any]] | Mapping[str, Any] | None) -> dict[str, bytes]:
    """Headers as Kafka clients give and take them, by name; the last of a name counts."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    return {name: value.encode() if isinstance(value, str) else value or b"" for name, value in pairs}
