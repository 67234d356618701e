"""The reference pipeline on a real broker: what its ledger says is what its beacons say, crashes or not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lagloss.broker.topics import create_topics
from lagloss.wire.format import hash_id
from pipeline_under_test.harness.ledger import LedgerReader
from pipeline_under_test.stream.topology import NEXT, NODES
from pipeline_under_test.stream.truth import StreamTruth
from tests.support.pipeline_beacons import Beacons, read_beacons

FAULTS = (
    "lose:link:col-service->event-norm:0.03",
    "lose:link:event-norm->event-router:0.05",
    "lose:link:event-router->conn-ga:0.05",
    "lose:node:event-router:0.03",
    "lose:node:conn-ga:0.05",
    "filter:conn-fb:0.05",
    "dead:event-norm:0.05",
    "duplicate:event-norm:0.05",
    "delay:conn-fb:500ms:0.05",
)


@dataclass
class Finished:
    """A run that has ended: its last progress, what its ledger adds up to, and its beacons."""

    progress: dict[str, Any]
    windows: list[dict[str, Any]]
    beacons: Beacons

    def lost_at(self, place: str) -> set[int]:
        return {hash_id(name) for window in self.windows for name in window["lost_at"].get(place, ())}

    def total(self, what: str) -> int:
        return sum(window[what] for window in self.windows)


def run_pipeline(
    bootstrap: str,
    data_dir: Path,
    options: list[str],
    disturb: Callable[[dict[str, Any]], None] = lambda progress: None,
    pipeline: str | None = None,
) -> Finished:
    """Runs the pipeline to its end, telling `disturb` its progress."""
    create_topics(bootstrap)
    pipeline = pipeline or f"clicks-{uuid.uuid4().hex[:8]}"
    words = [sys.executable, "-m", "pipeline_under_test", "run", "--bootstrap", bootstrap]
    words += ["--data-dir", str(data_dir), "--pipeline", pipeline, *options]
    progress: dict[str, Any] = {}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as runner:
        try:
            assert runner.stdout is not None
            for line in runner.stdout:
                progress = json.loads(line)
                disturb(progress)
        finally:
            runner.terminate()
    assert runner.returncode == 0
    truth = StreamTruth()
    truth.add(LedgerReader(data_dir / "ledger").new_entries())
    return Finished(progress, truth.documents(), read_beacons(bootstrap, pipeline))


@pytest.fixture(scope="module")
def faulty(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Ten seconds at 100 events a second with every fault there is."""
    options = [
        "--rate",
        "100",
        "--minutes",
        "0.17",
        "--settle",
        "0",
        *(word for fault in FAULTS for word in ("--fault", fault)),
    ]
    return run_pipeline(kafka_bootstrap, tmp_path_factory.mktemp("faulty"), options)


