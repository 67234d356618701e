"""Taps as the dashboard reads them: what each does follows from its row, and a tap without a row is not hidden."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from dashboard.pages.pipeline.taps import taps_panel
from dashboard.queries.health import read_health
from dashboard.queries.reports_topic import Ends
from dashboard.queries.taps import TapState, TapStatus, read_taps
from dashboard.request.links import Address
from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.store.ownership import OwnerSession
from lagloss_server.store.store import Store
from tests.support.tap_rows import store_tap

NOT_ASKED = Ends(None, "not asked")
TAPPED = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: tapped}
spec:
  nodes:
    - {name: shop, to: [store], taps: {out: {topic: orders, id: $.id, eventTime: $.at}}}
    - {name: store, taps: {in: {group: sink}}}
"""


@pytest.fixture
def owner(database_url: str) -> Iterator[str]:
    """Return the name of a session that lives."""
    with closing(OwnerSession(database_url, 60)) as session:
        yield session.name


def now_ms() -> int:
    return int(time.time() * 1_000)


@pytest.fixture
def definition(store: Store) -> Definition:
    found = parse_definition(TAPPED)
    store.apply(found, 0)
    return found


def read(store: Store, definition: Definition) -> list[TapStatus]:
    return read_taps(store, [definition], time.time())


def problems(store: Store) -> list[str]:
    return [problem.what for problem in read_health(store, NOT_ASKED, time.time()).problems]


def test_a_tap_without_a_row_is_shown_as_not_begun(store: Store, definition: Definition) -> None:
    topic, group = read(store, definition)
    assert (topic.checkpoints, topic.state, topic.since_s) == (["shop.in", "shop.out"], TapState.NOT_BEGUN, None)
    assert (group.checkpoints, group.tap.source) == (["store.in", "store.out"], "group sink of topic orders")
    assert any("2 taps have not started; first: topic orders for shop of tapped" in what for what in problems(store))


def test_counts_and_the_newest_example_of_each_reason_are_those_of_the_tap(
    store: Store, definition: Definition, owner: str
) -> None:
    at_ms = now_ms()
    topic, group = definition.taps
    counts = {"seen": 100, "left_out": 10, "early": 5, "gone": 3}
    bad = {"no_id": (2, 0, 41, at_ms - 1_000), "not_json": (7, 1, 12, at_ms - 9_000)}
    with store.engine.begin() as connection:
        store_tap(connection, topic, owner=owner, since_ms=60_000, through_ms=at_ms, unreadable=bad, **counts)
        store_tap(connection, group, owner=owner, since_ms=60_000, through_ms=at_ms, seen=90, commits="polled")
    read_topic, read_group = read(store, definition)
    assert (read_topic.state, read_topic.commits, read_group.commits) == (TapState.READING, None, "polled")
    assert [getattr(read_topic, name) for name in ("records", "left_out", "early", "gone")] == [100, 10, 5, 3]
    assert [(found.count, found.reason, found.place) for found in read_topic.unreadable] == [
        (7, "not_json", "1@12"),
        (2, "no_id", "0@41"),
    ]
    assert read_topic.document()["since"] == "1970-01-01T00:01:00Z"
    assert read_group.unreadable == ()
    assert any("1 tap encountered unreadable records in the last 24 hours" in what for what in problems(store))


@pytest.mark.parametrize("stamp_ms", [1_795_701_790_642_000, 1_795_701_790_642_000_000, -(1 << 63), (1 << 63) - 1, -1])
def test_an_example_whose_producer_wrote_another_unit_is_shown(
    store: Store, definition: Definition, owner: str, stamp_ms: int
) -> None:
    topic, _ = definition.taps
    with store.engine.begin() as connection:
        store_tap(
            connection,
            topic,
            owner=owner,
            since_ms=60_000,
            through_ms=now_ms(),
            unreadable={"no_id": (1, 0, 41, stamp_ms)},
        )
    taps = read(store, definition)
    (example,) = [found["example"] for found in taps[0].document()["unreadable"]]
    year = "1969" if stamp_ms == -1 else "9999" if stamp_ms > 0 else "0001"
    assert (example["partition"], example["offset"], example["timestamp"][:4]) == (0, 41, year)
    assert "0@41" in str(taps_panel(taps, Address("/pipelines/tapped", {"zone": "Europe/Berlin"}), time.time()))
    problems(store)


