"""S3, SNS and SQS of the pipeline: the clients, and the bucket that notifies a topic that fans out to the queues."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.topology import (
    IMPORTERS,
    NOTIFIED_SUFFIX,
    bucket_of,
    dead_queue_of,
    queue_of,
    topic_of,
)

_CONFIG: Final = Config(retries={"mode": "standard", "max_attempts": 3})
_HOME_REGION: Final = "us-east-1"
"""The only region that a bucket is made in without saying so."""
EMULATED: Final[Mapping[str, str]] = {
    "region_name": _HOME_REGION,
    "aws_access_key_id": "test",
    "aws_secret_access_key": "test",
}
"""Options of clients of an emulator, which checks no credentials."""
COUNTS: Final = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")


@dataclass(frozen=True, slots=True)
class Aws:
    """Clients. They are boto3's, thread-safe, and not to be taken through a fork."""

    s3: Any
    sns: Any
    sqs: Any

    @classmethod
    def connect(cls, settings: BatchSettings, **options: str) -> Self:
        """Return clients of the endpoint in the settings; region and credentials are in `options`, by boto3's names, or
        in the environment."""
        options = {**options, "endpoint_url": settings.s3_endpoint} if settings.s3_endpoint else options
        return cls(*(boto3.client(name, config=_CONFIG, **options) for name in ("s3", "sns", "sqs")))

    def counts(self, queue_url: str) -> tuple[int, int]:
        """Return how many messages of a queue are visible, and how many are in flight. On AWS both are approximate."""
        attributes = self.sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=list(COUNTS))["Attributes"]
        visible, in_flight = (int(attributes[name]) for name in COUNTS)
        return visible, in_flight

    def arn(self, queue_url: str) -> str:
        """Return a queue's ARN."""
        attributes = self.sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["QueueArn"])
        arn: str = attributes["Attributes"]["QueueArn"]
        return arn

    def close(self) -> None:
        for client in (self.s3, self.sns, self.sqs):
            client.close()


@dataclass(frozen=True, slots=True)
class Infrastructure:
    """The bucket, the topic's ARN, and the URLs of the queues and their dead-letter queues by importer."""

    bucket: str
    topic: str
    queues: Mapping[str, str]
    dead: Mapping[str, str]

    @classmethod
    def find(cls, aws: Aws, settings: BatchSettings) -> Self:
        """Return what `create` has made."""
        name = settings.pipeline

        def url(queue: str) -> str:
            url_: str = aws.sqs.get_queue_url(QueueName=queue)["QueueUrl"]
            return url_

        return cls(
            bucket_of(name),
            aws.sns.create_topic(Name=topic_of(name))["TopicArn"],
            {importer: url(queue_of(name, importer)) for importer in IMPORTERS},
            {importer: url(dead_queue_of(name, importer)) for importer in IMPORTERS},
        )


def create(aws: Aws, settings: BatchSettings) -> Infrastructure:
    """Create what is missing, and set it up. Idempotent; S3 sends an `s3:TestEvent` each time."""
    name = settings.pipeline
    bucket, topic = bucket_of(name), aws.sns.create_topic(Name=topic_of(name))["TopicArn"]
    _create_bucket(aws.s3, bucket)
    aws.sns.set_topic_attributes(
        TopicArn=topic,
        AttributeName="Policy",
        AttributeValue=_policy("s3.amazonaws.com", "sns:Publish", topic, f"arn:aws:s3:::{bucket}"),
    )
    queues, dead = {}, {}
    for importer in IMPORTERS:
        dead[importer] = aws.sqs.create_queue(QueueName=dead_queue_of(name, importer))["QueueUrl"]
        queues[importer] = aws.sqs.create_queue(QueueName=queue_of(name, importer))["QueueUrl"]
        arn = aws.arn(queues[importer])
        redrive = {"deadLetterTargetArn": aws.arn(dead[importer]), "maxReceiveCount": settings.max_receives}
        attributes = {
            "VisibilityTimeout": str(settings.visibility_s),
            "RedrivePolicy": json.dumps(redrive),
            "Policy": _policy("sns.amazonaws.com", "sqs:SendMessage", arn, topic),
        }
        aws.sqs.set_queue_attributes(QueueUrl=queues[importer], Attributes=attributes)
        raw = {"RawMessageDelivery": "true"}
        aws.sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes=raw)
    notified = {
        "TopicArn": topic,
        "Events": ["s3:ObjectCreated:*"],
        "Filter": {"Key": {"FilterRules": [{"Name": "suffix", "Value": NOTIFIED_SUFFIX}]}},
    }
    aws.s3.put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={"TopicConfigurations": [notified]}
    )
    return Infrastructure(bucket, topic, queues, dead)


def _create_bucket(s3: Any, bucket: str) -> None:
    with suppress(ClientError):
        s3.head_bucket(Bucket=bucket)
        return
    region = s3.meta.region_name
    place = {} if region == _HOME_REGION else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    s3.create_bucket(Bucket=bucket, **place)


def _policy(service: str, action: str, resource: str, source: str) -> str:
    """Return a policy that lets a service act on a resource for the sake of `source`."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": service},
        "Action": action,
        "Resource": resource,
        "Condition": {"ArnLike": {"aws:SourceArn": source}},
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})
