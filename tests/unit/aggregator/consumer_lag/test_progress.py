"""Progress of groups: what is judged of a lag beside earlier ones, and what stays when rounds fail or repeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from aggregator import metrics as metrics_module
from aggregator.consumer_lag.lag import Log, offset_lag
from aggregator.consumer_lag.progress import GroupProgress, PartitionHistory, PartitionKey
from aggregator.consumer_lag.topic_limits import largest_replicas, limits_of
from aggregator.metrics import AggregatorMetrics
from aggregator.node_groups import NodeGroup, PartitionLag, PartitionOffsets, PartitionProgress
from lagloss.wire.format import MAX_TIME_MS
from lagloss_server.groups.consumer_groups import GroupDescription
from lagloss_server.groups.retention import RetentionLimits
from lagloss_server.groups.velocity import SPAN_MS, OffsetReading, Velocity
from tests.support.group_rows import labels_of

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
    assert judged(PartitionLag(MID, "in", 0, None, None), before(300, 100, 400)) is None


@dataclass
class Looks:
    """A watch that looks each 10 s at partitions of a group, by (committed, end, start), and stores what it finds."""

    stored: dict[PartitionKey, PartitionHistory] = field(default_factory=dict)
    at_ms: int = NOW_MS
    limits: RetentionLimits = HOUR

    def __post_init__(self) -> None:
        self.progress = GroupProgress(lambda _: self.stored)

    def look(self, *partitions: tuple[int | None, int, int], members: int | None = 1) -> list[PartitionLag]:
        self.at_ms += 10_000
        lags = []
        for number, (committed, end, start) in enumerate(partitions):
            log = Log(start, end)
            at = PartitionOffsets(committed, start, end, self.at_ms - 3_500_000, self.limits)
            offsets = offset_lag(committed, log)
            lags.append(PartitionLag(MID, "in", number, offsets, 7 if offsets else offsets, at=at))
        described = {} if members is None else {MID: GroupDescription("Stable" if members else "Empty", members)}
        found = self.progress.judge(self.at_ms, lags, described)
        self.progress.take(self.at_ms, found)
        return found

    def statuses(self, *partitions: tuple[int | None, int, int], members: int | None = 1) -> list[str | None]:
        return [lag.progress.status if lag.progress else None for lag in self.look(*partitions, members=members)]

    def until(self, status: str, of: Callable[[int], tuple[int | None, int, int]], members: int | None = 1) -> float:
        """Return after how many seconds of looks a partition has this status; before, it must not be the other one."""
        for step in range(100):
            (found,) = self.statuses(of(step), members=members)
            if found == status:
                return step * 10
            assert found in (None, "ok", "warning")
        raise AssertionError(f"never {status}")


def test_nothing_waits_for_certain_where_nothing_was_committed_and_nothing_is_at_risk() -> None:
    looks = Looks()
    for _ in range(40):
        found = looks.look((None, 500, 100), (None, 0, 0), (None, 70, 70))
    assert [(lag.offsets, lag.behind_ms) for lag in found] == [(None, None), (0, 0), (0, 0)]
    assert [lag.progress and lag.progress.status for lag in found] == ["not committed", "ok", "ok"]
    assert all(lag.progress is not None and lag.progress.loss_ms is lag.progress.kept_by is None for lag in found[:1])


def test_all_waits_in_a_partition_that_was_added_where_the_group_commits_in_others() -> None:
    looks = Looks()
    for step in range(40):
        (_, added) = looks.look((step, 500, 0), (None, 5, 0))
    assert (added.offsets, added.behind_ms) == (5, 7)
    assert added.progress is not None
    assert (added.progress.status, added.progress.at_risk) == ("not committed", 5)
    assert [lag.offsets for lag in looks.look((None, 500, 0), (None, 5, 0))] == [None, None]


def test_a_commit_beyond_the_end_says_nothing_until_another_one_comes_even_after_the_log_has_passed_it() -> None:
    looks = Looks()
    for end in (0, 10, 999, 1_000, 1_001, 5_000):
        for _ in range(40):
            found = looks.look((1_000, end, 0), (None, 80, 0))
        assert [lag.offsets for lag in found] == [None, None]
        assert found[0].progress is not None
        assert (found[0].progress.status, found[0].progress.loss_ms) == ("beyond the end", None)
        assert found[1].progress is not None
        assert found[1].progress.status == "not committed"
    (found, other) = looks.look((1_001, 5_000, 0), (None, 80, 0))
    assert (found.offsets, other.offsets) == (3_999, 80)
    assert found.progress is not None
    assert (found.progress.status, found.progress.deleted) == ("ok", 0)


def test_a_lower_commit_after_one_beyond_the_end_is_a_reset() -> None:
    looks = Looks()
    looks.look((1_000, 10, 0))
    (found,) = looks.look((4, 10, 0))
    assert found.offsets == 6


def test_what_retention_deletes_before_a_first_commit_is_not_deleted_unread() -> None:
    looks = Looks()
    for start in (0, 50, 90):
        (found,) = looks.look((None, 100, start))
        assert found.progress is not None
        assert found.progress.deleted_since == 0
    (found,) = looks.look((95, 100, 90))
    assert found.progress is not None
    assert found.progress.deleted_since == 0
    (found,) = looks.look((95, 100, 98))
    assert found.progress is not None
    assert found.progress.deleted_since == 3


@pytest.mark.parametrize(("members", "status", "at_most_s"), [(0, "stopped", 70), (1, "stalled", 250)])
@pytest.mark.parametrize("lag", [0, 3, 500])
def test_a_group_that_stops_is_said_to_have_after_a_minute_or_four(
    members: int, status: str, at_most_s: float, lag: int
) -> None:
    looks = Looks()
    for step in range(60):  # ten minutes of a group that keeps up, or is behind by some
        looks.look((100 * step, 100 * step + lag, 0))
    took_s = looks.until(status, lambda step: (5_900, 5_900 + lag + 100 * (step + 1), 0), members)
    assert at_most_s - 20 <= took_s <= at_most_s


@pytest.mark.parametrize("lag", [0, 3])
def test_a_group_whose_members_are_gone_for_some_seconds_has_not_stopped(lag: int) -> None:
    looks = Looks()
    for step in range(200):  # it commits each three minutes, and its only process restarts each two
        committed = 100 * (step // 18 * 18)
        (found,) = looks.statuses((committed, 100 * step + lag, 0), members=int(step % 12 not in (3, 4)))
        assert found not in ("stopped", "stalled")


def test_a_group_that_commits_without_members_has_not_stopped_between_its_commits() -> None:
    looks = Looks()
    for step in range(200):  # a checkpoint of Flink each two minutes
        (found,) = looks.statuses((100 * (step // 12 * 12), 100 * (step + 1), 0), members=0)
        assert step < 12 or found not in ("stopped", "stalled")


def test_a_group_of_which_little_is_known_is_neither_stopped_nor_stalled() -> None:
    looks = Looks()
    assert [looks.statuses((5, 90, 0), members=0)[0] for _ in range(6)] == [None] * 6
    assert looks.statuses((5, 90, 0), members=0) == ["stopped"]
    looks = Looks()
    assert [looks.statuses((5, 90, 0), members=None)[0] for _ in range(24)] == [None] * 24
    assert looks.statuses((5, 90, 0), members=None) == ["stalled"]


COMMITS = st.none() | st.integers(0, 12)
STEPS = st.lists(st.tuples(COMMITS, COMMITS, st.integers(0, 3), st.booleans()), min_size=1, max_size=25)


@given(STEPS)
def test_whatever_is_committed_a_lag_is_counted_only_from_offsets_that_the_log_held_when_they_were(
    steps: list[tuple[int | None, int | None, int, bool]],
) -> None:
    looks, end, beyond = Looks(), 0, [None, None]
    for *commits, appended, restarts in steps:
        end += appended
        if restarts:
            looks = Looks(looks.progress._histories, looks.at_ms)
        beyond = [
            commit if commit is not None and (commit > end or commit == before) else None
            for commit, before in zip(commits, beyond, strict=True)
        ]
        holds = [commit if outside is None else None for commit, outside in zip(commits, beyond, strict=True)]
        for lag, commit, held, outside in zip(
            looks.look(*((commit, end, 0) for commit in commits)), commits, holds, beyond, strict=True
        ):
            assert lag.progress is not None
            if outside is not None:
                assert (lag.offsets, lag.progress.status) == (None, "beyond the end")
            elif held is not None:
                assert (lag.offsets, lag.progress.status not in ("beyond the end", "not committed")) == (
                    end - held,
                    True,
                )
            else:
                counts = end == 0 or any(other is not None for other in holds)
                assert (lag.offsets, lag.progress.status) == (
                    end if counts else None,
                    "not committed" if end else "ok",
                ), commit


STAMPS = st.sampled_from([-(2**63), -1, 0, 1, 1_795_250_400, 2**53, 2**63 - 1, 1_795_250_400_000_000]) | st.integers(
    -(2**63), 2**63 - 1
)
LIMITS = st.builds(
    RetentionLimits,
    st.none() | st.integers(0, 2**63 - 1) | st.just(2**63 - 1),
    st.none() | st.integers(0, 2**63 - 1) | st.just(2**63 - 1),
)


@given(STAMPS, LIMITS, st.integers(0, 2**50), st.integers(0, 400))
def test_whatever_a_record_is_stamped_with_moments_are_ones_that_a_calendar_has(
    stamped_ms: int, limits: RetentionLimits, size_bytes: int, committed: int
) -> None:
    at = PartitionOffsets(committed, 0, 400, stamped_ms, limits, size_bytes)
    lag = PartitionLag(MID, "in", 0, 400 - committed, None, at=at)
    found = judged(lag, before(300, committed // 2, 370))
    assert found is not None
    for moment in (found.deletes_ms, found.loss_ms):
        assert moment is None or NOW_MS <= moment <= MAX_TIME_MS


@pytest.mark.parametrize("stamped_ms", [-1, 0, NOW_MS // 1_000, 1_000 * NOW_MS, 2**63 - 1])
def test_a_stamp_that_is_no_time_of_a_message_says_nothing_of_when_it_is_deleted(stamped_ms: int) -> None:
    lag = replace(lag_of(100, 400), at=PartitionOffsets(100, 0, 400, stamped_ms, HOUR))
    found = judged(lag, before(300, 100, 400))
    assert found is not None
    assert (found.status, found.kept_by, found.deletes_ms, found.loss_ms) == ("stalled", None, None, None)


def test_a_clock_that_is_ahead_by_an_hour_deletes_an_hour_later() -> None:
    found = judged(lag_of(100, 400, age_s=-3_600), before(300, 100, 400))
    assert found is not None
    assert found.deletes_ms == found.loss_ms == NOW_MS + 7_200_000


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
    progress.forget_others(())
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
    partition = {**labels_of(MID), "topic": "in", "partition": "0"}

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
    assert value("group_members", **labels_of(MID)) == 2
    assert value("group_state", **labels_of(MID), state="Stable") == 1
    metrics.consumer_lag([replace(lag_of(5, 20), progress=PartitionProgress())])
    assert value("lag_status", **partition) is None
    assert value("lag_loss_timestamp_seconds", **partition) is None
    assert value("group_members", **labels_of(MID)) is None
    assert value("lag_deleted_unread_total", **partition) == 6


def test_the_series_of_deleted_offsets_are_those_of_partitions_that_are_read_and_have_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_module, "MAX_SERIES", 3)
    metrics = AggregatorMetrics()

    def lags(group: NodeGroup, *deleted: int) -> list[PartitionLag]:
        return [
            replace(lag_of(5, 20), group=group, partition=at, progress=PartitionProgress(deleted_since=count))
            for at, count in enumerate(deleted)
        ]

    def shown() -> dict[tuple[str, str], float]:
        (family,) = (some for some in metrics.registry.collect() if some.name.endswith("deleted_unread"))
        return {(sample.labels["group"], sample.labels["partition"]): sample.value for sample in family.samples}

    other = NodeGroup("", "", "other")
    metrics.consumer_lag([*lags(other, 0, 2), *lags(MID, 0, 3)])
    assert shown() == {("orders.mid", "0"): 0, ("orders.mid", "1"): 3, ("other", "0"): 0}
    metrics.consumer_lag(lags(other, 0, 1))
    assert shown() == {("other", "0"): 0, ("other", "1"): 3}
    metrics.consumer_lag(())
    assert shown() == {}
    metrics.consumer_lag(lags(MID, 0, 0))  # the cluster of the group was away
    assert shown() == {("orders.mid", "0"): 0, ("orders.mid", "1"): 3}
    metrics.consumer_lag(lags(other, 5, 5, 5))
    metrics.consumer_lag(lags(MID, 0, 1))
    assert shown() == {("orders.mid", "0"): 0, ("orders.mid", "1"): 1}
