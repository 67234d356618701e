"""The sender against a real topic, its beacons in memory: what leaves it is what the plan says."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from canary import sender as sending
from canary.plan import LOSING, MESSAGES, MINUTE_S, Fate, MinutePlan, plan_of
from canary.sender import CanarySender, Disturbed
from lagloss.broker.topics import connect, create_canary_topic
from lagloss.testing import RecordedPipeline, recorded
from tests.support.closers import wait_until
from tests.support.kafka_log import read_all

KINDS: tuple[Fate, ...] = ("lost", "late", "doubled", "corrupted", "dead")


class Clock:
    """A clock that `tick` moves on instead of waiting."""

    def __init__(self, start_s: float) -> None:
        self.now_s = start_s

    def tick(self, wait_s: float) -> None:
        self.now_s += max(wait_s, 0.001)


def rich_plan() -> MinutePlan:
    """This minute's plan, by a secret with which it has every fault."""
    start_s = int(time.time()) // MINUTE_S * MINUTE_S
    for number in range(100_000):
        plan = plan_of(number.to_bytes(32), start_s)
        places = {message.place for message in plan.messages}
        if all(plan.of_fate(kind) for kind in KINDS) and places >= set(LOSING):
            return plan
    raise AssertionError


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
    sender = CanarySender(kafka_bootstrap, "http://127.0.0.1:9", "", lambda: clock.now_s)

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


def test_a_minute_without_its_topic_is_disturbed_and_leaves_nothing_in_flight(
    kafka_bootstrap: str, topic: str, pipeline: RecordedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, _ = connect(kafka_bootstrap)
    admin.delete_topics([topic])[topic].result(20)
    plan = rich_plan()
    clock = Clock(plan.start_s)
    sender = CanarySender(kafka_bootstrap, "http://127.0.0.1:9", "", lambda: clock.now_s)

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

    sender = CanarySender(kafka_bootstrap, "http://127.0.0.1:9", "", lambda: clock.now_s)
    with pytest.raises(Disturbed, match="the sender was paused"):
        sender.send(plan, pausing)
    sender.close()


def test_a_tick_can_end_a_minute(kafka_bootstrap: str, topic: str, pipeline: RecordedPipeline) -> None:
    def ending(_wait_s: float) -> None:
        raise Disturbed("the clock was set by +60 s")

    plan = rich_plan()
    sender = CanarySender(kafka_bootstrap, "http://127.0.0.1:9", "", lambda: plan.start_s)
    with pytest.raises(Disturbed, match="the clock was set"):
        sender.send(plan, ending)
    sender.close()
