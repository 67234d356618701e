"""The way into a dead-letter queue that takes nothing: the pipeline goes on, and no letter is lost."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from lagloss.broker.topics import create_topics as create_lagloss_topics
from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.events.schema import packaged
from pipeline_under_test.stream.nodes.dead_letters import DeadLetters
from pipeline_under_test.stream.nodes.dlq_spool import LetterFile
from pipeline_under_test.stream.topology import EVENT_NORM, EVENT_ROUTER, dead_topic, topic_of
from tests.support.closers import wait_until
from tests.support.event_topics import backlog, configure, events_in, idle_pipeline, put

NOBODY = "127.0.0.1:1"
GIVE_UP_S = 1.0
TINY = {"max_message_bytes": "90"}
"""Less than any letter."""
WHOLE = {"max_message_bytes": "1048588"}


@dataclass
class Office:
    """A node's way into a queue of the test's own, and which letters it said were safe."""

    bootstrap: str
    folder: Path
    topic: str = field(default_factory=lambda: f"dead-{uuid.uuid4().hex[:8]}")
    safe: list[str] = field(default_factory=list)

    def create(self, **config: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        told = {name.replace("_", "."): value for name, value in config.items()}
        admin.create_topics([NewTopic(self.topic, 1, 1, config=told)])[self.topic].result(20)

    def opened(self, bootstrap: str | None = None, again_s: float = 0.2) -> DeadLetters:
        return DeadLetters(
            bootstrap or self.bootstrap, self.topic, self.folder, EVENT_NORM, give_up_s=GIVE_UP_S, again_s=again_s
        )

    def send(self, letters: DeadLetters, *names: str, size: int = 0) -> None:
        for name in names:
            event = Event(name, 1, random.Random(name).randbytes(size)).set_aside(EVENT_NORM, "why")
            letters.send(event, lambda name=name: self.safe.append(name))  # type: ignore[misc]

    def arrived(self) -> list[str]:
        return sorted(event.id for event in events_in(self.bootstrap, self.topic))

    def on_disk(self) -> list[Path]:
        return list(self.folder.rglob("*.*"))


@pytest.fixture
def office(kafka_bootstrap: str, tmp_path: Path) -> Office:
    return Office(kafka_bootstrap, tmp_path / "dead-letters")


def stepped(letters: DeadLetters, true: Callable[[], object], timeout_s: float = 20) -> None:
    """Steps until it is true; no step may wait for the queue."""

    def step() -> object:
        began = time.monotonic()
        letters.step()
        assert time.monotonic() - began < GIVE_UP_S / 2
        return true()

    wait_until(step, timeout_s, "for letters")


def test_letters_that_the_queue_takes_are_safe_and_never_on_disk(office: Office) -> None:
    office.create()
    letters = office.opened()
    office.send(letters, "a", "b")
    stepped(letters, lambda: len(office.safe) == 2)
    assert office.arrived() == ["a", "b"]
    assert office.on_disk() == []
    letters.close()


def test_a_queue_for_smaller_letters_gets_them_once_it_is_mended_and_each_once(office: Office) -> None:
    office.create(**TINY)
    letters = office.opened()
    office.send(letters, *"abc")
    stepped(letters, lambda: sorted(office.safe) == ["a", "b", "c"])
    assert office.arrived() == []
    configure(office.bootstrap, office.topic, **WHOLE)
    stepped(letters, lambda: not office.on_disk())
    assert office.arrived() == ["a", "b", "c"]
    letters.close()


def test_one_letter_that_is_too_large_keeps_no_other_and_is_all_that_is_tried_again(office: Office) -> None:
    office.create(max_message_bytes="1000")
    letters = office.opened()
    office.send(letters, "large", size=2000)
    office.send(letters, "a", "b")
    stepped(letters, lambda: sorted(office.safe) == ["a", "b", "large"])
    rounds = {path.name for path in office.on_disk()}
    assert rounds
    office.send(letters, "c")
    stepped(letters, lambda: "c" in office.safe and time.monotonic() > letters._next_round)
    assert office.arrived() == ["a", "b", "c"]
    configure(office.bootstrap, office.topic, **WHOLE)
    stepped(letters, lambda: not office.on_disk())
    assert office.arrived() == ["a", "b", "c", "large"]
    letters.close()


def test_a_queue_that_does_not_answer_is_waited_for_once_and_not_for_each_letter(office: Office) -> None:
    letters = office.opened(NOBODY, again_s=5 * GIVE_UP_S)  # as it is: later than it gives up
    office.send(letters, "a")
    stepped(letters, lambda: office.safe == ["a"])
    office.send(letters, "b", "c")
    letters.step()
    assert office.safe == ["a", "b", "c"]
    letters.close()


def test_a_queue_that_is_deleted_and_made_again_gets_what_came_meanwhile(office: Office) -> None:
    office.create()
    letters = office.opened()
    office.send(letters, "a")
    stepped(letters, lambda: office.safe == ["a"])
    admin = AdminClient({"bootstrap.servers": office.bootstrap, "log_level": 0})
    admin.delete_topics([office.topic])[office.topic].result(20)
    wait_until(lambda: office.topic not in admin.list_topics(timeout=10).topics, what="for the topic to go")
    office.send(letters, "b", "c")
    stepped(letters, lambda: sorted(office.safe) == ["a", "b", "c"])
    office.create()
    stepped(letters, lambda: not office.on_disk(), 40)
    assert set(office.arrived()) == {"b", "c"}
    letters.close()


def test_letters_outlive_a_process_that_has_no_broker_and_the_next_one_sends_them(office: Office) -> None:
    office.create()
    first = office.opened(NOBODY)
    office.send(first, "a", "b")
    stepped(first, lambda: office.safe == ["a", "b"])
    office.send(first, "c")
    first.close()
    assert office.safe == ["a", "b", "c"]
    second = office.opened()
    stepped(second, lambda: not office.on_disk())
    assert office.arrived() == ["a", "b", "c"]
    second.close()


def test_an_end_between_the_queues_acknowledgement_and_the_disks_sends_letters_twice_and_loses_none(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(file: LetterFile, left: Sequence[bytes]) -> None:
        file._locked.close()
        raise OSError("killed")

    office.create(**TINY)
    letters = office.opened()
    office.send(letters, "a", "b")
    stepped(letters, lambda: len(office.safe) == 2)
    letters.close()
    configure(office.bootstrap, office.topic, **WHOLE)
    with monkeypatch.context() as patch:
        patch.setattr(LetterFile, "settle", die)
        killed = office.opened()
        stepped(killed, lambda: killed._next_round > 0)
        killed.close()
    assert office.arrived() == ["a", "b"]
    successor = office.opened()
    stepped(successor, lambda: not office.on_disk())
    assert office.arrived() == ["a", "a", "b", "b"]
    successor.close()


def test_what_is_on_its_way_at_the_end_is_kept(office: Office) -> None:
    letters = DeadLetters(NOBODY, office.topic, office.folder, EVENT_NORM, give_up_s=300)
    office.send(letters, "a")
    letters.step()
    assert office.safe == []
    letters.close()
    assert office.safe == ["a"]


def test_without_queue_and_disk_letters_wait_and_are_not_safe(office: Office) -> None:
    office.folder.write_text("in the way")
    letters = office.opened(NOBODY)
    office.send(letters, "a")
    stepped(letters, lambda: letters._is_refusing)
    office.send(letters, "b")
    stepped(letters, lambda: letters._next_write > 0)
    assert office.safe == []
    office.folder.unlink()
    stepped(letters, lambda: sorted(office.safe) == ["a", "b"])
    letters.close()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_node_goes_on_and_commits_while_its_dead_letter_queue_refuses_and_a_crash_loses_no_letter(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    create_lagloss_topics(kafka_bootstrap)
    settings = idle_pipeline(kafka_bootstrap, tmp_path)
    queue = dead_topic(settings.pipeline)
    configure(kafka_bootstrap, queue, **TINY)
    now_ms = time.time_ns() // 1_000_000
    good = packaged().encode({"url": "https://shop.example/cart", "kind": "click"})
    events = [Event(f"{'bad' if n % 2 else 'good'}-{n}", now_ms, b"poison" if n % 2 else good) for n in range(200)]
    words = [sys.executable, "-m", "pipeline_under_test", "node", EVENT_NORM, "--data-dir", str(tmp_path)]
    with subprocess.Popen(words) as node:
        try:
            put(settings, topic_of(settings.pipeline, EVENT_NORM), events)
            wait_until(lambda: backlog(settings, EVENT_NORM) == 0, 40, "for all to be committed")
            passed = {event.id for event in events_in(kafka_bootstrap, topic_of(settings.pipeline, EVENT_ROUTER))}
        finally:
            node.kill()
    assert passed == {event.id for event in events if event.body == good}
    assert events_in(kafka_bootstrap, queue) == []
    configure(kafka_bootstrap, queue, **WHOLE)
    with subprocess.Popen(words) as node:
        try:
            wait_until(lambda: len(events_in(kafka_bootstrap, queue)) >= 100, 40, "for the letters")
        finally:
            node.terminate()
    found = events_in(kafka_bootstrap, queue)
    assert sorted(letter.id for letter in found) == sorted(event.id for event in events if event.body != good)
    assert {(letter.back_to, letter.reason, letter.body) for letter in found} == {
        (EVENT_NORM, "unreadable: not Avro", b"poison")
    }
