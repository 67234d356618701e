"""What a node needs of S3 and SQS, in memory and with a clock that tests move: only for what no server can show soon,
such as a visibility timeout that runs out. tests/integration/lagloss/files has the same against LocalStack."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from hashlib import md5
from typing import Any
from urllib.parse import quote_plus

ARN = "arn:aws:sqs:eu-central-1:1:db-queue"


def _only(attributes: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name in names}


@dataclass
class FakeMessage:
    id: str
    body: str
    sent_ms: int
    visible_ms: int
    received: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    system: dict[str, str] = field(default_factory=dict)


@dataclass
class FakeQueue:
    """A client of SQS with one queue and its dead-letter queue."""

    now_ms: int
    visibility_s: int = 30
    max_receives: int | None = 2
    messages: list[FakeMessage] = field(default_factory=list)
    dead: list[FakeMessage] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    extended: list[tuple[str, int]] = field(default_factory=list)
    failing: bool = False

    def send(self, body: str, attributes: Mapping[str, Any] | None = None) -> None:
        name = f"m{len(self.messages)}"
        self.messages.append(FakeMessage(name, body, self.now_ms, self.now_ms, attributes=attributes or {}))

    def redrive(self) -> None:
        """Move what is dead back, as a task of SQS does: as new messages, which still say where they died."""
        for message in self.dead:
            self.messages.append(replace(message, id=f"{message.id}-again", visible_ms=self.now_ms, received=0))
        self.dead = []

    def get_queue_attributes(self, **request: Any) -> Mapping[str, Any]:
        redrive = {} if self.max_receives is None else {"maxReceiveCount": str(self.max_receives)}
        source = self.dead if request.get("QueueUrl", "").endswith("-dlq") else self.messages
        visible = sum(message.visible_ms <= self.now_ms for message in source)
        return {
            "Attributes": {
                "VisibilityTimeout": str(self.visibility_s),
                "RedrivePolicy": json.dumps(redrive),
                "QueueArn": ARN,
                "ApproximateNumberOfMessages": str(visible),
                "ApproximateNumberOfMessagesNotVisible": str(len(source) - visible),
            }
        }

    def receive_message(
        self,
        *,
        QueueUrl: str,
        VisibilityTimeout: int,
        MaxNumberOfMessages: int = 1,
        **request: Any,
    ) -> Mapping[str, Any]:
        found = []
        source = self.dead if QueueUrl.endswith("-dlq") else self.messages
        for message in list(source):
            if message.visible_ms > self.now_ms or len(found) == MaxNumberOfMessages:
                continue
            if source is self.messages and self.max_receives is not None and message.received >= self.max_receives:
                self.messages.remove(message)
                message.system["DeadLetterQueueSourceArn"] = ARN
                self.dead.append(message)
                continue
            message.received += 1
            message.visible_ms = self.now_ms + VisibilityTimeout * 1000
            system = {
                "SentTimestamp": str(message.sent_ms),
                "ApproximateReceiveCount": str(message.received),
                **message.system,
            }
            found.append(
                {
                    "MessageId": message.id,
                    "ReceiptHandle": message.id,
                    "Body": message.body,
                    "Attributes": _only(system, request.get("MessageSystemAttributeNames", ())),
                    "MessageAttributes": _only(message.attributes, request.get("MessageAttributeNames", ())),
                }
            )
        return {"Messages": found} if found else {}

    def delete_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, str]]) -> Mapping[str, Any]:
        if self.failing:
            raise ConnectionError("the queue is away")
        gone = {entry["ReceiptHandle"] for entry in Entries}
        self.messages = [message for message in self.messages if message.id not in gone]
        self.deleted += sorted(gone)
        return {"Successful": [{"Id": entry["Id"]} for entry in Entries]}

    def change_message_visibility(
        self,
        *,
        QueueUrl: str,
        ReceiptHandle: str,
        VisibilityTimeout: int,
    ) -> None:
        self.extended.append((ReceiptHandle, VisibilityTimeout))


@dataclass
class FakeBucket:
    """A client of S3 without versions."""

    objects: dict[str, bytes] = field(default_factory=dict)
    metadata: dict[str, Mapping[str, str]] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    aborted: int = 0
    failures: int = 0
    notify: Callable[[str, str], None] = lambda key, tag: None
    """Called with the key and the ETag of each object that `put_object` has stored."""

    def put_object(
        self, *, Bucket: str, Key: str, Body: bytes, Metadata: Mapping[str, str] | None = None
    ) -> Mapping[str, Any]:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("S3 is away")
        self.objects[Key] = Body
        self.metadata[Key] = Metadata or {}
        self.notify(Key, etag(Body))
        return {"ETag": f'"{etag(Body)}"'}

    def get_object(self, *, Bucket: str, Key: str, IfMatch: str) -> Mapping[str, Any]:
        if IfMatch != f'"{etag(self.objects[Key])}"':
            raise ValueError("412 PreconditionFailed")
        body = self.objects[Key]
        return {"Body": io.BytesIO(body), "Metadata": self.metadata.get(Key, {}), "ETag": f'"{etag(body)}"'}

    def create_multipart_upload(self, **request: Any) -> Mapping[str, Any]:
        return {"UploadId": "u"}

    def upload_part(self, *, Body: bytes, **request: Any) -> Mapping[str, Any]:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("S3 is away")
        self.parts.append(Body)
        return {"ETag": etag(Body)}

    def complete_multipart_upload(
        self,
        *,
        Key: str,
        MultipartUpload: dict[str, Any],
        **request: Any,
    ) -> Mapping[str, Any]:
        self.objects[Key] = b"".join(self.parts)
        return {"ETag": f'"{etag(self.objects[Key])}-{len(MultipartUpload["Parts"])}"', "VersionId": "v7"}

    def abort_multipart_upload(self, **request: Any) -> None:
        self.aborted += 1


def etag(body: bytes) -> str:
    return md5(body, usedforsecurity=False).hexdigest()


def notification(
    *keys: str, tag: str = "e", event: str = "ObjectCreated:Put", at: str = "2026-11-24T16:00:00.000Z"
) -> dict[str, Any]:
    """As S3 writes it."""
    return {
        "Records": [
            {
                "eventName": event,
                "eventTime": at,
                "s3": {"bucket": {"name": "raw"}, "object": {"key": quote_plus(key), "eTag": tag, "size": 1}},
            }
            for key in keys
        ]
    }


def event_bridge_event(
    key: str, kind: str = "Object Created", at: str = "2026-11-24T16:00:00Z", **stored: Any
) -> dict[str, Any]:
    """As EventBridge passes on what S3 says of an object, whose key is not encoded."""
    return {
        "version": "0",
        "id": "17793124-05d4-b198-2fde-7ededc63b103",
        "detail-type": kind,
        "source": "aws.s3",
        "account": "111122223333",
        "time": at,
        "region": "ca-central-1",
        "resources": ["arn:aws:s3:::raw"],
        "detail": {
            "version": "0",
            "bucket": {"name": "raw"},
            "object": {"key": key, "size": 1, "etag": "e", "sequencer": "00617F08299329D189", **stored},
            "request-id": "N4N7GDK58NMKJ12R",
            "requester": "123456789012",
            "source-ip-address": "1.2.3.4",
            "reason": "PutObject",
        },
    }
