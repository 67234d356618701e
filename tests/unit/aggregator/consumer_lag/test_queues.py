"""Lag of queues, from what SQS and CloudWatch answer. tests/integration has the same against an emulator."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from aggregator.consumer_lag.queues import QueueLags, queue_name
from aggregator.node_groups import QUEUES, NodeGroup, PartitionLag
from lagloss_server.base.errors import Boto3Missing
from lagloss_server.net.aws import region_of

AWS = "https://sqs.eu-central-1.amazonaws.com/123456789012/import"
LOCAL = "http://127.0.0.1:4566/000000000000/archive"
IMPORT, ARCHIVE = NodeGroup("scores", "db", AWS, QUEUES), NodeGroup("scores", "index", LOCAL, QUEUES)


class NoSuchQueue(Exception):
    response = {"Error": {"Code": "AWS.SimpleQueueService.NonExistentQueue"}}  # noqa: RUF012


@dataclass
class Aws:
    """Answers as SQS and CloudWatch do. `counts`: visible, delayed, in flight."""

    counts: dict[str, tuple[int, int, int] | Exception]
    ages_s: dict[str, float] | Exception = field(default_factory=dict)
    made: list[tuple[str, str | None]] = field(default_factory=list)
    ages_asked: int = 0

    def client(self, service: str, region: str | None) -> Any:
        self.made.append((service, region))
        return self

    def close(self) -> None: ...

    def get_queue_attributes(self, *, QueueUrl: str, AttributeNames: list[str]) -> Any:  # noqa: N803
        counts = self.counts[QueueUrl]
        if isinstance(counts, Exception):
            raise counts
        return {"Attributes": dict(zip(AttributeNames, map(str, counts), strict=True))}

    def get_metric_data(self, *, MetricDataQueries: list[dict[str, Any]], **_: Any) -> Any:  # noqa: N803
        self.ages_asked += 1
        if isinstance(self.ages_s, Exception):
            raise self.ages_s
        found = []
        for query in MetricDataQueries:
            (dimension,) = query["MetricStat"]["Metric"]["Dimensions"]
            age_s = self.ages_s.get(dimension["Value"])
            found.append({"Id": query["Id"], "Values": [] if age_s is None else [age_s, 1.0]})
        return {"MetricDataResults": found}


def test_messages_that_wait_and_are_in_flight_are_counted_and_the_oldest_has_an_age() -> None:
    aws = Aws({AWS: (5, 2, 3), LOCAL: (0, 0, 0)}, {"import": 90.5})
    _, found = QueueLags(aws.client).read([IMPORT, ARCHIVE])
    assert found == [PartitionLag(IMPORT, "import", 0, 7, 90_500, 3), PartitionLag(ARCHIVE, "archive", 0, 0, 0, 0)]
    assert aws.made == [("sqs", None), ("sqs", "eu-central-1"), ("cloudwatch", "eu-central-1")]


def test_an_age_that_is_not_known_is_none_and_cloudwatch_is_asked_once_per_minute() -> None:
    aws = Aws({AWS: (0, 0, 1)}, PermissionError("denied"))
    lags = QueueLags(aws.client)
    for _ in range(3):
        assert lags.read([IMPORT])[1] == [PartitionLag(IMPORT, "import", 0, 0, None, 1)]
    assert lags.trouble is None
    assert aws.ages_asked == 1


def test_a_queue_that_does_not_exist_has_no_lag_and_one_that_does_not_answer_costs_no_other_its() -> None:
    lags = QueueLags(Aws({AWS: NoSuchQueue(), LOCAL: (1, 0, 0)}).client)
    assert [lag.group for lag in lags.read([IMPORT, ARCHIVE])[1]] == [ARCHIVE]
    assert lags.trouble is None
    lags = QueueLags(Aws({AWS: ConnectionError("away"), LOCAL: (1, 0, 0)}).client)
    assert [lag.group for lag in lags.read([IMPORT, ARCHIVE])[1]] == [ARCHIVE]
    assert lags.trouble == "import: away"


def test_where_no_queue_answers_it_is_an_outage() -> None:
    lags = QueueLags(Aws({AWS: ConnectionError("away")}).client)
    with pytest.raises(TimeoutError, match="import: away"):
        lags.read([IMPORT])


@pytest.mark.parametrize(
    ("url", "region"),
    [
        (AWS, "eu-central-1"),
        ("https://eu-west-2.queue.amazonaws.com/1/q", "eu-west-2"),
        ("https://sqs.us-gov-west-1.amazonaws.com/1/q", "us-gov-west-1"),
        (LOCAL, None),
    ],
)
def test_a_queues_address_may_name_its_region(url: str, region: str | None) -> None:
    assert region_of(url) == region
    assert queue_name(url) == url.rpartition("/")[2]


def test_without_boto3_the_setting_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(Boto3Missing, match=r"lagloss-server\[aws\]"):
        QueueLags()