def test_records_that_could_not_be_read_days_ago_are_no_problem_of_today(
    store: Store, definition: Definition, owner: str
) -> None:
    topic, group = definition.taps
    with store.engine.begin() as connection:
        old = {"no_id": (2, 0, 41, now_ms() - 86_401_000)}
        store_tap(connection, topic, owner=owner, since_ms=60_000, through_ms=now_ms(), unreadable=old)
        store_tap(connection, group, owner=owner, since_ms=60_000, through_ms=now_ms())
    assert not [what for what in problems(store) if "tap" in what.replace("tapped", "")]


@pytest.mark.parametrize(
    ("changed", "state", "what"),
    [
        ({"through_ms": -30_000}, TapState.READING, None),
        (
            {"through_ms": -90_000},
            TapState.BEHIND,
            "1 tap is behind; longest delay: topic orders for shop of tapped, 1.5 min",
        ),
        (
            {"trouble": "no answer"},
            TapState.WAITING,
            "1 tap is waiting; first: topic orders for shop of tapped: no answer.",
        ),
        ({"owner": "ended"}, TapState.NOT_RUN, "1 tap is read by no process"),
        ({"owner": "ended", "trouble": "no answer"}, TapState.NOT_RUN, "1 tap is read by no process"),
    ],
)
def test_what_a_tap_does_follows_from_who_owns_it_why_it_waits_and_how_far_it_is(
    store: Store, definition: Definition, owner: str, changed: dict[str, Any], state: TapState, what: str | None
) -> None:
    topic, group = definition.taps
    with store.engine.begin() as connection:
        at_ms = now_ms() + changed.pop("through_ms", 0)
        store_tap(connection, topic, since_ms=60_000, through_ms=at_ms, **{"owner": owner} | changed)
        store_tap(connection, group, owner=owner, since_ms=60_000, through_ms=now_ms())
    assert [tap.state for tap in read(store, definition)] == [state, TapState.READING]
    found = [problem for problem in problems(store) if "tapped" in problem and "tap" in problem.replace("tapped", "")]
    assert (what is None and not found) or (what is not None and what in found[0])


def test_a_tap_that_has_read_nothing_is_behind_from_a_minute_after_its_first_window(
    store: Store, definition: Definition, owner: str
) -> None:
    topic, group = definition.taps
    with store.engine.begin() as connection:
        store_tap(connection, topic, owner=owner, since_ms=now_ms() + 30_000, through_ms=0)
        store_tap(connection, group, owner=owner, since_ms=now_ms() - 61_000, through_ms=0)
    assert [(tap.state, tap.through_s, tap.behind_s) for tap in read(store, definition)] == [
        (TapState.READING, None, None),
        (TapState.BEHIND, None, None),
    ]


def test_taps_are_in_the_order_of_the_flow_and_of_a_node_what_it_takes_in_comes_first(store: Store) -> None:
    out = "out: {topic: shipped, id: $.id, eventTime: $.at}"
    more = TAPPED.replace("{in: {group: sink}}}", f"{{in: {{group: sink}}, {out}}}}}")
    found = read(store, parse_definition(more))
    assert [tap.checkpoints for tap in found] == [["shop.in", "shop.out"], ["store.in"], ["store.out"]]


def test_of_a_tap_that_was_dropped_and_is_wanted_again_the_newest_is_shown(
    store: Store, definition: Definition, owner: str
) -> None:
    with store.engine.begin() as connection:
        for since_ms, seen in ((120_000, 2), (60_000, 1)):
            store_tap(connection, definition.taps[0], owner=owner, since_ms=since_ms, through_ms=now_ms(), seen=seen)
    assert [tap.records for tap in read(store, definition)] == [2, 0]
