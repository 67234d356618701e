"""The first link: what col-service has answered for is in the topic, whenever it is killed."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from lagloss.broker.topics import create_topics
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.processes import LOOPBACK, choose_port
from pipeline_under_test.stream.nodes.col_service import ACK_TIMEOUT_S
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import COL_SERVICE, EVENT_NORM, topic_of
from tests.support.clients import Clients, click
from tests.support.closers import wait_until
from tests.support.event_topics import idle_pipeline, names_in
from tests.support.node_process import NodeProcess, col_service

pytestmark = pytest.mark.slow

KILLS = 5
Ending = Callable[[NodeProcess], object]


@pytest.fixture
def settings(kafka_bootstrap: str, tmp_path: Path) -> ReferenceSettings:
    create_topics(kafka_bootstrap)
    made = idle_pipeline(kafka_bootstrap, tmp_path, collector_url=f"http://{LOOPBACK}:{choose_port(COL_SERVICE)}")
    made.save()
    return made


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


def in_topic(settings: ReferenceSettings) -> set[str]:
    return names_in(settings, topic_of(settings.pipeline, EVENT_NORM))


def kill(node: NodeProcess) -> None:
    node.kill()


def end(node: NodeProcess) -> None:
    assert node.end() == 0


@pytest.mark.parametrize("ending", [kill, end], ids=["killed", "told-to-end"])
def test_every_event_that_was_answered_is_in_the_topic_however_col_service_ends(
    settings: ReferenceSettings, ending: Ending
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    with col_service(settings) as service, Clients(settings.collector_url) as clients:
        for _ in range(KILLS if ending is kill else 2):
            before = len(clients.accepted)
            wait_until(lambda before=before: len(clients.accepted) > before, what="for answers")
            time.sleep(moments.uniform(0, 0.5))  # no condition: a crash comes at any moment
            ending(service)
            service.start()
        before = len(clients.accepted)
        wait_until(lambda: len(clients.accepted) > before, what="for answers of the last")
    assert clients.statuses[200] > KILLS
    assert clients.accepted <= in_topic(settings)


def post(settings: ReferenceSettings, events: object) -> httpx2.Response:
    return httpx2.post(f"{settings.collector_url}/events", json=events, timeout=60)


def is_answered(answer: Future[httpx2.Response], within_s: float) -> bool:
    try:
        answer.result(within_s)
    except TimeoutError:
        return False
    return True


def test_no_answer_comes_before_the_broker_has_the_event(
    settings: ReferenceSettings, kafka: EmbeddedKafka, pool: ThreadPoolExecutor
) -> None:
    with col_service(settings) as service:
        service.await_beat()
        assert post(settings, click()).status_code == 200
        one, batch = click(), [click() for _ in range(5)]
        broker = kafka.processes[0]
        broker.send_signal(signal.SIGSTOP)
        try:
            answers = [pool.submit(post, settings, events) for events in (one, batch)]
            assert not any(is_answered(answer, 1.5) for answer in answers)
        finally:
            broker.send_signal(signal.SIGCONT)
        assert [answer.result(30).status_code for answer in answers] == [200, 200]
        assert {event["event_id"] for event in (one, *batch)} <= in_topic(settings)


def test_a_broker_that_stays_silent_is_answered_with_503_and_events_are_taken_again_afterwards(
    settings: ReferenceSettings, kafka: EmbeddedKafka, pool: ThreadPoolExecutor
) -> None:
    with col_service(settings) as service:
        service.await_beat()
        assert post(settings, click()).status_code == 200
        broker = kafka.processes[0]
        broker.send_signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            refused = post(settings, [click(), {"event_id": "malformed"}])
            assert time.monotonic() - began >= ACK_TIMEOUT_S
        finally:
            broker.send_signal(signal.SIGCONT)
        assert refused.status_code == 503
        assert [item["reason"] for item in refused.json()["rejected"]] == ["not acknowledged", "malformed"]
        again = click()
        assert post(settings, again).status_code == 200
        assert again["event_id"] in in_topic(settings)
