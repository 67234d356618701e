"""Windows of the reference pipeline that are restated by a replay and by a redrive, on a real aggregator."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

from lagloss.broker.topics import create_topics
from lagloss.wire.format import WINDOW_S
from lagloss_server.model.window import rfc3339
from lagloss_server.store.store import Store
from pipeline_under_test.harness.faults import LEAD_S
from pipeline_under_test.harness.ledger import LedgerReader
from pipeline_under_test.stream.faults import parse as parse_fault
from pipeline_under_test.stream.scenario import stream_definition
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.truth import StreamTruth
from tests.integration.aggregator.test_aggregator_process import aggregator
from tests.support.closers import wait_until
from tests.support.window_documents import documents

EVENTS = 200
LOSS, REFUSAL = "lose:link:event-router->conn-fb:0.2", "receiver:ga:400:1"


@dataclass
class World:
    """A running pipeline without load, and the windows that an aggregator makes of it."""

    settings: ReferenceSettings
    store: Store
    minutes: Iterator[int]

    def post(self, window_start_s: int, vendor: str) -> None:
        """Events of this minute for this vendor."""
        common = {"kind": "Click", "url": "https://shop.example/cart/1", "vendors": [vendor]}
        stamps = [(f"{vendor}-{at}", window_start_s * 1000 + at) for at in range(EVENTS)]
        events = [{"event_id": name, "event_time": stamp, **common} for name, stamp in stamps]
        answer = httpx2.post(f"{self.settings.collector_url}/events", json=events, timeout=20)
        assert answer.status_code == 200

    def window(self, start_s: int, fits: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The window of this minute, once all events are in it and it fits."""

        def found() -> dict[str, Any] | None:
            windows = documents(self.store.windows(self.settings.pipeline, start_s, start_s + WINDOW_S))
            whole = [w for w in windows if w["state"] == "closed" and w["messages"] == EVENTS and fits(w)]
            return whole[0] if whole else None

        return wait_until(found, 90, f"for the window of {rfc3339(start_s)}")

    def truth(self, start_s: int) -> dict[str, Any]:
        """What the ledger says of the minute."""
        truth = StreamTruth()
        truth.add(LedgerReader(self.settings.ledger_dir).new_entries())
        return truth.document(start_s)

    def command(self, *words: str) -> dict[str, Any]:
        """Runs a command of the pipeline to its end; the last thing it said."""
        done = [sys.executable, "-m", "pipeline_under_test", *words, "--data-dir", str(self.settings.data_dir)]
        said = subprocess.run(done, stdout=subprocess.PIPE, text=True, check=True).stdout
        summary: dict[str, Any] = json.loads(said.splitlines()[-1])
        return summary


def live(window: dict[str, Any]) -> dict[str, Any]:
    """What live traffic alone says of a window: counts, duplicates and lags by checkpoint, and the E2E lag."""
    return {
        checkpoint["name"]: [checkpoint[what] for what in ("beacons", "duplicates", "lag_ms")]
        for checkpoint in window["checkpoints"]
        if checkpoint["beacons"]
    } | {"e2e": window["e2e_lag_ms"], "on time": window["on_time_share"]}


def replayed(window: dict[str, Any]) -> dict[str, int]:
    return {checkpoint["name"]: checkpoint["replayed"] for checkpoint in window["checkpoints"]}


@contextmanager
def running(bootstrap: str, pipeline: str, folder: Path) -> Iterator[ReferenceSettings]:
    """The pipeline's processes, ready, with both faults on."""
    words = [sys.executable, "-m", "pipeline_under_test", "run", "--bootstrap", bootstrap, "--pipeline", pipeline]
    words += ["--data-dir", str(folder / "pipeline"), "--rate", "0", "--fault", LOSS, "--fault", REFUSAL]
    progress = folder / "progress.jsonl"
    with progress.open("wb") as said, subprocess.Popen(words, stdout=said) as runner:
        try:
            wait_until(lambda: '"phase":"load"' in progress.read_text(), 60, "for the pipeline")
            yield ReferenceSettings.load(folder / "pipeline")
        finally:
            for _ in range(2):  # at once: nothing is under way
                runner.send_signal(signal.SIGTERM)
            runner.wait(60)


