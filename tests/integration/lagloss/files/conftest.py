"""A bucket that tells a queue of each object, by SNS, as a batch pipeline has it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest

from lagloss_server.ops.embedded.localstack import REGION, EmbeddedLocalStack

VISIBILITY_S = 2


@dataclass(frozen=True)
class Landing:
    """Clients, and what they reach: `queues` hang on the bucket by a topic, each with a dead-letter queue."""

    s3: Any
    sqs: Any
    bucket: str
    queues: dict[str, str]
    dead: dict[str, str]

    def counts(self, url: str) -> tuple[int, int]:
        """Messages that are visible, and in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return int(found[names[0]]), int(found[names[1]])

    def key(self) -> str:
        return f"dt=2026-11-24/hour=16/{time.time_ns() // 1_000_000}-{uuid.uuid4().hex[:6]} ä+.avro"


def arn(sqs: Any, url: str) -> str:
    found: str = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    return found


@pytest.fixture(params=["raw", "enveloped"])
def landing(localstack: EmbeddedLocalStack, request: pytest.FixtureRequest) -> Iterator[Landing]:
    """With SNS's raw delivery, and in its envelope."""
    options = {
        "endpoint_url": localstack.url,
        "region_name": REGION,
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
    }
    s3, sns, sqs = (boto3.client(name, **options) for name in ("s3", "sns", "sqs"))
    word = uuid.uuid4().hex[:8]
    bucket, topic = f"raw-{word}", sns.create_topic(Name=f"files-{word}")["TopicArn"]
    s3.create_bucket(Bucket=bucket)
    queues, dead = {}, {}
    for name in ("db", "index"):
        dead[name] = sqs.create_queue(QueueName=f"{name}-{word}-dlq")["QueueUrl"]
        redrive = json.dumps({"deadLetterTargetArn": arn(sqs, dead[name]), "maxReceiveCount": 2})
        attributes = {"VisibilityTimeout": str(VISIBILITY_S), "RedrivePolicy": redrive}
        queues[name] = sqs.create_queue(QueueName=f"{name}-{word}", Attributes=attributes)["QueueUrl"]
        raw = {"RawMessageDelivery": "true"} if request.param == "raw" else {}
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn(sqs, queues[name]), Attributes=raw)
    configuration = {"TopicConfigurations": [{"TopicArn": topic, "Events": ["s3:ObjectCreated:*"]}]}
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=configuration)
    yield Landing(s3, sqs, bucket, queues, dead)
    for client in (s3, sns, sqs):
        client.close()