@pytest.fixture(scope="module")
def disturbed(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Without faults, but event-norm is killed and conn-fb is stopped in the middle; both are started again."""
    done: set[str] = set()

    def disturb(progress: dict[str, Any]) -> None:
        if progress["phase"] == "load":
            for at, node, how in ((300, "event-norm", signal.SIGKILL), (600, "conn-fb", signal.SIGTERM)):
                if progress["answered"] >= at and node not in done:
                    done.add(node)
                    os.kill(progress["pids"][node][0], how)

    options = ["--rate", "100", "--minutes", "0.25", "--settle", "0"]
    return run_pipeline(kafka_bootstrap, tmp_path_factory.mktemp("disturbed"), options, disturb)


@pytest.mark.parametrize("link", [(sender, to) for sender, nexts in NEXT.items() for to in nexts], ids="->".join)
def test_what_is_missing_on_a_link_is_what_the_ledger_says_was_lost_there(
    faulty: Finished, link: tuple[str, str]
) -> None:
    sender, receiver = link
    missing = faulty.beacons.out(sender, receiver) - faulty.beacons.ids[f"{receiver}.in"]
    assert missing == faulty.lost_at(f"link {sender}->{receiver}")


@pytest.mark.parametrize("node", NEXT)
def test_what_is_missing_at_a_node_is_what_the_ledger_says_was_lost_there(faulty: Finished, node: str) -> None:
    missing = faulty.beacons.ids[f"{node}.in"] - faulty.beacons.exits(node)
    assert missing == faulty.lost_at(f"node {node}")


def test_every_event_is_accounted_for(faulty: Finished) -> None:
    assert faulty.total("unanswered") == 0
    assert [window["unaccounted"] for window in faulty.windows if window["unaccounted"]] == []
    assert faulty.total("messages") == len(faulty.beacons.ids["col-service.in"])
    assert all(faulty.total(what) > 0 for what in ("lost", "filtered", "dead", "delivered"))


def test_only_what_the_ledger_says_was_doubled_is_doubled(faulty: Finished) -> None:
    beacons = faulty.beacons
    assert beacons.counts["event-norm.in"] == len(beacons.ids["event-norm.in"])
    twice = beacons.counts["event-norm.out"] - len(beacons.ids["event-norm.out"])
    # An event that is doubled and then lost on the link is beaconed once.
    assert 0 < twice <= faulty.total("duplicated")


def test_every_emitter_says_at_the_end_that_it_has_ended(faulty: Finished) -> None:
    nodes = [report.node for report in faulty.beacons.last_reports.values() if report.closed]
    assert sorted(nodes) == sorted(NODES)


@pytest.mark.slow
def test_a_killed_and_a_stopped_consumer_make_duplicates_and_no_holes(disturbed: Finished) -> None:
    assert disturbed.progress["restarts"] == 2
    beacons = disturbed.beacons
    for node, nexts in NEXT.items():
        assert beacons.ids[f"{node}.in"] <= beacons.exits(node)
        for receiver in nexts:
            assert beacons.out(node, receiver) <= beacons.ids[f"{receiver}.in"]


@pytest.mark.slow
def test_every_answered_event_arrives_however_its_nodes_end(disturbed: Finished) -> None:
    assert [window["unaccounted"] for window in disturbed.windows if window["unaccounted"]] == []
    assert disturbed.total("lost") == 0
    assert disturbed.total("messages") > 600, "both were disturbed amid the load"
    accounted = sum(disturbed.total(what) for what in ("delivered", "filtered", "dead"))
    assert accounted == disturbed.total("messages")


@pytest.mark.slow
def test_a_killed_process_is_the_only_one_that_did_not_say_it_ended(disturbed: Finished) -> None:
    silent = [report.node for report in disturbed.beacons.last_reports.values() if not report.closed]
    assert silent == ["event-norm"]


def test_the_past_is_sent_whole_and_its_emitters_have_ended(kafka_bootstrap: str, tmp_path: Path) -> None:
    create_topics(kafka_bootstrap)
    pipeline = f"past-{uuid.uuid4().hex[:8]}"
    words = [sys.executable, "-m", "pipeline_under_test", "history", "--bootstrap", kafka_bootstrap]
    began = time.time()
    subprocess.run([*words, "--data-dir", str(tmp_path), "--pipeline", pipeline, "--rate", "2"], check=True)
    truth = StreamTruth()
    truth.add(LedgerReader(tmp_path / "ledger").new_entries())
    windows = truth.documents()
    assert len(windows) == 60
    assert windows[-1]["window_start_s"] + 60 <= began
    beacons = read_beacons(kafka_bootstrap, pipeline)
    assert len(beacons.ids["col-service.in"]) == sum(window["messages"] for window in windows)
    missing = beacons.ids["event-router.out:conn-ga"] - beacons.ids["conn-ga.in"]
    lost = {hash_id(name) for window in windows for ids in window["lost_at"].values() for name in ids}
    assert missing == lost
    assert lost
    assert sorted(report.node for report in beacons.last_reports.values() if report.closed) == sorted(NEXT)
