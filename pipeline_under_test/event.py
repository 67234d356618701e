"""An event as it travels: an id, a time, and a body that the nodes may change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from confluent_kafka import Message

from lagloss.identity import Identities, Identity
from lagloss.kafka import carrier_of

REASON_HEADER: Final = "lagloss-reason"
"""Why an event is in the dead-letter queue."""
_IDENTITIES: Final = Identities()
NOT_ACKNOWLEDGED: Final = "not acknowledged"
"""Why col-service hands an event back that it could not get to the broker: send it again."""


class NoIdentity(ValueError):
    """The record has no usable `lagloss-id` and `lagloss-event-time` headers, so nobody can say which event it is."""


@dataclass(frozen=True, slots=True)
class Event:
    """`id` and `event_time_ms` (epoch) are set at the source and never change; they travel as headers."""

    id: str
    event_time_ms: int
    body: bytes

    @classmethod
    def from_record(cls, record: Message) -> Event:
        """The event in a Kafka record.

        Raises:
            NoIdentity: if it does not say which event it is.
        """
        found = _IDENTITIES.find(carrier_of(record))
        if found is None:
            raise NoIdentity(f"{record.topic()}/{record.partition()} at {record.offset()}")
        return cls(found.message_id, found.event_time_ms, record.value() or b"")

    def headers(self, reason: str = "") -> list[tuple[str, str | bytes]]:
        """What to send along with the body; `reason` for the dead-letter queue."""
        named = Identity(self.id, self.event_time_ms).headers()
        return [*named, (REASON_HEADER, reason)] if reason else named

    def content(self) -> Mapping[str, Any]:
        """The body as a JSON object.

        Raises:
            ValueError: if it is none.
        """
        content = json.loads(self.body)
        if not isinstance(content, dict):
            raise ValueError(f"expected a JSON object, found {type(content).__name__}")  # noqa: TRY004 (bad data)
        return content

    def with_content(self, content: Mapping[str, Any]) -> Event:
        return replace(self, body=json.dumps(content, separators=(",", ":")).encode())
