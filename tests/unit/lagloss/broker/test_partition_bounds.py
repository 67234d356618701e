"""Ends of partitions whose leader has changed, or that are new: the client is told of it, and the next question is
answered."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from lagloss.broker.partition_bounds import PartitionBounds


class StaleAdmin:
    """An AdminClient that knows old leaders of some topics until it lists them; `listed`: those that it did."""

    def __init__(self, code: int, stale: set[str]) -> None:
        self.code, self.stale = code, stale
        self.listed: list[str] = []

    def list_offsets(self, places: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Future[Any]]:
        answers: dict[TopicPartition, Future[Any]] = {}
        for place in places:
            answers[place] = Future()
            if place.topic in self.stale:
                answers[place].set_exception(KafkaException(KafkaError(self.code)))
            else:
                answers[place].set_result(SimpleNamespace(offset=7))
        return answers

    def list_topics(self, topic: str, timeout: float) -> None:
        self.listed.append(topic)
        self.stale.discard(topic)

    def poll(self, _timeout_s: float) -> None: ...


def bounds(admin: StaleAdmin) -> PartitionBounds:
    made = PartitionBounds({})
    made._admin = admin  # type: ignore[assignment]
    return made


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError._UNKNOWN_PARTITION,
    ],
)
def test_after_a_change_of_leaders_or_partitions_the_ends_of_all_partitions_are_known_again(code: int) -> None:
    admin = StaleAdmin(code, {"moved", "moved-too"})
    made, keys = bounds(admin), [("moved", 0), ("moved", 1), ("moved-too", 0), ("stays", 0)]
    assert made.ends(keys) == {("stays", 0): 7}
    assert len(admin.listed) == 1
    made.ends(keys)
    assert made.ends(keys) == dict.fromkeys(keys, 7)
    assert sorted(admin.listed) == ["moved", "moved-too"]


def test_leaders_are_learnt_even_if_none_is_known() -> None:
    admin = StaleAdmin(KafkaError.FENCED_LEADER_EPOCH, {"moved"})
    made = bounds(admin)
    with pytest.raises(KafkaException):
        made.ends([("moved", 0)])
    assert made.ends([("moved", 0)]) == {("moved", 0): 7}


def test_what_has_another_reason_is_not_asked_for_by_name() -> None:
    admin = StaleAdmin(KafkaError.UNKNOWN_TOPIC_OR_PART, {"deleted"})
    assert bounds(admin).ends([("deleted", 0), ("stays", 0)]) == {("stays", 0): 7}
    assert admin.listed == []
