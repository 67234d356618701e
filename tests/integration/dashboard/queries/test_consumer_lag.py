"""Consumer lag over a span, read from real rows and compared with sums that are slow and plain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from aggregator.consumer_lag.rows import keep
from aggregator.node_groups import NodeGroup, PartitionLag
from dashboard.queries.consumer_lag import ConsumerLag, LagNow, Of, read_consumer_lag, read_lag_now
from dashboard.request.shown_range import ShownRange
from lagloss_server.model.definition import parse_definition
from lagloss_server.store.partitions import ensure_days
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from tests.support.window_documents import CHAIN

MIDNIGHT = 1_795_219_200
HOUR, DAY = 3_600, 86_400
MID, SNK = NodeGroup("chain", "mid", "chain.mid"), NodeGroup("chain", "snk", "chain.snk")
GROUPED = CHAIN.replace("{name: mid,", "{name: mid, group: chain.mid,").replace(
    "{name: snk}", "{name: snk, group: chain.snk}"
)
Round = tuple[int, list[PartitionLag]]
"""When it was asked (epoch s), and what was found."""


@pytest.fixture(scope="module")
def shared(module_database_url: str) -> Iterator[Store]:
    opened = Store(module_database_url)
    opened.apply(parse_definition(GROUPED))
    with opened.engine.begin() as connection:
        ensure_days(connection, range(MIDNIGHT, MIDNIGHT + 3 * DAY, DAY))
    yield opened
    opened.close()


def fill(store: Store, rounds: list[Round]) -> None:
    with store.engine.begin() as connection:
        connection.execute(delete(tables.ConsumerLagRow))
        for at, found in rounds:
            keep(connection, 1_000 * at, found)


def read(store: Store, from_s: int, to_s: int, by: Any = "node") -> ConsumerLag:
    return read_consumer_lag(store, store.pipeline("chain"), ShownRange(from_s, to_s), by)


def values(found: ConsumerLag) -> dict[tuple[Of, int], tuple[int | None, ...]]:
    return {
        (of, bucket.start_s): (bucket.offsets, bucket.offsets_max, bucket.behind_ms, bucket.behind_max_ms)
        for of, buckets in found.series.items()
        for bucket in buckets
    }


def both(partitions: list[tuple[int | None, int | None]], group: NodeGroup = MID) -> list[PartitionLag]:
    return [PartitionLag(group, "in", at, *found) for at, found in enumerate(partitions)]


def highest(found: list[int | None]) -> int | None:
    return max((value for value in found if value is not None), default=None)


def total(found: list[int | None]) -> int | None:
    return None if None in found else sum(value or 0 for value in found)


def furthest(found: list[int | None]) -> int | None:
    return None if None in found else highest(found)


def oracle(rounds: list[Round], length_s: int) -> dict[tuple[Of, int], tuple[int | None, ...]]:
    """The same for the node mid, partition by partition and minute by minute."""
    minutes: dict[int, dict[int, list[tuple[int | None, int | None]]]] = {}
    for at, found in rounds:
        for lag in found:
            partitions = minutes.setdefault(at // 60 * 60, {})
            partitions.setdefault(lag.partition, []).append((lag.offsets, lag.behind_ms))
    told: dict[int, list[tuple[int | None, ...]]] = {}
    for minute in sorted(minutes):
        of_each = minutes[minute].values()
        told.setdefault(minute // length_s * length_s, []).append(
            (
                total([seen[-1][0] for seen in of_each]),
                total([highest([offsets for offsets, _ in seen]) for seen in of_each]),
                furthest([seen[-1][1] for seen in of_each]),
                furthest([highest([behind_ms for _, behind_ms in seen]) for seen in of_each]),
            )
        )
    return {
        (Of(MID.node, MID.group), start): (
            of_minutes[-1][0],
            highest([each[1] for each in of_minutes]),
            of_minutes[-1][2],
            highest([each[3] for each in of_minutes]),
        )
        for start, of_minutes in told.items()
    }


def test_every_bucket_is_that_of_its_rounds_whatever_is_not_known(shared: Store) -> None:
    known = st.none() | st.integers(0, 1_000)
    found = st.builds(both, st.lists(st.tuples(known, known), min_size=1, max_size=3))
    moments = st.lists(st.integers(0, 2 * 60), max_size=12, unique=True).map(sorted)
    rounds = moments.flatmap(
        lambda steps: st.tuples(*(st.tuples(st.just(MIDNIGHT + 30 * step), found) for step in steps))
    )

    @settings(max_examples=40, deadline=None)
    @given(rounds.map(list))
    def check(told: list[Round]) -> None:
        fill(shared, told)
        for days, length_s in ((1, 60), (2, HOUR), (61, DAY)):
            series = read(shared, MIDNIGHT, MIDNIGHT + days * DAY)
            assert series.bucket_s == length_s
            assert values(series) == oracle(told, length_s)

    check()


def test_a_minute_that_was_not_asked_about_is_a_gap_and_nodes_stand_in_the_order_of_the_flow(shared: Store) -> None:
    fill(shared, [(MIDNIGHT + 60 * minute, both([(1, 5)], SNK) + both([(2, 7)])) for minute in (0, 1, 3)])
    series = read(shared, MIDNIGHT, MIDNIGHT + HOUR)
    assert [of.node for of in series.series] == ["mid", "snk"]
    starts = [[bucket.start_s for bucket in buckets] for buckets in series.series.values()]
    assert starts == 2 * [[MIDNIGHT, MIDNIGHT + 60, MIDNIGHT + 180]]
    assert dict(series.watched) == {"mid": "chain.mid", "snk": "chain.snk"}


def test_by_partition_each_input_has_a_series_of_its_own(shared: Store) -> None:
    fill(shared, [(MIDNIGHT, both([(3, 30), (None, None)]))])
    of = Of("mid", "chain.mid", "in")
    assert values(read(shared, MIDNIGHT, MIDNIGHT + HOUR, "partition")) == {
        (of._replace(partition=0), MIDNIGHT): (3, 3, 30, 30),
        (of._replace(partition=1), MIDNIGHT): (None, None, None, None),
    }


def test_what_is_known_now_is_the_newest_minute_and_not_older_than_two(shared: Store) -> None:
    fill(shared, [(MIDNIGHT, both([(9, 9)])), (MIDNIGHT + 60, both([(3, 40), (4, 50)]))])
    assert read_lag_now(shared, ["chain"], MIDNIGHT + 90) == {("chain", "mid"): LagNow(7, 50)}
    assert read_lag_now(shared, ["chain"], MIDNIGHT + 300) == {}
    assert read_lag_now(shared, ["other"], MIDNIGHT + 90) == {}
