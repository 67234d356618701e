"""The sender against a real topic, its beacons in memory: what leaves it is what the plan says."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest

from canary import sender as sending
from canary.plan import LATE_MS, LOSING, MESSAGES, MINUTE_S, RARE, MinutePlan, plan_of
from canary.sender import CanarySender, Disturbed
from canary.table import CanaryTable
from lagloss.broker.topics import connect, create_canary_topic
from lagloss.testing import RecordedPipeline, recorded
from lagloss_server.model.canary import TABLE
from tests.support.closers import wait_until
from tests.support.kafka_log import read_all


class Clock:
    """A clock that `tick` moves on instead of waiting."""

    def __init__(self, start_s: float) -> None:
        self.now_s = start_s

    def tick(self, wait_s: float) -> None:
        self.now_s += max(wait_s, 0.001)


def rich_plan() -> MinutePlan:
    """A plan of this minute with every fault at every place, spread over its messages."""
    start_s = int(time.time()) // MINUTE_S * MINUTE_S
    faults = [*(("lost", place) for place in LOSING[:2]), *RARE]
    messages = [replace(m, fate="delivered", place="", delay_ms=0) for m in plan_of(bytes(32), start_s).messages]
    for index, (fate, place) in zip(range(0, MESSAGES, MESSAGES // len(faults)), faults, strict=False):
        delay_ms = LATE_MS[0] if fate == "late" else 0
        messages[index] = replace(messages[index], fate=fate, place=place, delay_ms=delay_ms)
    return MinutePlan(start_s, tuple(messages))


@pytest.fixture
def topic(kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"lagloss.canary.{time.time_ns()}"
    create_canary_topic(kafka_bootstrap, name)
    monkeypatch.setattr(sending, "CANARY_TOPIC", name)
    return name


@pytest.fixture
def pipeline() -> Iterator[RecordedPipeline]:
    with recorded() as pipeline:
        yield pipeline


def test_each_message_meets_its_fate_and_no_other(kafka_bootstrap: str, topic: str, pipeline: RecordedPipeline) -> None:
    plan = rich_plan()
    clock = Clock(plan.start_s)
    sender = CanarySender(kafka_bootstrap, "http://127.0.0.1:9", "", now_s=lambda: clock.now_s)

    minute = sender.send(plan, clock.tick)

    assert clock.now_s >= plan.start_s + MINUTE_S
    wait_until(lambda: sender.is_confirmed(minute), what="for the acknowledgements")
    beacons = Counter((seen.checkpoint, seen.message_id) for seen in pipeline.observations())
    records = Counter(key.decode() for _, _, key, _ in read_all(kafka_bootstrap, topic))
    for message in plan.messages:
        lost = message.place if message.fate == "lost" else ""
        reaches_relay = lost != "link app->relay"
        is_sent = reaches_relay and lost != "node relay" and message.fate != "dead"
        reaches_store = is_sent and lost != "link relay->store"
        expected = {
            "app.in": 1,
            "app.out": 1,
            "relay.in": reaches_relay * (1 + (message.place == "relay.in")),
            "relay.dead": int(message.fate == "dead"),
            "store.in": reaches_store * (1 + (message.place == "store.in")),
            "store.out": int(reaches_store and lost != "node store"),
        }
        assert {checkpoint: beacons[checkpoint, message.id] for checkpoint in expected} == expected, message
        assert records[message.id] == is_sent * (1 + (message.place == "relay.out")), message
    assert sum(records.values()) + sum(beacons.values()) > 5 * MESSAGES
    assert not sender._store.in_flight
    sender.close()


def test_with_a_table_what_is_delivered_is_a_row_of_it(
    kafka_bootstrap: str, topic: str, pipeline: RecordedPipeline, module_database_url: str
) -> None:
    plan = rich_plan()
    clock = Clock(plan.start_s)
    sender = CanarySender(
        kafka_bootstrap, "http://127.0.0.1:9", "", CanaryTable(module_database_url), lambda: clock.now_s
    )

    minute = sender.send(plan, clock.tick)

    wait_until(lambda: sender.is_confirmed(minute), what="for the acknowledgements")
    beacons = Counter(seen.checkpoint for seen in pipeline.observations())
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        rows = connection.execute(f"SELECT id, (extract(epoch FROM event_time) * 1000)::bigint FROM {TABLE}").fetchall()
        ends = {message.id: plan.start_s * 1_000 + message.offset_ms for message in plan.messages}
        delivered = {message.id for message in plan.messages if message.fate not in ("lost", "dead")}
        assert dict(rows) == {name: ends[name] for name in delivered}
        assert beacons["store.in"] >= len(delivered)
        assert beacons["store.out"] == 0
        connection.execute(f"UPDATE {TABLE} SET event_time = event_time - interval '2 hours'")
        sender._deliver([])
        assert connection.execute(f"SELECT count(*) FROM {TABLE}").fetchone() == (0,)
        connection.execute(f"DROP TABLE {TABLE}")
        again = rich_plan()
        clock.now_s = again.start_s
        with pytest.raises(Disturbed, match=f"table {TABLE}") as disturbed:
            sender.send(again, clock.tick)
        assert sender._store.in_flight == 0, disturbed  # though its frames, and so the late message, are still alive
        sender._deliver([])
        assert connection.execute("SELECT to_regclass(%s)", (TABLE,)).fetchone() != (None,)
    sender.close()


def test_a_minute_without_its_topic_is_disturbed_and_leaves_nothing_in_flight(
    kafka_bootstrap: str, topic: str, pipeline: RecordedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, _ = connect(kafka_bootstrap)
    admin.delete_topics([topic])[topic].result(20)
    plan = rich_plan()
    clock = Clock(plan.start_s)
    sender = CanarySender(kafka_bootstrap, "http://127.0.0.1:9", "", now_s=lambda: clock.now_s)

    with pytest.raises(Disturbed, match=topic):
        sender.send(plan, clock.tick)

    assert sender._store.in_flight == 0
    sender.close()


@pytest.mark.parametrize("pause_s", [60.0, 3_600.0])
def test_a_sender_that_was_paused_says_so(
    kafka_bootstrap: str, topic: str, pipeline: RecordedPipeline, pause_s: float
) -> None:
    plan = rich_plan()
    clock = Clock(plan.start_s)

    def pausing(wait_s: float) -> None:
        clock.now_s += wait_s if clock.now_s < plan.start_s + 2 else pause_s

    sender = CanarySender(kafka_bootstrap, "http://127.0.0.1:9", "", now_s=lambda: clock.now_s)
    with pytest.raises(Disturbed, match="the sender was paused"):
        sender.send(plan, pausing)
    sender.close()


def test_a_tick_can_end_a_minute(kafka_bootstrap: str, topic: str, pipeline: RecordedPipeline) -> None:
    def ending(_wait_s: float) -> None:
        raise Disturbed("the clock was set by +60 s")

    plan = rich_plan()
    sender = CanarySender(kafka_bootstrap, "http://127.0.0.1:9", "", now_s=lambda: plan.start_s)
    with pytest.raises(Disturbed, match="the clock was set"):
        sender.send(plan, ending)
    sender.close()
