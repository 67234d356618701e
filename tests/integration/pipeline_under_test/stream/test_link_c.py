"""The last link: a vendor that fails, is slow or refuses, and a connector that is killed, lose nothing between them."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from lagloss.broker.topics import create_topics
from lagloss.wire.format import hash_id
from lagloss_server.ops.processes import LOOPBACK, choose_port
from pipeline_under_test.harness.ledger import LedgerReader
from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.faults import parse
from pipeline_under_test.stream.nodes.connector import LOCAL_TRIES
from pipeline_under_test.stream.nodes.receiver import RECEIVER
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import CONN_GA, GLOBAL_RETRIER, dead_topic, topic_of
from tests.fakes.http_receiver import Reply
from tests.fakes.vendor import Vendor
from tests.support.closers import wait_until
from tests.support.event_topics import backlog, clicks, events_in, idle_pipeline, names_in, put, waiting
from tests.support.node_process import NodeProcess, running
from tests.support.pipeline_beacons import read_beacons

pytestmark = pytest.mark.slow

MakePipeline = Callable[..., ReferenceSettings]
FAULTS = ("503:0.6", "reset:0.1", "partial:0.2", "429=1s:0.1", "timeout:0.03", "400:0.05")


@pytest.fixture
def pipeline(kafka_bootstrap: str, tmp_path: Path) -> MakePipeline:
    create_topics(kafka_bootstrap)

    def make(receiver_url: str, folder: str = "", **more: Any) -> ReferenceSettings:
        return idle_pipeline(kafka_bootstrap, tmp_path / folder, receiver_url=receiver_url, **more)

    return make


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    with Vendor() as fake:
        yield fake


def put_in(settings: ReferenceSettings, events: Sequence[Event]) -> set[str]:
    put(settings, topic_of(settings.pipeline, CONN_GA), events)
    return {event.id for event in events}


def is_through(settings: ReferenceSettings) -> bool:
    """Whether nothing is left in the topics of the connector and the retrier, nor in its tiers."""
    in_tiers = sum(waiting(settings, tier_s) for tier_s in settings.tiers_s)
    return backlog(settings, CONN_GA) + backlog(settings, GLOBAL_RETRIER) + in_tiers == 0


def test_every_event_is_delivered_or_dead_with_a_reason_whatever_the_vendor_does_and_whoever_is_killed(
    pipeline: MakePipeline,
) -> None:
    port = choose_port(RECEIVER)
    settings = pipeline(f"http://{LOOPBACK}:{port}", batch=20, tiers_s=(1.0, 2.0))
    injections = settings.injections()
    for fault in FAULTS:
        injections.add(parse(f"receiver:ga:{fault}"), in_s=0)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    events = put_in(settings, clicks("event", 1200))
    ledger, fates = LedgerReader(settings.ledger_dir), Counter[tuple[str, str]]()

    def count(fate: str) -> int:
        fates.update((entry.fate, entry.id) for entry in ledger.new_entries())
        return sum(found == fate for found, _ in fates)

    with (
        running(settings, RECEIVER, "--port", str(port)),
        running(settings, "node", CONN_GA) as connector,
        running(settings, "node", GLOBAL_RETRIER) as retrier,
    ):
        for node in (connector, retrier, connector):
            before = count("delivered")
            wait_until(lambda before=before: count("delivered") > before, what="for deliveries")
            time.sleep(moments.uniform(0, 1))  # no condition: a crash comes at any moment
            node.kill()
            node.start()
        wait_until(lambda: count("delivered") > len(events) // 2, 120, "for half of all deliveries")
        to_retrier = topic_of(settings.pipeline, GLOBAL_RETRIER)
        wait_until(lambda: names_in(settings, to_retrier), 120, "for events that the connector gave up")
        injections.end_all()
        wait_until(lambda: is_through(settings), 120, "for the rest")
        for node in (connector, retrier):
            node.await_beat()
        assert connector.end() == retrier.end() == 0
    count("delivered")
    delivered, dead = ({name for found, name in fates if found == fate} for fate in ("delivered", "dead"))
    assert delivered | dead == events
    letters = {letter.id: letter.reason for letter in events_in(settings.bootstrap, dead_topic(settings.pipeline))}
    assert letters.keys() == dead
    assert all(reason == "HTTP 400" or "after 2 returns" in reason for reason in letters.values())
    beacons = read_beacons(settings.bootstrap, settings.pipeline)
    ways = ("out", "dead", f"out:{GLOBAL_RETRIER}")
    assert beacons.ids[f"{CONN_GA}.in"] == {hash_id(name) for name in events}
    assert beacons.ids[f"{CONN_GA}.in"] == set().union(*(beacons.ids[f"{CONN_GA}.{way}"] for way in ways))
    back, gone = f"{GLOBAL_RETRIER}.out:{CONN_GA}", f"{GLOBAL_RETRIER}.dead"
    assert beacons.ids[f"{GLOBAL_RETRIER}.in"] <= beacons.ids[back] | beacons.ids[gone]


def test_what_a_vendor_will_never_take_is_dead_at_once_and_what_it_may_take_later_is_tried_when_it_says(
    pipeline: MakePipeline, vendor: Vendor
) -> None:
    def answer(ids: Sequence[str]) -> Reply:
        if any(name.startswith("bad") for name in ids):
            return Reply(400)
        if any(name.startswith("busy") for name in ids) and not any(vendor.tries(name) for name in ids):
            return Reply(429, headers={"Retry-After": "2"})
        return Reply()

    vendor.script = answer
    settings = pipeline(vendor.url, batch=10)
    good, bad = (put_in(settings, clicks(prefix, 30)) for prefix in ("good", "bad"))
    with running(settings, "node", CONN_GA) as connector:
        wait_until(lambda: backlog(settings, CONN_GA) == 0, what="for all of them")
        put_in(settings, clicks("busy", 1))
        wait_until(lambda: "busy-0" in vendor.delivered, what="for the second try")
        assert connector.end() == 0
    first, second = vendor.tries("busy-0")
    assert second.began_s - first.ended_s >= 2
    assert set(vendor.delivered) == {*good, "busy-0"}
    # Once in company, once alone; never as `retry`: no pause, no third time.
    assert all(len(vendor.tries(name)) <= 2 for name in bad)
    letters = events_in(settings.bootstrap, dead_topic(settings.pipeline))
    assert sorted(letter.id for letter in letters) == sorted(bad)
    assert {(letter.reason, letter.back_to) for letter in letters} == {("HTTP 400", CONN_GA)}
    assert names_in(settings, topic_of(settings.pipeline, GLOBAL_RETRIER)) == set()


def test_what_is_refused_is_read_again_until_it_is_taken_and_holds_up_what_stands_behind_it(
    pipeline: MakePipeline, vendor: Vendor
) -> None:
    settings = pipeline(vendor.url, batch=5, retry="local")
    is_away = threading.Event()
    is_away.set()
    vendor.script = lambda ids: Reply(503 if is_away.is_set() and "stuck-0" in ids else 200)
    put_in(settings, clicks("stuck", 1))
    with running(settings, "node", CONN_GA) as connector:
        wait_until(lambda: len(vendor.tries("stuck-0")) >= LOCAL_TRIES, what="for the first NACK")
        later = put_in(settings, clicks("later", 60))
        wait_until(lambda: len(vendor.tries("stuck-0")) >= 2 * LOCAL_TRIES + 1, what="for the second NACK")
        held_up = later - set(vendor.delivered)
        assert 0 < len(held_up) < len(later), "expected its partition to wait, and the others to go on"
        assert backlog(settings, CONN_GA) >= 1 + len(held_up)
        connector.kill()
        connector.start()
        is_away.clear()
        wait_until(lambda: backlog(settings, CONN_GA) == 0, what="for all of them")
        assert connector.end() == 0
    assert set(vendor.delivered) == later | {"stuck-0"}
    assert vendor.delivered.count("stuck-0") == 1
    assert names_in(settings, topic_of(settings.pipeline, GLOBAL_RETRIER)) == set()


def test_batches_go_out_in_parallel(pipeline: MakePipeline) -> None:
    def per_second(parallel: int) -> float:
        with Vendor() as vendor:
            vendor.script = lambda _ids: Reply() if not time.sleep(0.25) else Reply(500)
            settings = pipeline(vendor.url, f"parallel-{parallel}", batch=10, parallel=parallel)
            put_in(settings, clicks("event", 160))
            with running(settings, "node", CONN_GA) as connector:
                wait_until(lambda: len(vendor.delivered) == 160, what="for all of them")
                assert connector.end() == 0
            assert vendor.most_at_a_time == parallel
            assert max(len(delivery.ids) for delivery in vendor.deliveries) == 10
            times = [(delivery.began_s, delivery.ended_s) for delivery in vendor.deliveries]
            return 160 / (max(ended for _, ended in times) - min(began for began, _ in times))

    assert per_second(4) / per_second(1) > 2.5


def test_a_slow_vendor_raises_the_lag_and_not_the_memory(pipeline: MakePipeline, vendor: Vendor) -> None:
    goes_on = threading.Event()
    vendor.script = lambda _ids: Reply(200 if goes_on.wait(60) else 500)
    settings = pipeline(vendor.url, batch=100)
    put_in(settings, clicks("first", 3_000))
    with running(settings, "node", CONN_GA) as connector:
        wait_until(lambda: vendor.most_at_a_time == settings.parallel, what="for requests that wait")
        rounds(connector, 2)
        before = psutil.Process(connector.pid).memory_info().rss
        put_in(settings, clicks("more", 30_000, url=f"https://shop.example/{'x' * 2_000}"))
        rounds(connector, 3)
        grown = psutil.Process(connector.pid).memory_info().rss - before
        waiting = backlog(settings, CONN_GA)
        goes_on.set()
        wait_until(lambda: len(vendor.delivered) > 1_000, what="for deliveries")
    assert waiting == 33_000
    assert grown < 30 * 1024 * 1024, f"grew by {grown / 1024 / 1024:.0f} MB with 60 MB waiting"


def rounds(node: NodeProcess, seconds: int) -> None:
    """Waits until the node's loop has gone round for so many seconds, as its beat tells."""
    path = node.settings.beats_dir / str(node.pid)
    for _ in range(seconds):
        seen = path.stat().st_mtime
        wait_until(lambda seen=seen: path.stat().st_mtime > seen, what="for a beat")
