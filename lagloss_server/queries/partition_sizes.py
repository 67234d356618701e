"""Sizes of partitions on the brokers' disks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from lagloss.broker.partition_bounds import Key
from lagloss_server.queries.kafka_admin import KafkaAdmin


class PartitionSizes(KafkaAdmin):
    """Asks all brokers for the sizes of partitions."""

    ABOUT = "sizes of partitions"

    def read(self, keys: Iterable[Key]) -> dict[Key, int]:
        """Return the bytes of each partition, those of its largest replica. None for one that no broker has, and for
        all where the brokers do not allow the question (DESCRIBE on the cluster)."""
        wanted: dict[str, list[int]] = defaultdict(list)
        for topic, partition in keys:
            wanted[topic].append(partition)
        return largest_replicas(self._ask("describe_log_dirs", dict(wanted))) if wanted else {}


def largest_replicas(answers: Collection[Mapping[str, Any]]) -> dict[Key, int]:
    """Return the sizes in the brokers' answers, without replicas that are being moved to another disk."""
    found: dict[Key, int] = {}
    for answer in answers:
        for folder in answer["log_dirs"]:
            for topic in folder["topics"]:
                for partition in topic["partitions"]:
                    key = topic["name"], partition["partition_index"]
                    if not partition["is_future_key"]:
                        found[key] = max(found.get(key, 0), partition["partition_size"])
    return found
