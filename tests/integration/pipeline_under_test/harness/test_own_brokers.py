"""Three brokers of the pipeline's own, killed and restarted under load: no answered event is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from lagloss.wire.format import hash_id
from lagloss_server.ops.processes import LOOPBACK, choose_port
from pipeline_under_test.stream.faults import parse
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import COL_SERVICE, EVENT_NORM, EVENT_ROUTER, topic_of
from tests.conftest import new_folder
from tests.support.clients import Clients
from tests.support.closers import wait_until
from tests.support.event_topics import backlog, idle_pipeline, names_in
from tests.support.node_process import NodeProcess, col_service, running
from tests.support.pipeline_beacons import read_beacons

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PAUSE_S = 0.05


@dataclass
class Cluster:
    """Brokers, and a pipeline of two nodes on them."""

    settings: ReferenceSettings

    def inject(self, *faults: str) -> None:
        for fault in faults:
            self.settings.injections().add(parse(fault), in_s=0)

    def brokers_up(self) -> int:
        try:
            return len(self._admin().list_topics(timeout=2).brokers)
        except KafkaException:
            return 0

    def in_sync(self) -> bool:
        try:
            topics = self._admin().list_topics(timeout=2).topics.values()
        except KafkaException:
            return False
        return all(len(place.isrs) == 3 for topic in topics for place in topic.partitions.values())

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.settings.bootstrap, "log_level": 0})

    def pids(self) -> set[int]:
        """Of the brokers, as their launchers wrote them."""
        paths = (self.settings.data_dir / "kafka").glob("node-[123]/kafka.pid")
        return {int(path.read_text().split()[0]) for path in paths}

    def assert_nothing_lost(self, clients: Clients) -> None:
        """Every event that was answered is in the first topic, and, once event-norm is through, in the next one, with
        beacons that say so."""
        assert clients.accepted <= names_in(self.settings, topic_of(self.settings.pipeline, EVENT_NORM))
        wait_until(lambda: backlog(self.settings, EVENT_NORM) == 0, what="for event-norm")
        assert clients.accepted <= names_in(self.settings, topic_of(self.settings.pipeline, EVENT_ROUTER))
        beacons = read_beacons(self.settings.bootstrap, self.settings.pipeline)
        assert {hash_id(name) for name in clients.accepted} <= beacons.out(EVENT_NORM, EVENT_ROUTER)


@pytest.fixture(scope="module")
def cluster(jars: None, server_dir: Path) -> Iterator[Cluster]:
    folder = new_folder(server_dir)
    url = f"http://{LOOPBACK}:{choose_port(COL_SERVICE)}"
    brokers = NodeProcess(ReferenceSettings(data_dir=folder), ("brokers", "--count", "3"))
    with ExitStack() as stack:
        brokers.start()
        stack.callback(brokers.end)
        address = wait_until(lambda: told(folder / "brokers.json"), 120, "for the brokers")
        settings = idle_pipeline(address, folder, collector_url=url)
        stack.enter_context(running(settings, "node", EVENT_NORM)).await_beat()
        stack.enter_context(col_service(settings)).await_beat()
        yield Cluster(settings)


def told(path: Path) -> str | None:
    """What `brokers.json` says."""
    return str(json.loads(path.read_text())["kafka"]) if path.exists() else None


def more_accepted(clients: Clients, count: int = 50) -> None:
    before = len(clients.accepted)
    wait_until(lambda: len(clients.accepted) >= before + count, 60, "for answers")


def test_a_broker_that_is_killed_under_load_costs_no_answered_event(cluster: Cluster) -> None:
    with Clients(cluster.settings.collector_url, pause_s=PAUSE_S) as clients:
        more_accepted(clients)
        cluster.inject("broker:kill:1")
        wait_until(lambda: cluster.brokers_up() == 2, what="for the others to know")
        more_accepted(clients)
        cluster.settings.injections().end_all()
        wait_until(cluster.in_sync, what="for it to be back")
        more_accepted(clients)
    cluster.assert_nothing_lost(clients)


def test_brokers_that_are_restarted_one_after_the_other_cost_no_answered_event(cluster: Cluster) -> None:
    before = cluster.pids()
    assert len(before) == 3
    with Clients(cluster.settings.collector_url, pause_s=PAUSE_S) as clients:
        more_accepted(clients)
        cluster.inject("broker:restart")
        wait_until(lambda: len(cluster.pids() - before) == 3, 240, "for new brokers")
        wait_until(cluster.in_sync, what="for the last to be back")
        more_accepted(clients)
    cluster.settings.injections().end_all()
    assert clients.statuses.keys() == {200}
    cluster.assert_nothing_lost(clients)


def test_with_too_few_brokers_in_sync_events_are_answered_with_503_and_taken_again_afterwards(cluster: Cluster) -> None:
    with Clients(cluster.settings.collector_url, pause_s=PAUSE_S) as clients:
        more_accepted(clients)
        cluster.inject("broker:kill:2", "broker:kill:3")
        wait_until(lambda: clients.statuses[503] >= 8, what="for 503s")
        so_far = len(clients.accepted)
        refused = clients.statuses[503]
        wait_until(lambda: clients.statuses[503] >= refused + 4, what="for more of them")
        assert len(clients.accepted) == so_far
        cluster.settings.injections().end_all()
        more_accepted(clients)
        wait_until(cluster.in_sync, what="for all brokers to be back")
    cluster.assert_nothing_lost(clients)


def test_a_run_with_brokers_of_its_own_ends_with_them(jars: None, own_dir: Path) -> None:
    words = [sys.executable, "-m", "pipeline_under_test", "run", "--brokers", "1", "--data-dir", str(own_dir)]
    done = subprocess.run(
        [*words, "--rate", "50", "--minutes", "0.2", "--settle", "0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["phase"] == "ended"
    assert last["answered"] > 0
    assert not any(
        str(own_dir) in " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    )
