"""Progress of groups: what is judged of a lag beside earlier ones, and what stays when rounds fail or repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.consumer_lag.progress import GroupProgress, PartitionHistory, PartitionKey
from aggregator.consumer_lag.topic_limits import limits_of
from aggregator.metrics import AggregatorMetrics
from aggregator.node_groups import NodeGroup, PartitionLag, PartitionOffsets, PartitionProgress
from lagloss_server.queries.consumer_groups import GroupDescription
from lagloss_server.queries.partition_sizes import largest_replicas
from lagloss_server.rules.group_velocity import SPAN_MS, OffsetReading, Velocity
from lagloss_server.rules.retention_distance import RetentionLimits

MID = NodeGroup("orders", "mid", "orders.mid")
KEY = PartitionKey("orders", "mid", "orders.mid", "in", 0)
NOW_MS = 1_795_250_400_000
HOUR = RetentionLimits(retention_ms=3_600_000)


def lag_of(
    committed: int | None, end: int, start: int = 0, age_s: float | None = None, limits: RetentionLimits | None = HOUR
) -> PartitionLag:
    """A lag as the brokers tell it at NOW_MS; `age_s`: of the record that waits."""
    stamped_ms = None if age_s is None else NOW_MS - round(1_000 * age_s)
    at = PartitionOffsets(committed, start, end, stamped_ms, limits)
    return PartitionLag(MID, "in", 0, end - max(committed or 0, start), None, at=at)


def judged(
    lag: PartitionLag, *earlier: OffsetReading, members: int | None = 1, deleted: int = 0
) -> PartitionProgress | None:
    progress = GroupProgress(lambda _: {KEY: PartitionHistory(earlier, deleted)})
    described = {} if members is None else {MID: GroupDescription("Stable", members)}
    (found,) = progress.judge(NOW_MS, [lag], described)
    return found.progress


def before(s: float, committed: int | None, end: int, start: int = 0) -> OffsetReading:
    return OffsetReading(NOW_MS - round(1_000 * s), committed, start, end)


def test_a_group_that_stands_still_loses_all_that_waits_when_the_oldest_record_is_past_its_time() -> None:
    found = judged(lag_of(100, 400, age_s=3_000), before(300, 100, 100 + 270))
    assert found is not None
    assert (found.velocity, found.status) == (Velocity(0, 0.1), "stalled")
    assert (found.kept_by, found.deletes_ms, found.loss_ms, found.at_risk) == (
        *("time", NOW_MS + 600_000, NOW_MS + 600_000, 300),
    )


def test_a_group_that_is_too_slow_loses_later_and_less() -> None:
    # 3,000 messages came in 3,000 s, 1 per second; at 0.5 per second deletion meets it 1,200 s from now, at the 600th
    found = judged(lag_of(1_150, 4_150, age_s=3_000), before(300, 1_000, 3_850))
    assert found is not None
    assert found.velocity.commits_per_s == 0.5
    assert found.deletes_ms == NOW_MS + 600_000
    assert found.loss_ms == NOW_MS + 1_200_000
    assert found.at_risk == 2_400


def test_a_group_that_takes_in_what_waits_in_time_loses_nothing() -> None:
    found = judged(lag_of(1_600, 4_600, age_s=3_000), before(300, 1_000, 4_300))
    assert found is not None
    assert (found.deletes_ms, found.loss_ms, found.at_risk) == (NOW_MS + 600_000, None, None)


def test_without_a_velocity_nothing_is_at_risk_yet() -> None:
    found = judged(lag_of(100, 400, age_s=3_000))
    assert found is not None
    assert (found.kept_by, found.deletes_ms, found.loss_ms) == ("time", NOW_MS + 600_000, None)


@pytest.mark.parametrize(
    ("lag", "kept_by"),
    [
        (lag_of(100, 400, age_s=10, limits=RetentionLimits()), "none"),
        (lag_of(100, 400, age_s=10, limits=None), None),
        (lag_of(100, 400), None),  # the record could not be read
        (lag_of(400, 400, age_s=None), None),
    ],
)
def test_a_limit_that_is_not_there_or_not_known_deletes_nothing(lag: PartitionLag, kept_by: str | None) -> None:
    found = judged(lag, before(300, 100, 400))
    assert found is not None
    assert (found.kept_by, found.deletes_ms, found.loss_ms) == (kept_by, None, None)


def test_size_counts_where_it_deletes_sooner_than_time() -> None:
    both = RetentionLimits(retention_ms=3_600_000, retention_bytes=10_000)
    lag = lag_of(100, 400, age_s=10, limits=both)
    assert lag.at is not None
    sized = replace(lag, at=replace(lag.at, size_bytes=8_000))  # 20 bytes each: 500 are kept, 200 more than wait
    found = judged(sized, before(300, 100, 100))
    assert found is not None
    assert (found.kept_by, found.loss_ms, found.at_risk) == ("size", NOW_MS + 200_000, 300)


def test_a_lag_that_is_not_known_has_no_progress_and_leaves_the_history_as_it_was() -> None:
    for unknown in (PartitionLag(MID, "in", 0, None, None), replace(lag_of(9, 5), offsets=None)):
        assert judged(unknown, before(300, 100, 400)) is None


def test_what_could_not_be_stored_is_judged_anew() -> None:
    progress = GroupProgress(lambda _: {KEY: PartitionHistory((before(10, 5, 20),))})
    lag = lag_of(5, 20, start=9)
    for _ in range(2):
        (found,) = progress.judge(NOW_MS, [lag], {})
        assert found.progress is not None
        assert found.progress.deleted_since == 4
    progress.take(NOW_MS, [lag])
    (found,) = progress.judge(NOW_MS + 10_000, [lag], {})
    assert found.progress is not None
    assert (found.progress.deleted_since, found.progress.deleted) == (0, 4)
    progress.forget(())
    (found,) = progress.judge(NOW_MS + 20_000, [lag], {})  # read again
    assert found.progress is not None
    assert found.progress.deleted_since == 4


STARTS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), min_size=1, max_size=20)


@given(STARTS)
def test_the_minutes_of_a_history_hold_each_deleted_offset_once(steps: list[tuple[int, int]]) -> None:
    history, at_ms, start = PartitionHistory((OffsetReading(NOW_MS, 0, 0, 1_000),)), NOW_MS, 0
    by_minute: dict[int, int] = {}
    for seconds, deleted in steps:
        at_ms, start = at_ms + 1_000 * seconds, start + deleted
        for _ in range(2):  # a repetition changes nothing
            history = history.with_reading(OffsetReading(at_ms, 0, start, 1_000))
        by_minute[at_ms // 60_000] = history.deleted
    assert sum(by_minute.values()) == start
    assert history.newest is not None
    assert history.newest.at_ms - history.readings[0].at_ms <= SPAN_MS


def test_a_clock_that_is_set_back_begins_a_history_anew() -> None:
    history = PartitionHistory((before(0, 5, 20),), 3).with_reading(before(3_600, 5, 20, start=7))
    assert [reading.at_ms for reading in history.readings] == [NOW_MS - 3_600_000]
    assert history.deleted == 2


@pytest.mark.parametrize(
    ("config", "limits"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"}, (604_800_000, None)),
        ({"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "10"}, (None, 10)),
        ({"cleanup.policy": "compact", "retention.ms": "1000", "retention.bytes": "10"}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_limits_are_those_of_a_topic_that_deletes(
    config: Mapping[str, str | None], limits: tuple[int | None, int | None]
) -> None:
    assert limits_of(config) == RetentionLimits(*limits)


def test_the_size_of_a_partition_is_that_of_its_largest_replica_and_not_of_one_that_is_being_moved() -> None:
    def answer(size: int, *, is_future: bool = False) -> dict[str, object]:
        partition = {"partition_index": 3, "partition_size": size, "is_future_key": is_future}
        return {"log_dirs": [{"topics": [{"name": "in", "partitions": [partition]}]}]}

    assert largest_replicas([answer(5), answer(7), answer(99, is_future=True)]) == {("in", 3): 7}
    assert largest_replicas([{"log_dirs": [{"error_code": 29, "topics": []}]}]) == {}


def test_prometheus_has_the_progress_of_partitions_and_the_state_of_groups() -> None:
    metrics = AggregatorMetrics()
    partition = {**MID._asdict(), "topic": "in", "partition": "0"}

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"lagloss_consumer_{name}", labels)

    progress = PartitionProgress(
        Velocity(2.5, 4.0), "stalled", "time", NOW_MS, NOW_MS + 60_000, at_risk=9, deleted=7, deleted_since=3
    )
    for _ in range(2):
        metrics.consumer_lag([replace(lag_of(5, 20), progress=progress)], {MID: GroupDescription("Stable", 2, 4)})
    assert value("lag_commits_per_second", **partition) == 2.5
    assert value("lag_appends_per_second", **partition) == 4
    assert value("lag_status", **partition) == 2
    assert value("lag_loss_timestamp_seconds", **partition) == NOW_MS / 1_000 + 60
    assert value("lag_at_risk_offsets", **partition) == 9
    assert value("lag_deleted_unread_total", **partition) == 6
    assert value("group_members", **MID._asdict()) == 2
    assert value("group_state", **MID._asdict(), state="Stable") == 1
    metrics.consumer_lag([replace(lag_of(5, 20), progress=PartitionProgress())])
    assert value("lag_status", **partition) is None
    assert value("lag_loss_timestamp_seconds", **partition) is None
    assert value("group_members", **MID._asdict()) is None
    assert value("lag_deleted_unread_total", **partition) == 6
