"""The trail of a message, found in a real log by its id alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from lagloss.wire.format import OffsetRange, hash_id
from lagloss.wire.traces import TraceContext
from lagloss_server.base.errors import NotEnoughData
from lagloss_server.base.trace_links import TraceLinks
from lagloss_server.model.definition import parse_definition
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.message_trace import SearchLimit, read_trail, search
from lagloss_server.store.store import Store
from tests.conftest import Topics
from tests.support.logged_blocks import Logged

DEFINITION = "{apiVersion: lagloss/v1, kind: Pipeline, metadata: {name: trail}, spec: {nodes: [%s]}}"
IDS = [f"message-{at}" for at in range(40)]
WANTED = IDS[7]


@pytest.fixture
def minutes(store: Store, kafka_bootstrap: str, topics: Callable[..., Topics]) -> list[Logged]:
    """Five minutes, oldest first, each with its own messages; WANTED is in the oldest."""
    topic = topics(beacons_partitions=4).beacons
    store.apply(parse_definition(DEFINITION % "{name: src, to: [snk]}, {name: snk}"))
    first_s = int(time.time()) // 60 * 60 - 600
    found = [Logged("trail", first_s + 60 * at, kafka_bootstrap, topic, store, 4) for at in range(5)]
    for at, minute in enumerate(found):
        ids = [f"{name}" if at == 0 else f"{name}-{at}" for name in IDS]
        for checkpoint, lag_ms in (("src.in", 5), ("src.out", 10), ("snk.in", 20)):
            minute.tell(checkpoint, minute.put(checkpoint, ids, lag_ms), beacons=len(ids))
    return found


@pytest.fixture
def log(minutes: list[Logged]) -> Iterator[BeaconLog]:
    with closing(BeaconLog(minutes[0].bootstrap, minutes[0].topic)) as opened:
        yield opened


def test_an_id_leads_to_every_beacon_of_it_whatever_its_minute(
    store: Store, minutes: list[Logged], log: BeaconLog
) -> None:
    minutes[0].tell("snk.out", minutes[0].put("snk.out", [WANTED], 30, emitter=bytes([7]) * 16, replay="again"))
    found = search(store, log, "trail", [hash_id(WANTED)])
    assert found.trail is not None
    assert (found.trail.message_id, found.trail.window_start_s) == (WANTED, minutes[0].start_s)
    event_ms = 1_000 * (minutes[0].start_s + 7)
    assert found.trail.event_ms == event_ms
    told = [(one.checkpoint, one.observed_ms - event_ms, one.emitter[:2], one.replay) for one in found.trail.beacons]
    assert told == [
        ("src.in", 5.0, "00", None),
        ("src.out", 10.0, "00", None),
        ("snk.in", 20.0, "00", None),
        ("snk.out", 30.0, "07", "again"),
    ]


def test_a_trail_is_in_the_trace_in_which_the_message_came_in_first(
    store: Store, minutes: list[Logged], log: BeaconLog
) -> None:
    minute = minutes[1]
    for lag_ms, byte, replay in ((9, "0a", None), (7, "0b", "again")):
        ranges = minute.put("src.in", ["again", "untraced"], lag_ms, traces={"again": byte * 24}, replay=replay)
        minute.tell("src.in", ranges, beacons=2, emitter=bytes.fromhex(byte) * 16)
    traced, untraced = (search(store, log, "trail", [hash_id(name)]).trail for name in ("again", "untraced"))
    assert traced is not None
    assert untraced is not None
    assert (traced.trace, untraced.trace) == (TraceContext("0b" * 16, "0b" * 8), None)
    document = traced.document(TraceLinks("https://traces.example/{trace_id}"))
    assert document["trace_url"] == f"https://traces.example/{'0b' * 16}"
    assert "trace_id" not in untraced.document()


def test_a_search_that_its_budget_ends_says_how_far_it_came_and_goes_on_from_there(
    store: Store, minutes: list[Logged], log: BeaconLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lagloss_server.queries.message_trace._BATCH_WINDOWS", 1)
    few = SearchLimit(beacons=2 * 3 * len(IDS))  # two minutes of them
    found = search(store, log, "trail", [hash_id(WANTED)], limit=few)
    assert (found.trail, found.is_cut) == (None, True)
    assert (found.from_s, found.to_s) == (minutes[3].start_s, minutes[4].start_s + 60)
    found = search(store, log, "trail", [hash_id(WANTED)], before_s=found.from_s, limit=few)
    assert (found.from_s, found.is_cut) == (minutes[1].start_s, True)
    found = search(store, log, "trail", [hash_id(WANTED)], before_s=found.from_s, limit=few)
    assert (found.trail is not None, found.is_cut) == (True, False)


def test_a_time_to_look_around_is_looked_at_first(
    store: Store, minutes: list[Logged], log: BeaconLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lagloss_server.queries.message_trace._BATCH_WINDOWS", 1)
    found = search(store, log, "trail", [hash_id(WANTED)], around_s=minutes[0].start_s + 30)
    assert found.trail is not None
    assert (found.from_s, found.to_s) == (minutes[0].start_s, minutes[1].start_s)


def test_of_an_id_that_was_used_again_the_newest_or_the_nearest_is_found(
    store: Store, minutes: list[Logged], log: BeaconLog
) -> None:
    for minute in (minutes[3], minutes[2]):  # the log is in an order of its own
        minute.tell("snk.out", minute.put("snk.out", [WANTED], 30), beacons=1)

    def found(**asked: float) -> int | None:
        trail = search(store, log, "trail", [hash_id(WANTED)], **asked).trail
        return trail and minutes.index(next(one for one in minutes if one.start_s == trail.window_start_s))

    assert found() == 3
    assert found(around_s=minutes[1].start_s + 50) == 2
    assert found(around_s=minutes[0].start_s) == 0
    assert found(around_s=minutes[0].start_s, after_s=minutes[1].start_s) == 2
    assert found(before_s=minutes[3].start_s) == 2
    assert found(after_s=minutes[4].start_s) is None


def test_an_id_that_nobody_sent_is_not_found_in_any_window(store: Store, minutes: list[Logged], log: BeaconLog) -> None:
    found = search(store, log, "trail", [hash_id("nobody")])
    assert (found.trail, found.is_cut) == (None, False)
    assert (found.from_s, found.to_s, found.oldest_s) == (
        minutes[0].start_s,
        minutes[4].start_s + 60,
        minutes[0].start_s,
    )


def test_only_the_partition_of_the_id_is_read(
    store: Store, minutes: list[Logged], log: BeaconLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[int] = set()
    records = BeaconLog.records

    def spied(self: BeaconLog, ranges: list[OffsetRange]) -> object:
        # the first block of each partition tells how many there were
        read.update(item.partition for item in ranges if item.last > item.first)
        return records(self, ranges)

    monkeypatch.setattr(BeaconLog, "records", spied)
    assert search(store, log, "trail", [hash_id(WANTED)]).trail is not None
    assert read == {hash_id(WANTED) * 4 >> 64}


def test_the_trail_is_whole_in_a_topic_that_was_widened_in_between(
    store: Store, kafka_bootstrap: str, topics: Callable[..., Topics]
) -> None:
    topic = topics(beacons_partitions=2).beacons
    store.apply(parse_definition(DEFINITION % "{name: src, to: [snk]}, {name: snk}"))
    minute = Logged("trail", int(time.time()) // 60 * 60 - 300, kafka_bootstrap, topic, store, 2)
    minute.tell("src.in", minute.put("src.in", IDS, 5), beacons=len(IDS))
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    admin.create_partitions([NewPartitions(topic, 7)])[topic].result(20)
    minute.tell("snk.in", minute.put("snk.in", IDS, 20, partitions=7), beacons=len(IDS))
    moved = next(name for name in IDS if hash_id(name) * 2 >> 64 != hash_id(name) * 7 >> 64)
    with closing(BeaconLog(kafka_bootstrap, topic)) as log:
        found = search(store, log, "trail", [hash_id(moved)]).trail
    assert found is not None
    assert [beacon.checkpoint for beacon in found.beacons] == ["src.in", "snk.in"]


def test_a_window_that_the_log_no_longer_holds_has_no_trail(
    store: Store, minutes: list[Logged], log: BeaconLog
) -> None:
    minutes[0].tell("snk.dead", [OffsetRange(0, 1 << 40, 1 << 40)])
    with pytest.raises(NotEnoughData, match="no longer in the log"):
        read_trail(store, log, "trail", minutes[0].start_s, hash_id(WANTED))
