"""Consumer groups for agents: the group that is furthest behind comes first, and unknown ages are not invented."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from dashboard.mcp import groups as module
from dashboard.mcp.groups import groups
from dashboard.queries.consumer_groups import ConsumerGroup
from lagloss_server.groups.progress import GroupNow, GroupPartition, PartitionNow
from lagloss_server.model.definition import StoredPipeline, parse_definition

DEFINITION = parse_definition(
    """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: orders}
spec:
  nodes:
    - {name: src, to: [mid]}
    - {name: mid, group: idle, to: [enrich]}
    - {name: enrich, group: enrich, cluster: west, to: [sink]}
    - {name: sink, group: sink}
"""
)


@dataclass
class OneStore:
    def pipelines(self, _names: Any) -> list[StoredPipeline]:
        return [StoredPipeline("orders", 1, 0, DEFINITION)]


def partition(node: str, topic: str, number: int, lag: int | None, behind_ms: int | None, **rest: Any) -> PartitionNow:
    return PartitionNow(GroupPartition(node, node, topic, number), 0, lag, behind_ms, **rest)


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[module.GroupDocument]:
    read = [
        ConsumerGroup("mid", "idle", None, (partition("mid", "a", 0, 0, None, status="ok"),), 0),
        ConsumerGroup("sink", "sink", None, (partition("sink", "b", 0, 7, None, status="stalled"),), 0),
        ConsumerGroup(
            "enrich",
            "enrich",
            GroupNow("enrich", "enrich", 0, "Stable", 0, 2, 3, "range"),
            (
                partition("enrich", "orders", 0, 300, 12_500, status="warning", loss_ms=10**14),
                partition("enrich", "orders", 1, 100, 2_000, status="ok"),
                partition("enrich", "refunds", 0, 0, None, status="ok"),
            ),
            0,
        ),
    ]
    monkeypatch.setattr(module, "read_consumer_groups", lambda *_: read)
    return groups(OneStore())  # type: ignore[arg-type]


def test_groups_that_wait_come_first_by_the_age_of_what_waits(listed: list[module.GroupDocument]) -> None:
    assert [(group["group"], group["cluster"], group["lag"]) for group in listed] == [
        ("enrich", "west", 400),
        ("sink", "", 7),
        ("idle", "", 0),
    ]


def test_a_group_has_the_age_of_its_worst_topic(listed: list[module.GroupDocument]) -> None:
    enrich, sink, idle = listed
    assert (enrich["state"], enrich["members"], enrich["status"]) == ("Stable", 2, "warning")
    assert (enrich["behind_s"], enrich["basis"]) == (12.5, "event-time")
    assert [(topic["topic"], topic["partitions"], topic["lag"], topic["behind_s"]) for topic in enrich["topics"]] == [
        ("orders", 2, 400, 12.5),
        ("refunds", 1, 0, 0.0),
    ]
    assert enrich["time_to_loss_s"] is not None
    assert (sink["behind_s"], sink["basis"], sink["time_to_loss_s"]) == (None, None, None)
    assert (idle["behind_s"], idle["topics"][0]["behind_s"]) == (0.0, 0.0)
