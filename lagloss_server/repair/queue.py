"""Repairs of files: the notifications of S3 that were lost, once more into the queue before the place.

SQS has no transactions. A message is `sending` in the ledger before SQS gets it, and `sent` once SQS has it. If the
process is killed in between, no later one can know whether it was sent: the repair never sends it again. (A FIFO queue
drops a second one, but for five minutes only, and a process can be suspended for longer before its request.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote_plus

from lagloss.identity import REPLAY_HEADER
from lagloss.wire.format import hash_id
from lagloss_server.base.errors import AwsUnreachable
from lagloss_server.model.message_ids import unescape_id
from lagloss_server.net.aws import MakeClient, boto3_clients, reaching_aws, region_of, status_of
from lagloss_server.repair.ledger import StoredRepair
from lagloss_server.repair.lost import LostId
from lagloss_server.repair.plan import FilePosition, PlannedMessage
from lagloss_server.repair.records import MessageKey
from lagloss_server.repair.transport import NothingSent, Say

MOST: Final = 10
"""Messages of one request, as SQS allows."""
AT_ONCE: Final = 10
"""Objects that are looked at side by side."""
PATIENCE: Final = {"connect_timeout": 5.0, "read_timeout": 20.0}
_ABSENT: Final = {False: {404}, True: {400, 404, 405}}
"""HTTP status of an object that is not there, and of a version: not one of this bucket, or a delete marker."""
_ID: Final = re.compile(r"(?P<bucket>[A-Za-z0-9._-]{3,255})/(?P<key>.+)@(?P<version>[^@]+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FileVersion:
    """A version of an object, as a files pipeline names it. `version`: its version id or, in a bucket without versions,
    its ETag."""

    bucket: str
    key: str
    version: str

    @classmethod
    def of(cls, message: LostId) -> Self | None:
        """Return the file that a message is; None if its id is not of that form, or shortened."""
        name = unescape_id(message.message_id or "")
        match = _ID.fullmatch(name)
        return cls(**match.groupdict()) if match is not None and hash_id(name) == message.id_hash else None

    def notification(self, head: Mapping[str, Any], region: str | None) -> str:
        """Return what S3 sends when it has stored the object; `head`: its answer to HeadObject."""
        etag = head["ETag"].strip('"')
        stored = {"key": quote_plus(self.key, safe="/"), "size": head["ContentLength"], "eTag": etag}
        record = {
            "eventVersion": "2.1",
            "eventSource": "aws:s3",
            "awsRegion": region,
            "eventTime": f"{head['LastModified']:%Y-%m-%dT%H:%M:%S}.000Z",
            "eventName": "ObjectCreated:Put",
            "s3": {
                "s3SchemaVersion": "1.0",
                "bucket": {"name": self.bucket, "arn": f"arn:aws:s3:::{self.bucket}"},
                "object": stored if self.version == etag else {**stored, "versionId": self.version},
            },
        }
        return json.dumps({"Records": [record]})


class QueueTransport:
    """Looks for objects in S3, and sends notifications of them into a queue (`RepairTransport`).

    Needs the rights s3:GetObject, s3:GetObjectVersion and s3:ListBucket, sqs:GetQueueAttributes and sqs:SendMessage.

    Raises:
        Boto3Missing
    """

    most = MOST

    def __init__(self, url: str, make_client: MakeClient | None = None) -> None:
        self._url, self._is_fifo = url, url.endswith(".fifo")
        tries = {"retries": {"total_max_attempts": 1}}  # what a request has become that timed out is unknown
        with reaching_aws(f"Connecting to {url}"):
            self._sqs = (make_client or boto3_clients(**PATIENCE, **tries))("sqs", region_of(url))
            self._s3 = (make_client or boto3_clients(**PATIENCE))("s3", region_of(url))

    def close(self) -> None:
        self._sqs.close()
        self._s3.close()

    def locate(self, messages: Sequence[LostId], say: Say) -> dict[MessageKey, FilePosition]:
        say(f"looking for {len(messages):,} files in S3")
        heads = zip(messages, self._heads(messages), strict=True)
        return {message.key: FilePosition(self._url) for message, head in heads if head is not None}

    def ends(self) -> dict[str, dict[int, int]]:
        return {}

    def rate(self) -> float:
        return 0.0

    def begin(self, repair: StoredRepair) -> None:
        self._name = repair.name
        with reaching_aws(f"GetQueueAttributes of {self._url}"):
            self._sqs.get_queue_attributes(QueueUrl=self._url, AttributeNames=["QueueArn"])

    def resume(self, repair: StoredRepair, plan: Sequence[PlannedMessage]) -> tuple[int, list[PlannedMessage]]:
        return repair.position, list(plan)

    def read(self, waiting: Sequence[PlannedMessage]) -> dict[int, dict[str, Any]]:
        heads = self._heads([planned.message for planned in waiting])
        return {
            planned.position: self._entry(planned, head)
            for planned, head in zip(waiting, heads, strict=True)
            if head is not None
        }

    def send(self, contents: Mapping[int, dict[str, Any]], position: int) -> Collection[int]:
        what = f"SendMessageBatch to {self._url}"
        try:
            with reaching_aws(what):
                answer = self._sqs.send_message_batch(QueueUrl=self._url, Entries=list(contents.values()))
        except AwsUnreachable as error:
            if _is_unsent(error.__cause__):
                raise NothingSent(**error.facts) from error
            raise
        failed = {int(entry["Id"]): entry["Code"] for entry in answer.get("Failed", ())}
        if len(failed) == len(contents):
            raise NothingSent(what=what, detail=", ".join(sorted(set(failed.values()))))
        return failed.keys()

    def _entry(self, planned: PlannedMessage, head: tuple[FileVersion, Mapping[str, Any]]) -> dict[str, Any]:
        file, answer = head
        id_hash = f"{planned.message.id_hash:016x}"
        entry: dict[str, Any] = {
            "Id": str(planned.position),
            "MessageBody": file.notification(answer, region_of(self._url) or self._sqs.meta.region_name),
            "MessageAttributes": {REPLAY_HEADER: {"DataType": "String", "StringValue": self._name}},
        }
        if self._is_fifo:
            entry |= {"MessageDeduplicationId": f"{self._name}/{id_hash}", "MessageGroupId": id_hash}
        return entry

    def _heads(self, messages: Iterable[LostId]) -> list[tuple[FileVersion, Mapping[str, Any]] | None]:
        """Return each message's file with S3's answer to HeadObject; None if it is not there any more."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(self._head, map(FileVersion.of, messages)))

    def _head(self, file: FileVersion | None) -> tuple[FileVersion, Mapping[str, Any]] | None:
        if file is None:
            return None
        for version in ({}, {"VersionId": file.version}):  # the newest first, which most are, with or without versions
            with suppress(_Absent), reaching_aws(f"HeadObject of {file.bucket}/{file.key}"):
                answer = self._answer(version, Bucket=file.bucket, Key=file.key)
                if _version_of(answer) == file.version:
                    return file, answer
        return None

    def _answer(self, version: Mapping[str, str], **request: str) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = self._s3.head_object(**request, **version)
        except Exception as error:  # boto3's errors have no base of their own
            if status_of(error) in _ABSENT[bool(version)]:
                raise _Absent from error
            raise
        return answer


class _Absent(Exception):
    """S3 does not have it."""


def _version_of(head: Mapping[str, Any]) -> str:
    version: str = head.get("VersionId") or "null"
    etag: str = head["ETag"].strip('"')
    return etag if version == "null" else version


def _is_unsent(error: BaseException | None) -> bool:
    """Return whether a request that failed has sent nothing for certain: it was refused, or there was no connection."""
    return 400 <= status_of(error) < 500 or type(error).__name__ in ("EndpointConnectionError", "ConnectTimeoutError")
