"""What a process leaves unfinished, killed or told to end, is late and never lost, measured by a real aggregator."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from lagloss.broker.topics import create_topics
from lagloss.sdk.emitter import Emitter
from lagloss.wire.format import WINDOW_S, hash_id
from lagloss_server.store import recompute_requests
from lagloss_server.store.schema.core import LaneRow
from lagloss_server.store.store import Store
from pipeline_under_test.harness.loss_watch import LossWatch
from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.scenario import stream_definition
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import COL_SERVICE, CONN_GA, EVENT_NORM, EVENT_ROUTER, topic_of
from pipeline_under_test.stream.verdict import followed_truth
from tests.fakes.http_receiver import Reply
from tests.fakes.vendor import Vendor
from tests.integration.aggregator.test_aggregator_process import aggregator, health
from tests.integration.pipeline_under_test.stream.test_exactly_once import is_amid_a_transaction
from tests.support.closers import wait_until
from tests.support.event_topics import clicks, idle_pipeline, put
from tests.support.node_process import NodeProcess, at_commit, running
from tests.support.pipeline_beacons import read_beacons

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

EVENTS = 100
OVERTAKEN_S = 7
"""How far a place must be past what it is to have overtaken: 5 s, and some for a clock that is rounded."""


@dataclass
class World:
    """A pipeline without processes whose windows are watched; events are those of a minute that is due already."""

    settings: ReferenceSettings
    store: Store
    watch: LossWatch
    source: Emitter
    start_s: int

    def send(self, name: str, node: str) -> set[str]:
        """So many events come in at col-service, and wait for a node. Their ids."""
        events = [
            Event(event.id, self.start_s * 1000 + at, event.body) for at, event in enumerate(clicks(name, EVENTS))
        ]
        for event in events:
            self.source.received(event.id, event.event_time_ms)
        put(self.settings, topic_of(self.settings.pipeline, node), events)
        for event in events:
            self.source.sent(event.id, event.event_time_ms)
        assert self.source.flush(20)
        return {event.id for event in events}

    def window(self) -> dict[str, Any]:
        """The events' window as it is now; what it tells of losses is noted."""
        self.watch.look()
        window = self.watch.windows[self.settings.pipeline].get(self.start_s)
        return {} if window is None else window.document()

    def await_(self, true: Any, what: str) -> Any:
        """Waits for a condition, and looks at the windows all the time."""

        def looked() -> Any:
            self.window()
            return true()

        return wait_until(looked, 60, what)

    def beacons(self, checkpoint: str) -> int:
        found = self.window().get("checkpoints", ())
        return next((at["beacons"] for at in found if at["name"] == checkpoint), 0)

    def lanes_ms(self, checkpoint: str) -> list[int]:
        """How far each lane of a place has come."""
        with self.store.engine.connect() as connection:
            rows = connection.execute(
                select(LaneRow.until).where(
                    LaneRow.pipeline == self.settings.pipeline, LaneRow.checkpoint == checkpoint
                )
            )
            return [row.until for row in rows]

    def judged_anew(self) -> dict[str, Any]:
        """The window, closed again from the log with all that is known by now."""
        self.await_(lambda: self.window().get("state") == "closed", "for the window to be closed")
        request = recompute_requests.add(self.store, self.settings.pipeline, self.start_s, self.start_s + WINDOW_S)
        self.await_(lambda: recompute_requests.answer_to(self.store, request), "for the window to be closed again")
        return self.window()

    def await_passed(self, checkpoint: str, which: Callable[[Iterable[bool]], bool]) -> None:
        """Returns once so many lanes of this place have overtaken what was seen before now."""
        far_ms = (time.time() + OVERTAKEN_S) * 1000
        self.await_(lambda: which(at > far_ms for at in self.lanes_ms(checkpoint)), f"for {checkpoint} to go on")


