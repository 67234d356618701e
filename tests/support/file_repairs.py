"""Files pipelines of real nodes on S3 and SQS, of whose objects S3 does not notify the queue as told.

Each message that an importer receives is in the ledger, by the id that SQS gave it.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from urllib.parse import quote_plus

import boto3

from lagloss.files import FileNode
from tests.support.repairs import Chain

PLACE: Final = "link landing->queue"
KEPT: Final = "kept/"
"""Prefix of the keys of which S3 notifies the queue."""
VISIBILITY_S: Final = 3


@dataclass
class FilesChain(Chain):
    """landing -> queue -> importer -> done. `variables`: of boto3's environment; `suffix`: `.fifo` for such a queue,
    which S3 cannot notify: the landing node does."""

    variables: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""
    has_versions: bool = False
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What boto3 needs to delete each object, by its id as a message."""
    taken: set[tuple[str, str | None, str]] = field(default_factory=set)
    """Messages of SQS that were received: the file, the replay, the id that SQS gave it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        options = {
            "endpoint_url": self.variables["AWS_ENDPOINT_URL"],
            "region_name": self.variables["AWS_REGION"],
            "aws_access_key_id": self.variables["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": self.variables["AWS_SECRET_ACCESS_KEY"],
        }
        self.s3, self.sqs = (boto3.client(name, **options) for name in ("s3", "sqs"))
        self.bucket = f"raw-{uuid.uuid4().hex[:8]}"
        attributes = {"VisibilityTimeout": str(VISIBILITY_S), **({"FifoQueue": "true"} if self.suffix else {})}
        name = f"{self.pipeline}{self.suffix}"
        self.url: str = self.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]

    @property
    def definition(self) -> str:
        return f"""
            apiVersion: lagloss/v1
            kind: Pipeline
            metadata: {{name: {self.pipeline}}}
            spec:
              grace: 1s
              nodes:
                - {{name: landing, to: [queue, other], copy: all}}
                - {{name: queue, to: [importer], idempotent: true}}
                - {{name: importer, to: [done], idempotent: true, queue: "{self.url}"}}
                - {{name: done, idempotent: true}}
                - {{name: other}}
        """

    def start(self) -> None:
        """Make the bucket, let it notify the queue, and let the importer run."""
        self.s3.create_bucket(Bucket=self.bucket)
        if self.has_versions:
            self.s3.put_bucket_versioning(Bucket=self.bucket, VersioningConfiguration={"Status": "Enabled"})
        if not self.suffix:
            names = ["QueueArn"]
            arn = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]["QueueArn"]
            only = {"Key": {"FilterRules": [{"Name": "prefix", "Value": KEPT}]}}
            told = [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*"], "Filter": only}]
            self.s3.put_bucket_notification_configuration(
                Bucket=self.bucket, NotificationConfiguration={"QueueConfigurations": told}
            )
        self._landing = self._stack.enter_context(
            FileNode(f"{self.pipeline}-rows", "landing", self.bootstrap, files=self.pipeline, first=True)
        )
        self._other = self._stack.enter_context(
            FileNode(f"{self.pipeline}-rows", "other", self.bootstrap, files=self.pipeline)
        )
        thread = threading.Thread(target=self._import)
        thread.start()
        self._stack.callback(thread.join, 30)
        self._stack.callback(self._over.set)

    def send(self, windows: int, random: Random) -> None:
        """Store every file, with event times in so many minutes by the numbers in their names. These become ids."""
        bucket = self._landing.bucket(self.s3, files_to=["queue", "other"])
        fates, self.fates = self.fates, {}
        for name in random.sample(sorted(fates), len(fates)):
            # some arrive in each minute: what is lost in others is certain later
            minute = int(name.rpartition("-")[2]) % windows
            event_ms = (self.start_s + 60 * minute) * 1_000 + random.randrange(60_000)
            key = f"{KEPT if not fates[name] else 'dropped/'}dt=1/{event_ms}-{name} ä+@.avro"
            answer = bucket.put([], [], Bucket=self.bucket, Key=key, Body=random.randbytes(random.randint(0, 50)))
            version = answer.get("VersionId")
            message_id = f"{self.bucket}/{key}@{version or answer['ETag'].strip(chr(34))}"
            self.fates[message_id] = fates[name]
            self.files[message_id] = {"Bucket": self.bucket, "Key": key, **({"VersionId": version} if version else {})}
            assert self._other.files is not None
            self._other.files.received(message_id, event_ms)
            self._other.files.sent(message_id, event_ms)
            if self.suffix and not fates[name]:
                stored = {"key": quote_plus(key), "eTag": answer["ETag"].strip('"')}
                record = {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": self.bucket}, "object": stored}}
                body = json.dumps({"Records": [record]})
                names = {"MessageGroupId": "s3", "MessageDeduplicationId": name}
                self.sqs.send_message(QueueUrl=self.url, MessageBody=body, **names)

    def _import(self) -> None:
        names = {"files": self.pipeline, "queue": "queue", "deleted": "done"}
        with FileNode(f"{self.pipeline}-rows", "importer", self.bootstrap, **names) as node:
            queue, bucket = node.queue(self.sqs, self.url, notified_within_s=1), node.bucket(self.s3)
            while not self._over.is_set():
                for file in queue.receive(WaitTimeSeconds=1, MaxNumberOfMessages=10):
                    self.taken.add((file.stored.message_id, file.replay, file.message.id))
                    with queue.importing(file):
                        bucket.read(file.stored)["Body"].read()

    def notified(self, replay: str | None) -> Counter[str]:
        """How many messages of SQS named each file, of a replay."""
        return Counter(file for file, name, _ in set(self.taken) if name == replay)

    def topic_words(self, place: str) -> list[str]:
        """None: there is a queue before it."""
        return []
