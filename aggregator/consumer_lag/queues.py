"""Lag of queues: how many messages of an SQS queue wait, how many are in hand, and how old the oldest is."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog

from aggregator.node_groups import NodeGroup, PartitionLag
from lagloss_server.groups.consumer_groups import GroupDescription
from lagloss_server.model.taps import Extraction
from lagloss_server.net.aws import MakeClient, boto3_clients, region_of

log = structlog.get_logger()

PATIENCE: Final = {"connect_timeout": 2.0, "read_timeout": 2.0, "retries": {"max_attempts": 1}}
AGES_EVERY_S: Final = 60.0
"""CloudWatch has one value per minute, and a price for asking."""
AGE_WITHIN: Final = timedelta(minutes=5)
"""CloudWatch's values are some minutes late; older ones are not current."""
AT_ONCE: Final = 500
"""Queries in one question to CloudWatch."""
_VISIBLE, _DELAYED, _IN_FLIGHT = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
)


def queue_name(url: str) -> str:
    """Return the name of the queue at `url`."""
    return url.rstrip("/").rpartition("/")[2]


class QueueLags:
    """Reader of the lags of queues, by boto3: credentials, region and endpoints are those of its own environment.

    Needs the rights sqs:GetQueueAttributes and, for ages, cloudwatch:GetMetricData. Used by one thread.
    """

    def __init__(self, make_client: MakeClient | None = None) -> None:
        self._make_client = make_client or boto3_clients(**PATIENCE)
        self._clients: dict[tuple[str, str | None], Any] = {}
        self._ages: dict[str, int] = {}
        self._ages_asked = -AGES_EVERY_S
        self._age_error: str | None = None
        self.trouble: str | None = None
        """Why something was left out of the last reading."""

    def read(
        self, groups: Collection[NodeGroup], _expressions: Mapping[str, Extraction] | None = None
    ) -> tuple[int, list[PartitionLag]]:
        """Return the time of the request (epoch ms), and the lag of each queue; one that does not exist has none.

        Raises:
            TimeoutError: no queue answered.
        """
        self.trouble = None
        asked_ms = int(time.time() * 1_000)
        counts: dict[str, Mapping[str, int]] = {}
        for url in sorted({group.group for group in groups}):
            try:
                counts[url] = self._counts(url)
            except Exception as error:  # boto3's errors have no base of their own
                if not _is_unknown(error):
                    self.trouble = f"{queue_name(url)}: {error}"
        if self.trouble is not None and not counts:
            raise TimeoutError(self.trouble)
        waiting = [url for url, counts_of_url in counts.items() if any(counts_of_url.values())]
        ages = self._read_ages(waiting) if waiting else {}
        return asked_ms, [_lag(group, counts[group.group], ages) for group in groups if group.group in counts]

    def describe(self, _groups: Collection[NodeGroup]) -> dict[NodeGroup, GroupDescription]:
        """Return nothing: a queue has no members."""
        return {}

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _client(self, service: str, url: str) -> Any:
        key = (service, region_of(url))
        if key not in self._clients:
            self._clients[key] = self._make_client(*key)
        return self._clients[key]

    def _counts(self, url: str) -> dict[str, int]:
        names = [_VISIBLE, _DELAYED, _IN_FLIGHT]
        answer = self._client("sqs", url).get_queue_attributes(QueueUrl=url, AttributeNames=names)
        return {name: int(answer["Attributes"].get(name, 0)) for name in names}

    def _read_ages(self, urls: Collection[str]) -> dict[str, int]:
        """Return the age of the oldest message (ms) of those queues of which CloudWatch knows it, once per minute."""
        now = time.monotonic()
        if now - self._ages_asked < AGES_EVERY_S:
            return self._ages
        self._ages_asked, self._ages = now, {}
        by_region: dict[str | None, list[str]] = {}
        for url in urls:
            by_region.setdefault(region_of(url), []).append(url)
        for some in by_region.values():
            for index in range(0, len(some), AT_ONCE):
                try:
                    self._ages |= self._ages_of(some[index : index + AT_ONCE])
                    self._age_error = None
                except Exception as error:
                    if str(error) != self._age_error:
                        log.warning("queue age read failed", trouble=str(error))
                    self._age_error = str(error)
        return self._ages

    def _ages_of(self, urls: list[str]) -> dict[str, int]:
        now = datetime.now(UTC)
        answer = self._client("cloudwatch", urls[0]).get_metric_data(
            MetricDataQueries=[_age_query(index, url) for index, url in enumerate(urls)],
            StartTime=now - AGE_WITHIN,
            EndTime=now,
            ScanBy="TimestampDescending",
        )
        values: Iterable[Mapping[str, Any]] = answer["MetricDataResults"]
        return {urls[int(value["Id"][1:])]: int(value["Values"][0] * 1_000) for value in values if value["Values"]}


def _lag(group: NodeGroup, counts: Mapping[str, int], ages: Mapping[str, int]) -> PartitionLag:
    age_ms = ages.get(group.group) if any(counts.values()) else 0
    waiting = counts[_VISIBLE] + counts[_DELAYED]
    return PartitionLag(group, queue_name(group.group), 0, waiting, age_ms, counts[_IN_FLIGHT])


def _age_query(number: int, url: str) -> dict[str, Any]:
    metric = {
        "Namespace": "AWS/SQS",
        "MetricName": "ApproximateAgeOfOldestMessage",
        "Dimensions": [{"Name": "QueueName", "Value": queue_name(url)}],
    }
    return {"Id": f"q{number}", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Maximum"}}


def _is_unknown(error: Exception) -> bool:
    """Return whether the error says that the queue does not exist."""
    answer: Mapping[str, Any] = getattr(error, "response", {})
    return "NonExistentQueue" in answer.get("Error", {}).get("Code", "") or "QueueDoesNotExist" in type(error).__name__
