"""An event as it travels: who it is, what it says, and what happened to it on the way."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Final

from confluent_kafka import Message

from lagloss.identity import Identities, Identity
from lagloss.kafka import carrier_of

REASON_HEADER: Final = "reason"
BACK_TO_HEADER: Final = "back-to"
TRIES_HEADER: Final = "tries"
BY_HEADER: Final = "set-aside-by"
NOT_ACKNOWLEDGED: Final = "not acknowledged"
"""Why col-service hands an event back that it could not get to the broker: send it again."""
_IDENTITIES: Final = Identities()


class NoIdentity(ValueError):
    """The record has no usable `lagloss-id` and `lagloss-event-time` headers, so the event cannot be identified."""


@dataclass(frozen=True, slots=True)
class Event:
    """`id` and `event_time_ms` (epoch) are set at the source and never change; all but the body travel as headers."""

    id: str
    event_time_ms: int
    body: bytes
    """Avro; see `pipeline_under_test.stream.events.schema`."""
    replay: str | None = None
    """The replay that brought it, if one did."""
    back_to: str = ""
    """The node that could not finish it: where the global retrier, or a redrive, sends it back to."""
    tries: int = 0
    """How often the global retrier has sent it back."""
    reason: str = ""
    """Why it is with the global retrier, in the dead-letter queue, or filtered."""
    by: str = ""
    """The node that put it there, for who looks at the topic: it is not read back."""

    @classmethod
    def from_record(cls, record: Message) -> Event:
        """Return the event in a Kafka record.

        Raises:
            NoIdentity: if it does not say which event it is.
        """
        carrier = carrier_of(record)
        identity = _IDENTITIES.find(carrier)
        if identity is None:
            raise NoIdentity(f"{record.topic()}/{record.partition()} at {record.offset()}")
        text = {name: value.decode(errors="replace") for name, value in carrier.headers.items()}
        tries = text.get(TRIES_HEADER, "")
        return cls(
            identity.message_id,
            identity.event_time_ms,
            record.value() or b"",
            identity.replay,
            text.get(BACK_TO_HEADER, ""),
            int(tries) if tries.isdecimal() else 0,
            text.get(REASON_HEADER, ""),
        )

    def headers(self) -> list[tuple[str, str | bytes]]:
        """Return the headers to send with the body."""
        optional = [
            (BACK_TO_HEADER, self.back_to),
            (TRIES_HEADER, str(self.tries or "")),
            (REASON_HEADER, self.reason),
            (BY_HEADER, self.by),
        ]
        return [*self.identity.headers(), *((name, text) for name, text in optional if text)]

    @property
    def identity(self) -> Identity:
        """The event as beacons name it."""
        return Identity(self.id, self.event_time_ms, self.replay)

    def with_body(self, body: bytes) -> Event:
        return replace(self, body=body)

    def set_aside(self, node: str, reason: str, by: str = "") -> Event:
        """Return this event as it is put into the dead-letter queue or handed to the global retrier, with the reason:
        by the node that it is to be brought back to, or by another."""
        return replace(self, back_to=node, reason=reason, by=by or node)

    @property
    def crc(self) -> int:
        """Checksum of the body, for beacons: a body that was changed on the way shows. CRC-32 does: all nodes are of
        this pipeline, and it must run without the SDK's extras."""
        return zlib.crc32(self.body)
