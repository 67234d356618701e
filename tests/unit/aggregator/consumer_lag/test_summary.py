"""Summaries of consumer groups: what the lags of their partitions come to."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from aggregator.consumer_lag import watch
from aggregator.consumer_lag.lag import delay_of
from aggregator.consumer_lag.record_times import WaitingRecord
from aggregator.consumer_lag.summary import summarize
from aggregator.consumer_lag.watch import ClusterRound, WatchedGroups
from aggregator.node_groups import NodeGroup, PartitionLag, PartitionProgress
from lagloss_server.groups.cluster_groups import ClusterGroup, GroupReading, NamedBy, worst_first
from lagloss_server.groups.consumer_groups import GroupDescription, ListedGroup
from lagloss_server.groups.velocity import Status

GROUP = NodeGroup("", "", "mailer")
NOW_MS = 1_795_250_400_000
OFFSETS = st.none() | st.integers(0, 50)


def lag(partition: int, offsets: int | None, behind_ms: int | None = None, topic: str = "orders") -> PartitionLag:
    basis = None if behind_ms is None else "timestamp"
    return PartitionLag(GROUP, topic, partition, offsets, behind_ms, basis=basis)


def summary(*lags: PartitionLag, members: int = 1, status: Status | None = None) -> ClusterGroup:
    judged = [replace(partition, progress=PartitionProgress(status=status)) for partition in lags]
    return summarize("", "mailer", "consumer", GroupDescription("Stable", members), judged, ())


@given(st.lists(st.tuples(OFFSETS, st.none() | st.integers(0, 10**6)), max_size=8))
def test_a_group_is_as_far_behind_as_its_partition_that_is_furthest(
    partitions: list[tuple[int | None, int | None]],
) -> None:
    lags = [lag(number, offsets, behind if offsets else 0) for number, (offsets, behind) in enumerate(partitions)]
    found = summary(*lags)
    known = [offsets for offsets, _ in partitions if offsets is not None]
    assert found.lag == (sum(known) if known else None)
    waiting = [behind for offsets, behind in partitions if offsets]
    known_waiting = [behind for behind in waiting if behind is not None]
    if known_waiting:
        assert (found.behind_s, found.basis) == (round(max(known_waiting) / 1_000, 3), "timestamp")
    elif waiting or not known:
        assert found.behind_s is None
    else:
        assert (found.behind_s, found.basis, found.hottest) == (0.0, None, None)


def test_each_topic_has_its_own_numbers_and_the_group_the_largest() -> None:
    found = summary(lag(0, 7, 12_500), lag(1, 0, 0), lag(0, 2, 400, "users"))
    assert [(topic.topic, topic.partitions, topic.lag, topic.behind_s) for topic in found.topics] == [
        ("orders", 2, 7, 12.5),
        ("users", 1, 2, 0.4),
    ]
    assert (found.lag, found.behind_s) == (9, 12.5)
    assert found.hottest is not None
    assert (found.hottest.topic, found.hottest.partition) == ("orders", 0)


@pytest.mark.parametrize(
    ("status", "members", "shown"),
    [(None, 0, "stopped"), ("ok", 0, "stopped"), ("stalled", 0, "stalled"), ("ok", 1, "ok"), (None, 1, None)],
)
def test_a_group_with_something_waiting_and_no_members_is_never_ok(
    status: Status | None, members: int, shown: Status | None
) -> None:
    assert summary(lag(0, 5, 1), members=members, status=status).status == shown
    assert summary(lag(0, 0, 0), members=members, status="ok").status == "ok"


@pytest.mark.parametrize(
    ("stamped_ms", "problem"),
    [(None, "has no timestamp"), (-1, "has no timestamp"), (1_795_250_400, "1795250400, is not a time in ms"),
     (NOW_MS * 1_000, "is not a time in ms"), (0, "is not a time in ms")],
)  # fmt: skip
def test_a_timestamp_that_is_no_time_is_named_instead_of_an_age(stamped_ms: int | None, problem: str) -> None:
    delay = delay_of(5, 10, WaitingRecord(5, stamped_ms=stamped_ms), NOW_MS)
    assert (delay.offsets, delay.behind_ms, delay.basis) == (5, None, None)
    assert problem in (delay.problem or "")
    shown = summary(PartitionLag(GROUP, "orders", 0, 5, None, problem=delay.problem)).topics[0]
    assert (shown.behind_s, shown.problem) == (None, delay.problem)


def test_the_event_time_comes_before_the_timestamp() -> None:
    both = WaitingRecord(5, event_time_ms=NOW_MS - 3_000, stamped_ms=NOW_MS - 1_000)
    assert delay_of(5, 10, both, NOW_MS)[1:3] == (3_000, "event-time")
    assert delay_of(5, 10, WaitingRecord(5, stamped_ms=NOW_MS - 1_000), NOW_MS)[1:3] == (1_000, "timestamp")


@given(st.lists(st.tuples(OFFSETS, st.none() | st.integers(0, 10**6)), max_size=8))
def test_what_waits_comes_before_what_does_not_and_the_furthest_behind_first(
    groups: list[tuple[int | None, int | None]],
) -> None:
    readings = [GroupReading(0, summary(lag(0, offsets, behind if offsets else 0))) for offsets, behind in groups]
    sorted_groups = [reading.group for reading in worst_first(readings)]
    keys = [(group.waits, -math.inf if group.behind_s is None else group.behind_s) for group in sorted_groups]
    assert keys == sorted(keys, reverse=True)


def test_groups_that_no_definition_names_are_read_if_a_glob_matches_and_they_are_not_our_own() -> None:
    named = NodeGroup("shop", "mail", "mailer")
    wanted = WatchedGroups([named], patterns="mail*, *-etl")
    found = ClusterRound(
        "", listed=dict.fromkeys(("mailer", "mail-2", "a-etl", "b", "lagloss-etl"), ListedGroup("consumer", ""))
    )
    assert [group.group for group in found.others(wanted)] == ["a-etl", "mail-2"]


def test_of_more_groups_than_a_round_reads_those_that_definitions_name_are_among_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "MAX_GROUPS", 3)
    named = [NodeGroup("orders", "mail", "z-mailer")]
    for others, trouble in (
        ("ab", None),
        ("abc", "expected up to 3 groups, found more; choose some by LAGLOSS_GROUPS"),
    ):
        found = ClusterRound("", [*named], listed=dict.fromkeys([*others, "z-mailer"], ListedGroup("consumer", "")))
        found.add_others(WatchedGroups(named))
        assert [group.group for group in found.groups] == ["z-mailer", "a", "b"]
        assert found.trouble == trouble


def test_a_group_that_a_definition_names_links_to_it_and_one_that_is_gone_has_no_row() -> None:
    nodes = [NodeGroup("shop", "mail", "mailer"), NodeGroup("shop", "audit", "mailer"), NodeGroup("", "", "gone")]
    found = ClusterRound(
        "",
        listed={"mailer": ListedGroup("consumer", "Stable")},
        lags=[PartitionLag(node, "orders", 0, 3, 500) for node in nodes[:2]],
        described={nodes[0]: GroupDescription("Stable", 2), nodes[2]: GroupDescription("Dead")},
    )
    (group,) = found.summaries()
    assert (group.group, group.lag, group.members) == ("mailer", 3, 2)
    assert group.named_by == (NamedBy("shop", "audit"), NamedBy("shop", "mail"))
