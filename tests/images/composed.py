"""docker-compose.yml for real, in images built from this tree: `make test-images`, some ten minutes.

Not part of `make test`: pytest collects this file only when it is named. By Docker where one runs, else by podman, on
stand-ins of the images that no registry serves (tests/images/stand_ins.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.images.engine import Composed, missing_programs

pytestmark = [pytest.mark.servers, pytest.mark.timeout(1_800)]
FOLDER = Path(__file__).parent
OURS = ("aggregator", "alerting", "canary", "collector", "dashboard", "taps")
DEFINITION = """\
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: composed}
spec:
  sla: {loss: {max: 0}}
  nodes:
    - {name: shop, to: [mail]}
    - {name: mail}
"""
MAX_MB = {"lagloss": 530, "lagloss-aggregator": 1_250}


@dataclass
class Traffic:
    """The running program of traffic.py, and the minutes it has finished."""

    process: subprocess.Popen[str]
    minutes: list[dict[str, Any]] = field(default_factory=list)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.minutes.append(json.loads(line))

    def complete(self) -> list[dict[str, Any]]:
        """The minutes that it sent from their beginning to their end."""
        return self.minutes[1:]


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    missing = missing_programs()
    if missing:
        pytest.skip(f"not on this machine: {', '.join(missing)}, nor a Docker with compose")
    services = Composed(tmp_path_factory.mktemp("composed"))
    services.down()  # of a run that was killed
    try:
        services.build()
        services.up()
        yield services
    finally:
        services.down()


@pytest.fixture(scope="module")
def traffic(composed: Composed) -> Iterator[Traffic]:
    composed.exec("dashboard", "lagloss", "apply", "-", stdin=DEFINITION)
    command = [composed.cli, "exec", "-i", composed.container("dashboard"), "python", "-c"]
    process = subprocess.Popen(
        [*command, (FOLDER / "traffic.py").read_text()], env=composed.env, stdout=subprocess.PIPE, text=True
    )
    running = Traffic(process)
    reader = threading.Thread(target=running.read, daemon=True)
    reader.start()
    try:
        yield running
    finally:
        with process:
            process.terminate()
            reader.join(30)


def settled(composed: Composed, minute: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a minute once nothing of it is pending or unknown. What it says before may be less, never wrong."""
    times = "--from", str(minute["start"]), "--to", str(minute["start"] + 60)
    output = composed.exec("dashboard", "lagloss", "windows", "composed", *times, "--json", check=False)
    for result in json.loads(output or "[]"):
        if result["lost"] is not None:
            assert result["lost"]["min"] <= (minute["lost"] is not None), result
        if result["state"] != "open" and not result["pending"] and result["verdict"] != "unknown":
            return dict(result)
    return None


def wait(what: str, condition: Any, timeout_s: float = 240) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(2)
    return result


def test_all_services_are_healthy_and_none_is_root_or_writes_to_its_image(composed: Composed) -> None:
    composed.wait_for(name for name, service in composed.services.items() if "healthcheck" in service)
    for service in OURS:
        assert composed.exec(service, "id", "-u").strip() == "10001"
        status = composed.exec(service, "cat", "/proc/self/status")
        assert {line.split()[1] for line in status.splitlines() if line.startswith("Cap")} == {"0" * 16}
        assert "NoNewPrivs:\t1" in status
        for folder in ("/", "/usr/local/lib/python3.11/site-packages", "/opt", "/home/lagloss"):
            refused = composed.exec(service, "sh", "-c", f"touch {folder}/x 2>&1; echo", check=False)
            assert "Read-only file system" in refused or "No such file" in refused, (service, folder, refused)


def test_images_are_no_larger_than_the_docs_say(composed: Composed) -> None:
    for image, limit in MAX_MB.items():
        size = int(composed.run(composed.cli, "image", "inspect", "--format", "{{.Size}}", image))
        sys.stderr.write(f"\n{image}: {size / 1e6:.0f} MB\n{composed.run(composed.cli, 'history', image)}")
        assert size < limit * 1e6


def test_a_loss_is_counted_and_named(composed: Composed, traffic: Traffic) -> None:
    (minute, *_) = wait("a complete minute", traffic.complete)
    assert minute["lost"] is not None
    closed = wait("its window", lambda: settled(composed, minute))
    assert (closed["messages"], closed["delivered"]) == (minute["messages"], minute["messages"] - 1), closed
    assert (closed["lost"]["min"], closed["lost"]["max"], closed["verdict"]) == (1, 1, "loss"), closed
    places = "--window", str(minute["start"]), "--from", "mail.in", "--to", "mail.out"
    assert minute["lost"] in composed.exec("dashboard", "lagloss", "diff", "composed", *places, "--json")


@pytest.mark.parametrize("service", ["kafka-2", "postgres"])
def test_windows_go_on_after_a_kill_and_nothing_is_lost(composed: Composed, traffic: Traffic, service: str) -> None:
    before = len(traffic.minutes)
    composed.kill(service)
    assert not composed.is_healthy(service)
    time.sleep(15)  # the outage
    composed.start(service)
    composed.wait_for(OURS)
    wait("the minute of the outage and two more", lambda: len(traffic.minutes) >= before + 3, 300)
    for minute in traffic.minutes[before : before + 3]:
        closed = wait("its window", partial(settled, composed, minute))
        assert (closed["messages"], closed["delivered"]) == (minute["messages"], minute["messages"]), closed
        assert (closed["lost"]["max"], closed["verdict"]) == (0, "ok"), closed


def test_all_ends_in_time_and_leaves_nothing(composed: Composed, traffic: Traffic) -> None:
    traffic.process.terminate()
    began = time.monotonic()
    composed.down()
    assert time.monotonic() - began < 180
    label = "label=com.docker.compose.project=lagloss-test"
    assert composed.run(composed.cli, "ps", "-a", "-q", "--filter", label) == ""
    assert composed.run(composed.cli, "volume", "ls", "-q", "--filter", label) == ""