@pytest.fixture(scope="module")
def world(kafka_bootstrap: str, module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, pipeline = tmp_path_factory.mktemp("again"), f"clicks-{uuid.uuid4().hex[:8]}"
    create_topics(kafka_bootstrap)
    store = Store(module_database_url)
    store.apply(stream_definition(pipeline, warehouse=False, grace="1s"))
    with (
        aggregator(kafka_bootstrap, module_database_url, folder),
        running(kafka_bootstrap, pipeline, folder) as settings,
    ):
        yield World(settings, store, count(int(time.time()) // WINDOW_S * WINDOW_S - 2 * WINDOW_S, -WINDOW_S))
    store.close()


@pytest.fixture
def minute(world: World) -> int:
    """The start of a minute that is due already and has no events yet, with both faults on."""
    world.settings.injections().begin_anew([parse_fault(LOSS), parse_fault(REFUSAL)])
    time.sleep(LEAD_S)  # until every process knows
    return next(world.minutes)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_replay_recovers_a_loss_and_leaves_lags_and_duplicates_as_they_were(world: World, minute: int) -> None:
    since = time.time()
    world.post(minute, "fb")
    lossy = world.window(minute, lambda window: window["verdict"] == "loss")
    lost = world.truth(minute)["lost"]
    assert 0 < lost < EVENTS
    assert (lossy["lost"], lossy["delivered"]) == ({"min": lost, "max": lost}, EVENTS - lost)

    words = ["replay", "--from", rfc3339(since), "--name", "recovery"]
    assert world.command(*words)["events"] == EVENTS
    restated = world.window(minute, lambda window: window["verdict"] == "ok")
    assert (restated["lost"], restated["delivered"], restated["pending"]) == ({"min": 0, "max": 0}, EVENTS, 0)
    assert restated["revision"] > lossy["revision"]
    assert live(restated) == live(lossy)
    whole = dict.fromkeys(replayed(restated), EVENTS)
    whole |= dict.fromkeys([name for name in whole if name.startswith(("col-service", "conn-ga"))], 0)
    assert replayed(restated) == whole | dict.fromkeys([n for n in whole if n.endswith("out:conn-ga")], 0)

    assert world.command(*words)["events"] == EVENTS  # once more, as after a crash
    again = world.window(minute, lambda window: replayed(window)["conn-fb.out"] == 2 * EVENTS)
    assert live(again) == live(lossy)
    assert (again["verdict"], again["delivered"]) == ("ok", EVENTS)
    truth = world.truth(minute)
    assert (truth["lost"], truth["delivered"], truth["unaccounted"]) == (0, EVENTS, [])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_dead_messages_that_are_redriven_and_delivered_are_delivered(world: World, minute: int) -> None:
    world.post(minute, "ga")
    dead = world.window(minute, lambda window: window["dead"] == EVENTS)
    assert (dead["delivered"], dead["lost"], dead["verdict"]) == (0, {"min": 0, "max": 0}, "ok")

    world.settings.injections().end_all()
    assert world.command("redrive", "--node", "conn-fb")["events"] == 0
    assert world.command("redrive", "--node", "conn-ga", "--reason", "HTTP 400", "--max", "50")["events"] == 50
    some = world.window(minute, lambda window: window["delivered"] == 50)
    assert (some["dead"], some["verdict"]) == (EVENTS - 50, "ok")
    assert world.command("redrive")["events"] == EVENTS - 50
    alive = world.window(minute, lambda window: window["delivered"] == EVENTS)
    assert (alive["dead"], alive["lost"], alive["verdict"]) == (0, {"min": 0, "max": 0}, "ok")
    unchanged, before = live(alive), live(dead)
    assert {name: figures for name, figures in unchanged.items() if name != "on time"} == {
        name: figures for name, figures in before.items() if name != "on time"
    }
    assert replayed(alive)["conn-ga.in"] == replayed(alive)["conn-ga.out"] == EVENTS
    truth = world.truth(minute)
    assert (truth["dead"], truth["delivered"], truth["unaccounted"]) == (0, EVENTS, [])