@pytest.fixture(scope="module")
def closing(kafka_bootstrap: str, module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The database of a running aggregator."""
    create_topics(kafka_bootstrap)
    with aggregator(kafka_bootstrap, module_database_url, tmp_path_factory.mktemp("aggregator")) as process:
        wait_until(lambda: health(process)[0] == HTTPStatus.OK, 120, "for the aggregator")
        yield module_database_url


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    with Vendor() as fake:
        yield fake


@pytest.fixture
def world(closing: str, kafka_bootstrap: str, vendor: Vendor, tmp_path: Path) -> Iterator[World]:
    settings = idle_pipeline(
        kafka_bootstrap, tmp_path, exactly_once=True, retry="local", receiver_url=vendor.url, batch=EVENTS
    )
    store = Store(closing)
    store.apply(stream_definition(settings.pipeline, warehouse=False, grace="1s"))
    truths = followed_truth(settings)
    watch = LossWatch(store, [settings.pipeline], truths)
    due_s = int(time.time()) // WINDOW_S * WINDOW_S - WINDOW_S
    with Emitter(settings.pipeline, COL_SERVICE, kafka_bootstrap, first=True) as source:
        yield World(settings, store, watch, source, due_s)
    store.close()


def kill(world: World, point: str) -> None:
    """Runs event-norm up to that point of its first batch, until lagloss knows of it, and kills it there."""
    with at_commit(world.settings, point):
        world.await_(lambda: world.beacons("event-norm.in"), "for the account of it")


def test_what_was_sent_in_a_transaction_that_is_never_committed_is_late(world: World) -> None:
    with running(world.settings, "node", EVENT_ROUTER) as router:
        router.await_beat()
        ids = world.send("late", EVENT_NORM)
        kill(world, "before_the_commit")
        world.await_(lambda: not is_amid_a_transaction(world.settings), "for the broker to end the transaction")
        world.await_passed("event-router.in", all)
        assert world.judged_anew()["pending"] == EVENTS
        with running(world.settings, "node", EVENT_NORM):
            world.await_(lambda: world.beacons("event-router.in") == EVENTS, "for the successor")
        assert world.judged_anew()["lost"] == {"min": 0, "max": 0}
    assert world.watch.found == []
    beacons = read_beacons(world.settings.bootstrap, world.settings.pipeline)
    assert beacons.ids["event-norm.out"] == beacons.ids["event-router.in"] == {hash_id(name) for name in ids}


def test_what_was_committed_and_not_told_of_is_late_until_the_next_node_takes_it_in(world: World) -> None:
    ids = world.send("untold", EVENT_NORM)
    kill(world, "after_the_commit")
    with running(world.settings, "node", EVENT_NORM) as successor:
        successor.await_beat()
        ids |= world.send("later", EVENT_NORM)  # so that the successor, too, has something to tell
        world.await_passed("event-norm.out", any)
        window = world.judged_anew()
        assert window["pending"] == len(ids), window
        with running(world.settings, "node", EVENT_ROUTER):
            world.await_(lambda: world.beacons("event-router.in") == len(ids), "for the next node")
        assert world.judged_anew()["lost"] == {"min": 0, "max": 0}
    assert world.watch.found == []
    beacons = read_beacons(world.settings.bootstrap, world.settings.pipeline)
    assert beacons.ids["event-norm.out"] < beacons.ids["event-router.in"] == {hash_id(name) for name in ids}


def test_what_is_refused_when_its_connector_is_told_to_end_is_late_until_another_one_delivers_it(
    world: World, vendor: Vendor
) -> None:
    vendor.script = lambda _ids: Reply(503)
    ids = world.send("refused", CONN_GA)
    node = NodeProcess(world.settings, ("node", CONN_GA))
    node.start()
    wait_until(lambda: refused(vendor), 60, "for the first NACK")
    began = time.monotonic()
    assert node.end() == 0
    assert time.monotonic() - began < 20
    vendor.script = lambda _ids: Reply()
    world.await_(lambda: world.beacons("conn-ga.in") == EVENTS, "for the account of it")
    assert world.judged_anew()["pending"] == EVENTS
    assert vendor.delivered == []
    with running(world.settings, "node", CONN_GA):
        world.await_(lambda: world.beacons("conn-ga.out") == EVENTS, "for the successor")
    window = world.judged_anew()
    assert (window["lost"], window["delivered"]) == ({"min": 0, "max": 0}, EVENTS)
    assert sorted(vendor.delivered) == sorted(ids)
    assert world.watch.found == []


def refused(vendor: Vendor) -> bool:
    """Whether the vendor was asked for some event as often as a connector does before it gives up for now."""
    tried = itertools.chain.from_iterable(delivery.ids for delivery in vendor.deliveries)
    return any(len(vendor.tries(name)) >= 4 for name in set(tried))
