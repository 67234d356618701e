"""Notifications of S3: the objects that a queue's message names, and the identity of an object as a message."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final
from urllib.parse import unquote_plus

import xxhash

from lagloss.identity import REPLAY_HEADER, replay_in
from lagloss.sdk.packing import EventTime
from lagloss.wire.format import MAX_ID_BYTES
from lagloss.wire.times import read_time

_EPOCH_MS: Final = re.compile(r"(?<!\d)\d{13}(?!\d)")
_CREATED: Final = "ObjectCreated:"
_CREATED_BY_EVENT_BRIDGE: Final = "Object Created"

FileTime = Callable[[str], EventTime | None]
"""Finds a file's event time in its key; None if it has none."""


class BadNotification(ValueError):
    """Expected an S3 notification (direct, by SNS or by EventBridge), found {found}."""

    def __init__(self, text: str) -> None:
        super().__init__(f"expected an S3 notification (direct, by SNS or by EventBridge), found {text}")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One version of an object. `version` is its version id or, in a bucket without versions, its ETag.

    `stored_at_ms`: when S3 had stored it, by S3's clock; None where that is not known.
    """

    bucket: str
    key: str
    version: str
    version_id: str | None = None
    size: int | None = None
    sequencer: str | None = None
    stored_at_ms: int | None = None

    @classmethod
    def of(cls, bucket: str, key: str, etag: str | None, version_id: str | None, **more: Any) -> StoredObject:
        """Return the object that S3 answers with or notifies of."""
        named = None if version_id in (None, "", "null") else version_id
        return cls(bucket, key, named or (etag or "").strip('"'), named, **more)

    @property
    def message_id(self) -> str:
        """Its id as a message, `BUCKET/KEY@VERSION`. One that is too long for an id keeps its end, behind a hash."""
        text = f"{self.bucket}/{self.key}@{self.version}"
        raw = text.encode()
        if len(raw) <= MAX_ID_BYTES:
            return text
        digest = xxhash.xxh3_128_hexdigest(raw) + "~"
        return digest + raw[len(digest) - MAX_ID_BYTES :].decode(errors="ignore")


def time_in_name(key: str) -> int | None:
    """Return the last 13 digits in a row of a key, as epoch ms: `dt=2026-11-24/hour=16/1795536000000-7f3a.avro`."""
    times = _EPOCH_MS.findall(key)
    return int(times[-1]) if times else None


def objects_in(body: str) -> list[StoredObject]:
    """Return the objects that a message says were created: none for `s3:TestEvent`, and for events of other kinds.

    Takes what S3 sends and what EventBridge passes on, each as it is or in SNS's envelope.

    Raises:
        BadNotification: for anything else.
    """
    content = _json(body)
    while content.get("Type") == "Notification" and "Records" not in content:
        content = _json(content.get("Message"))
    if content.get("Event") == "s3:TestEvent":
        return []
    try:
        if content.get("source") == "aws.s3" and content["detail-type"].startswith("Object "):
            return list(_created_by_event_bridge(content))
        if isinstance(content.get("Records"), list):
            return list(_created(content["Records"]))
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise BadNotification(f"a notification without {error}: {body[:100]!r}") from error
    raise BadNotification(f"no Records, s3:TestEvent or object event in {body[:100]!r}")


def replay_in_envelope(body: str) -> str | None:
    """Return the name of the replay in the attributes of SNS's envelope, the outermost if there are several; None if
    there is none."""
    with suppress(BadNotification):
        content = _json(body)
        while content.get("Type") == "Notification":
            attributes = content.get("MessageAttributes")
            attribute = attributes.get(REPLAY_HEADER) if isinstance(attributes, dict) else None
            if attribute is not None:
                return replay_in(_attribute_bytes(attribute))
            content = _json(content.get("Message"))
    return None


def _attribute_bytes(attribute: Any) -> bytes:
    value = attribute.get("Value") if isinstance(attribute, dict) else None
    if not isinstance(value, str):
        return b""
    raw = value.encode(errors="replace")
    if attribute.get("Type") == "Binary":
        with suppress(ValueError):
            return b64decode(raw, validate=True)
    return raw


def _json(text: object) -> Mapping[str, Any]:
    try:
        content = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise BadNotification(f"{str(text)[:100]!r}")
    return content


def _created(records: list[Mapping[str, Any]]) -> Iterator[StoredObject]:
    for record in records:
        if not record["eventName"].removeprefix("s3:").startswith(_CREATED):
            continue
        stored = record["s3"]["object"]
        yield StoredObject.of(
            _text(record["s3"]["bucket"]["name"]),
            unquote_plus(_text(stored["key"])),
            _text(stored.get("eTag") or ""),
            _text(stored.get("versionId") or ""),
            size=stored.get("size"),
            sequencer=stored.get("sequencer"),
            stored_at_ms=_epoch_ms(record.get("eventTime")),
        )


def _created_by_event_bridge(event: Mapping[str, Any]) -> Iterator[StoredObject]:
    if event["detail-type"] != _CREATED_BY_EVENT_BRIDGE:
        return
    stored = event["detail"]["object"]
    yield StoredObject.of(
        _text(event["detail"]["bucket"]["name"]),
        _text(stored["key"]),  # as it is called: only S3's own form is encoded as in a URL
        _text(stored.get("etag") or ""),
        _text(stored.get("version-id") or ""),
        size=stored.get("size"),
        sequencer=stored.get("sequencer"),
        stored_at_ms=_epoch_ms(event.get("time")),
    )


def _text(value: Any) -> str:
    """Return a name that can be written as UTF-8. Raises TypeError or ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"a name, but with {value!r}")
    value.encode()
    return value


def _epoch_ms(when: str | None) -> int | None:
    """Return a time of ISO 8601, which is UTC if it does not say. Raises TypeError or ValueError."""
    return None if when is None else int(read_time(_text(when), zone=UTC))
