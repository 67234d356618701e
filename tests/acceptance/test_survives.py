"""The reference pipeline measured by a real aggregator while its processes are killed and stopped: late is not lost."""

from __future__ import annotations

import os
import signal
import time
import uuid
from pathlib import Path
from typing import Any

import httpx2
import pytest

from lagloss.wire.format import WINDOW_S
from lagloss_server.store.store import Store
from pipeline_under_test.harness.faults import Injections
from pipeline_under_test.stream.faults import parse
from pipeline_under_test.stream.scenario import stream_definition
from tests.integration.aggregator.test_aggregator_process import aggregator
from tests.integration.pipeline_under_test.stream.test_reference_pipeline import run_pipeline
from tests.support.closers import wait_until
from tests.support.window_documents import documents

EVENTS = 200


class Disturbance:
    """Posts events of a minute that is due already, while conn-fb is stopped; kills event-norm; lets conn-fb go on."""

    def __init__(self, store: Store, pipeline: str, faults: Injections) -> None:
        self.store, self.pipeline, self.faults = store, pipeline, faults
        self.start_s = int(time.time()) // WINDOW_S * WINDOW_S - 2 * WINDOW_S
        self.steps = [self.stop_sink, self.send, self.wait_for_unknown, self.kill_norm, self.let_sink_go]
        self.verdicts: set[str] = set()

    def __call__(self, progress: dict[str, Any]) -> None:
        self.look()
        is_flowing = progress["phase"] in ("load", "draining") and progress["answered"] >= 40
        if is_flowing and self.steps and self.steps[0](progress):
            self.steps.pop(0)

    def look(self) -> dict[str, Any] | None:
        """Every verdict there ever was, and the window of the events."""
        found = documents(self.store.windows(self.pipeline, self.start_s - 3600, self.start_s + 3600))
        self.verdicts |= {window["verdict"] for window in found if window["verdict"]}
        ours = [w for w in found if w["state"] == "closed" and w["messages"] >= EVENTS and w["reasons"] is not None]
        return next((w for w in ours if w["window_start"] == self.name), None)

    @property
    def name(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:00Z", time.gmtime(self.start_s))

    def stop_sink(self, progress: dict[str, Any]) -> bool:
        self.faults.add(parse("stop:conn-fb"), in_s=0)
        return True

    def send(self, progress: dict[str, Any]) -> bool:
        if progress["pids"]["conn-fb"]:
            return False
        common = {"kind": "Click", "url": "https://shop.example/cart/1", "vendors": ["ga", "fb"]}
        stamps = [(f"old-{at}", self.start_s * 1000 + at) for at in range(EVENTS)]
        events = [{"event_id": name, "event_time": stamp, **common} for name, stamp in stamps]
        assert httpx2.post(f"{progress['collector_url']}/events", json=events, timeout=20).status_code < 300
        return True

    def wait_for_unknown(self, progress: dict[str, Any]) -> bool:
        window = self.look()
        return window is not None and window["verdict"] == "unknown" and "pending" in window["reasons"]

    def kill_norm(self, progress: dict[str, Any]) -> bool:
        os.kill(progress["pids"]["event-norm"][0], signal.SIGKILL)
        return True

    def let_sink_go(self, progress: dict[str, Any]) -> bool:
        self.faults.end_all()
        return True


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_stopped_sink_and_a_killed_node_make_late_messages_and_never_a_loss(
    kafka_bootstrap: str, database_url: str, store: Store, tmp_path: Path
) -> None:
    pipeline = f"clicks-{uuid.uuid4().hex[:8]}"
    store.apply(stream_definition(pipeline, warehouse=False, grace="1s"))
    disturb = Disturbance(store, pipeline, Injections(tmp_path / "pipeline" / "faults.jsonl", parse))
    options = ["--rate", "20", "--minutes", "0.5"]
    with aggregator(kafka_bootstrap, database_url, tmp_path):
        run_pipeline(kafka_bootstrap, tmp_path / "pipeline", options, disturb, pipeline=pipeline)
        assert not disturb.steps

        def window_is_ok() -> bool:
            window = disturb.look()
            return window is not None and window["verdict"] == "ok"

        wait_until(window_is_ok, 60, "for the window to end ok")
    assert "loss" not in disturb.verdicts
    window = disturb.look()
    assert window is not None
    assert (window["messages"], window["lost"], window["pending"]) == (EVENTS, {"min": 0, "max": 0}, 0)
    assert window["revision"] > 1
