"""Consumer lag: its arithmetic against a log that is counted record by record, and what Prometheus is told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aggregator.consumer_lag.lag import Input, Log, next_offset, offset_lag
from aggregator.consumer_lag.record_times import RecordPlace, WaitingRecord
from aggregator.metrics import AggregatorMetrics
from aggregator.node_groups import NodeGroup, PartitionLag, PartitionOffsets
from tests.support.group_rows import labels_of

OFFSETS = st.integers(0, 60)
LOGS = st.builds(lambda start, length: Log(start, start + length), OFFSETS, OFFSETS)
COMMITTED = st.none() | st.integers(0, 150)
MID = NodeGroup("orders", "mid", "orders.mid")
NOW_MS = 1_795_250_400_000


@given(LOGS, COMMITTED)
def test_the_lag_is_the_number_of_offsets_that_the_log_holds_and_nobody_committed(
    log: Log, committed: int | None
) -> None:
    held = range(log.start, log.end)
    lag = offset_lag(committed, log)
    if committed is not None and committed > log.end:
        assert lag is None
    else:
        assert lag == sum(1 for offset in held if committed is None or offset >= committed)


@given(LOGS, COMMITTED, st.integers(0, 60))
def test_lag_grows_by_what_is_appended_and_falls_to_nothing_where_all_is_committed(
    log: Log, committed: int | None, appended: int
) -> None:
    before, after = offset_lag(committed, log), offset_lag(committed, Log(log.start, log.end + appended))
    assert before is None or after == before + appended
    assert offset_lag(log.end, log) == 0


@given(LOGS, COMMITTED)
def test_the_group_goes_on_where_the_lag_is_counted_from(log: Log, committed: int | None) -> None:
    lag = offset_lag(committed, log)
    assert lag is None or next_offset(committed, log) + lag == log.end


@given(LOGS, COMMITTED, st.none() | st.integers(-100_000, 10_000_000))
def test_seconds_behind_are_zero_where_nothing_waits_and_else_those_of_the_record_that_waits(
    log: Log, committed: int | None, age_ms: int | None
) -> None:
    entry = Input(MID, ("in", 0), committed, log)
    waiting = {
        RecordPlace(("in", 0), next_offset(committed, log)): WaitingRecord(
            0, None if age_ms is None else NOW_MS - age_ms
        )
    }
    found = entry.judged(waiting, NOW_MS)
    assert found.offsets == offset_lag(committed, log)
    assert found.behind_ms == (age_ms if found.offsets else found.offsets)
    assert (entry.place is not None) == bool(found.offsets)


@given(LOGS, COMMITTED, st.integers(0, 150))
def test_what_is_left_is_nothing_only_if_a_reader_came_to_the_end_that_was_counted_to(
    log: Log, committed: int | None, reached: int
) -> None:
    entry = Input(MID, ("in", 0), committed, log)
    if entry.place is not None:
        found = entry.judged({entry.place: WaitingRecord(reached, is_end=True)}, NOW_MS)
        assert (found.offsets, found.behind_ms) == ((0, 0) if reached >= log.end else (entry.lag, None))


def test_what_could_not_be_read_leaves_the_age_unknown_and_what_was_not_answered_both() -> None:
    at = PartitionOffsets(7, 0, 10)
    assert Input(MID, ("in", 0), 7, Log(0, 10)).judged({}, NOW_MS) == PartitionLag(MID, "in", 0, 3, None, at=at)
    assert Input(MID, ("in", 0), 7, None).judged({}, NOW_MS) == PartitionLag(MID, "in", 0, None, None)


def test_prometheus_is_told_what_is_known_now_and_nothing_of_a_partition_that_is_gone() -> None:
    metrics = AggregatorMetrics()

    def value(what: str, partition: str) -> float | None:
        labels = {**labels_of(MID), "topic": "in", "partition": partition}
        return metrics.registry.get_sample_value(f"lagloss_consumer_lag_{what}", labels)

    metrics.consumer_lag([PartitionLag(MID, "in", 0, 7, 1_500), PartitionLag(MID, "in", 1, 2, None)])
    assert (value("offsets", "0"), value("seconds", "0")) == (7, 1.5)
    assert (value("offsets", "1"), value("seconds", "1")) == (2, None)
    assert value("in_flight", "0") is None
    metrics.consumer_lag([PartitionLag(MID, "in", 0, 0, 0, in_flight=3)])
    assert value("in_flight", "0") == 3
    assert (value("offsets", "0"), value("offsets", "1")) == (0, None)
