"""Limits of retention: after what time, or beyond what size, the brokers delete records of topics."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from lagloss.broker.connection import Cluster
from lagloss.broker.partition_bounds import Key
from lagloss_server.groups.kafka_admin import KafkaAdmin
from lagloss_server.groups.retention import RetentionLimits

log = structlog.get_logger()

EVERY_S: Final = 60.0
"""Limits seldom change, and sizes of logs by little."""
ANSWER_TIMEOUT_S: Final = 2.0
_TIME, _SIZE, _POLICY = "retention.ms", "retention.bytes", "cleanup.policy"


def limits_of(config: Mapping[str, str | None]) -> RetentionLimits:
    """Return the limits in a topic's configuration; none where it is only compacted."""
    if "delete" not in (config.get(_POLICY) or "").split(","):
        return RetentionLimits()
    return RetentionLimits(*(_limit(config.get(name)) for name in (_TIME, _SIZE)))


def _limit(value: str | None) -> int | None:
    number = -1 if value is None else int(value)
    return None if number < 0 else number


class TopicLimits:
    """Reader of limits, and of the partition sizes whose topics have a limit of size. Used by one thread.

    Needs the rights DESCRIBE_CONFIGS on the topics and, for sizes, DESCRIBE on the cluster; what it may not read is
    logged once and left out.
    """

    def __init__(self, admin: AdminClient, cluster: Cluster, client_id: str) -> None:
        self._admin = admin
        self._disks = PartitionSizes(cluster, client_id)
        self._asked_at: dict[str, float] = {}
        self._limits: dict[str, RetentionLimits] = {}
        self._sizes: dict[Key, int] = {}
        self._sizes_asked = -EVERY_S
        self._troubles: dict[str, str] = {}

    def limits(self, topics: Collection[str]) -> Mapping[str, RetentionLimits]:
        """Return the limits of these topics, a minute old at most; those that cannot be read are left out."""
        now = time.monotonic()
        due = [topic for topic in sorted(topics) if now - self._asked_at.get(topic, -EVERY_S) >= EVERY_S]
        if due:
            self._asked_at = {topic: now if topic in due else self._asked_at[topic] for topic in topics}
            self._ask(due)
        self._limits = {topic: limits for topic, limits in self._limits.items() if topic in topics}
        return self._limits

    def sizes(self, keys: Collection[Key]) -> Mapping[Key, int]:
        """Return the bytes of these partitions, a minute old at most; those that cannot be read are left out."""
        now = time.monotonic()
        if keys and (now - self._sizes_asked >= EVERY_S):
            self._sizes_asked = now
            try:
                self._sizes = self._disks.read(keys)
                self._note(
                    "sizes",
                    None
                    if self._sizes
                    else "the brokers report no partition sizes; check that an ACL allows DESCRIBE on the cluster",
                )
            except KafkaException as error:
                self._note("sizes", str(error))
        return self._sizes

    def close(self) -> None:
        self._disks.close()

    def _ask(self, topics: Collection[str]) -> None:
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        futures: Mapping[ConfigResource, Any] = self._admin.describe_configs(
            resources, request_timeout=ANSWER_TIMEOUT_S
        )
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        for resource, future in futures.items():
            try:
                entries = future.result(max(0.0, deadline - time.monotonic()))
            except (KafkaException, TimeoutError) as error:
                self._note(resource.name, str(error) or "no response in time")
                continue
            self._limits[resource.name] = limits_of({name: entry.value for name, entry in entries.items()})
            self._note(resource.name, None)

    def _note(self, what: str, trouble: str | None) -> None:
        """Log a trouble that is new."""
        if trouble is None:
            self._troubles.pop(what, None)
        elif self._troubles.get(what) != trouble:
            self._troubles[what] = trouble
            log.warning("topic limits read failed", of=what, trouble=trouble)


class PartitionSizes(KafkaAdmin):
    """Reader of the partition sizes on the brokers' disks."""

    ABOUT = "partition sizes"

    def read(self, keys: Iterable[Key]) -> dict[Key, int]:
        """Return the bytes of each partition, those of its largest replica. None for one that no broker has, and for
        all where the brokers do not allow the question (DESCRIBE on the cluster)."""
        partitions_by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, partition in keys:
            partitions_by_topic[topic].append(partition)
        return (
            largest_replicas(self._ask("describe_log_dirs", dict(partitions_by_topic))) if partitions_by_topic else {}
        )


def largest_replicas(answers: Collection[Mapping[str, Any]]) -> dict[Key, int]:
    """Return the sizes in the brokers' answers, without replicas that are being moved to another disk."""
    sizes: dict[Key, int] = {}
    for answer in answers:
        for folder in answer["log_dirs"]:
            for topic in folder["topics"]:
                for partition in topic["partitions"]:
                    key = topic["name"], partition["partition_index"]
                    if not partition["is_future_key"]:
                        sizes[key] = max(sizes.get(key, 0), partition["partition_size"])
    return sizes
