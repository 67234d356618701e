"""The inner links: nodes that are killed again and again under load make duplicates, never holes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lagloss.broker.topics import create_topics
from lagloss.wire.format import hash_id
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import CONN_FB, CONN_GA, EVENT_NORM, EVENT_ROUTER, NEXT, topic_of
from tests.support.closers import wait_until
from tests.support.event_topics import (
    backlog,
    clicks,
    default_routes,
    idle_pipeline,
    names_committed,
    names_in,
    put,
)
from tests.support.node_process import running
from tests.support.pipeline_beacons import read_beacons

pytestmark = pytest.mark.slow

KILLS = 3
EVERY_S = 0.1
GOOD, ROBOTS = 90, 10
"""Events put in at a time."""


class Feed:
    """Puts events into event-norm's topic for as long as the block lasts."""

    def __init__(self, settings: ReferenceSettings) -> None:
        self.good: set[str] = set()
        self.robots: set[str] = set()
        self._settings = settings
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(EVERY_S):
            number += 1
            good, robots = clicks(f"good-{number}", GOOD), clicks(f"robot-{number}", ROBOTS, bot=True)
            put(self._settings, topic_of(self._settings.pipeline, EVENT_NORM), good + robots)
            self.good.update(event.id for event in good)
            self.robots.update(event.id for event in robots)


def test_nodes_that_are_killed_again_and_again_send_every_event_on_and_commit_none_before(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    create_topics(kafka_bootstrap)
    settings = idle_pipeline(kafka_bootstrap, tmp_path)
    default_routes(settings)
    topics = {node: topic_of(settings.pipeline, node) for node in (EVENT_ROUTER, CONN_GA, CONN_FB)}
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    feed = Feed(settings)
    with running(settings, "node", EVENT_NORM) as norm, running(settings, "node", EVENT_ROUTER) as router:
        with feed.going_on():
            for _ in range(KILLS):
                came_out = len(names_in(settings, topics[CONN_GA]))
                wait_until(lambda before=came_out: len(names_in(settings, topics[CONN_GA])) > before, what="for events")
                time.sleep(moments.uniform(0, 1))  # no condition: a crash comes at any moment
                for node in (norm, router):
                    node.kill()
                assert names_committed(settings, EVENT_NORM) - feed.robots <= names_in(settings, topics[EVENT_ROUTER])
                routed = names_committed(settings, EVENT_ROUTER)
                assert all(routed <= names_in(settings, topics[node]) for node in (CONN_GA, CONN_FB))
                for node in (norm, router):
                    node.start()
        wait_until(lambda: backlog(settings, EVENT_NORM) + backlog(settings, EVENT_ROUTER) == 0, what="for the rest")
        assert norm.end() == router.end() == 0
    assert all(names_in(settings, topic) == feed.good for topic in topics.values())
    assert_accounted_for(settings, feed)


def assert_accounted_for(settings: ReferenceSettings, feed: Feed) -> None:
    """Beacons have no hole either: lagloss would call it a loss."""
    beacons = read_beacons(settings.bootstrap, settings.pipeline)
    good, robots = ({hash_id(name) for name in names} for names in (feed.good, feed.robots))
    assert beacons.ids["event-norm.in"] == good | robots
    assert beacons.ids["event-norm.filtered"] == robots
    assert beacons.out(EVENT_NORM, EVENT_ROUTER) == beacons.ids["event-router.in"] == good
    assert all(beacons.out(EVENT_ROUTER, to) == good for to in NEXT[EVENT_ROUTER])
