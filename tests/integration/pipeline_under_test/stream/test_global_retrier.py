"""The global retrier: what waits in its tiers outlives it, and nobody waits for anybody else."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lagloss.broker.topics import create_topics
from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import CONN_FB, CONN_GA, GLOBAL_RETRIER, dead_topic, tier_topic, topic_of
from tests.support.closers import wait_until
from tests.support.event_topics import backlog, clicks, events_in, idle_pipeline, names_in, put, waiting
from tests.support.node_process import running

pytestmark = pytest.mark.slow

SHORT_S, LONG_S = 2.0, 120.0
KILLS = 3


def hand_over(settings: ReferenceSettings, events: list[Event]) -> set[str]:
    put(settings, topic_of(settings.pipeline, GLOBAL_RETRIER), events)
    return {event.id for event in events}


def failed(prefix: str, count: int, node: str, tries: int = 0) -> list[Event]:
    """Events that a connector could not deliver."""
    return [replace(event.set_aside(node, "HTTP 503"), tries=tries) for event in clicks(prefix, count)]


def test_events_that_wait_outlive_the_retrier_and_nobody_waits_for_a_longer_tier(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    create_topics(kafka_bootstrap)
    settings = idle_pipeline(kafka_bootstrap, tmp_path, tiers_s=(SHORT_S, LONG_S))
    topics = {node: topic_of(settings.pipeline, node) for node in (CONN_GA, CONN_FB)}
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    patient = hand_over(settings, failed("patient", 20, CONN_GA, tries=1))
    hopeless = hand_over(settings, failed("hopeless", 20, CONN_GA, tries=2))
    hasty: set[str] = set()
    with running(settings, "node", GLOBAL_RETRIER) as retrier:
        for number in range(KILLS):
            hasty |= hand_over(settings, failed(f"ga-{number}", 100, CONN_GA))
            hasty |= hand_over(settings, failed(f"fb-{number}", 100, CONN_FB))
            retrier.await_beat()
            wait_until(lambda: backlog(settings, GLOBAL_RETRIER) == 0, what="for them to be in their tiers")
            time.sleep(moments.uniform(0, 1.5 * SHORT_S))  # no condition: a crash comes at any moment
            retrier.kill()
            retrier.start()
        wait_until(lambda: names_in(settings, topics[CONN_GA]) | names_in(settings, topics[CONN_FB]) >= hasty)
        assert waiting(settings, LONG_S) == len(names_in(settings, tier_topic(settings.pipeline, LONG_S)))
        wait_until(lambda: waiting(settings, SHORT_S) == 0, what="for the short tier to be committed")
        retrier.await_beat()
        assert retrier.end() == 0
    assert names_in(settings, tier_topic(settings.pipeline, LONG_S)) == patient
    for node, topic in topics.items():
        back = events_in(kafka_bootstrap, topic)
        assert {event.id for event in back} == {name for name in hasty if name.startswith(node[-2:])}
        assert {(event.tries, event.back_to, event.reason) for event in back} == {(1, "", "HTTP 503")}
    letters = events_in(kafka_bootstrap, dead_topic(settings.pipeline))
    assert {letter.id for letter in letters} == hopeless
    assert {(letter.reason, letter.back_to) for letter in letters} == {("HTTP 503, after 2 returns", CONN_GA)}
