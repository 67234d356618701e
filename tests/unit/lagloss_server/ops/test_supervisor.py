"""What `up` does about services that hang: looks at /livez, ends them and starts them again."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.ops import supervisor
from lagloss_server.ops.processes import choose_port, terminate
from lagloss_server.ops.supervisor import ASLEEP_S, LOOK_AGAIN_S, LOOK_EVERY_S, STARTING_S, LiveWatch, Service

STEP_S = 1.0


def watched(live: list[bool], watch: LiveWatch, now: float = 0.0) -> tuple[list[float], float | None]:
    """Let a watch look until it has seen all of this, called each second; return when it looked, and when it said that
    the service hangs."""
    looks: list[float] = []
    while live:
        now += STEP_S
        if watch.is_due(now):
            looks.append(now)
            if watch.looked(now, live.pop(0)):
                return looks, now
    return looks, None


def test_one_that_is_live_is_looked_at_each_minute() -> None:
    looks, hangs = watched([True] * 5, LiveWatch(0.0))
    assert (looks, hangs) == ([LOOK_EVERY_S * number for number in range(1, 6)], None)


def test_two_misses_in_a_row_are_a_hang_and_one_is_none() -> None:
    assert watched([True, False, True, False, True], LiveWatch(0.0))[1] is None
    looks, hangs = watched([True, False, False], LiveWatch(0.0))
    assert hangs == looks[-1] == 2 * LOOK_EVERY_S + LOOK_AGAIN_S


def test_one_that_was_never_live_has_time_to_start() -> None:
    assert (watched([False] * 20, LiveWatch(0.0))[1] or 0.0) > STARTING_S


@given(st.integers(0, 200), st.floats(ASLEEP_S + 2 * STEP_S, 1e6), st.integers(1, 60))
def test_nothing_is_a_hang_because_the_machine_slept(awake_s: int, slept_s: float, late_s: int) -> None:
    """After waking, a service may take most of a minute to answer again."""
    watch, now = LiveWatch(0.0), 0.0
    for _ in range(awake_s):
        now += STEP_S
        if watch.is_due(now):
            watch.looked(now, is_live=True)
    now += slept_s
    woke_at = now
    while now < woke_at + 300:
        if watch.is_due(now):
            assert not watch.looked(now, is_live=now > woke_at + late_s)
        now += STEP_S


SERVICE = """
import http.server, os, sys
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(open("status").read()) if self.path == "/livez" else 200)
        self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Answers).serve_forever()
"""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A process that answers, looked at ten times a second; its /livez says what the file `status` holds."""
    for name, seconds in {"LOOK_EVERY_S": 0.1, "LOOK_AGAIN_S": 0.1, "LIVE_TIMEOUT_S": 0.5, "END_S": 0.2}.items():
        monkeypatch.setattr(supervisor, name, seconds)
    (tmp_path / "hanging_service.py").write_text(SERVICE)
    (tmp_path / "status").write_text("200")
    monkeypatch.chdir(tmp_path)
    port = choose_port("the service")
    url = f"http://127.0.0.1:{port}"
    env = {"PORT": str(port), "PYTHONPATH": str(tmp_path)}
    made = Service("svc", "hanging_service", tmp_path / "log", env, f"{url}/healthz", live_url=f"{url}/livez")
    made.start()
    yield made
    if made.process is not None:
        terminate(made.process)


def tended_until_restarted(service: Service, timeout_s: float = 60) -> list[str]:
    lines: list[str] = []
    ends = time.monotonic() + timeout_s
    while not any("restarted" in line for line in lines):
        assert time.monotonic() < ends, lines
        service.tend(lines.append)
        time.sleep(0.02)
    return lines


def until_ready(service: Service) -> None:
    ends = time.monotonic() + 60
    while not service.is_ready():
        assert time.monotonic() < ends
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["stopped", "says so"])
def test_one_that_hangs_is_ended_and_started_again_with_a_line_each(service: Service, how: str, tmp_path: Path) -> None:
    until_ready(service)
    lines: list[str] = []
    ends = time.monotonic() + 1
    while time.monotonic() < ends:
        service.tend(lines.append)
        time.sleep(0.02)
    assert lines == []
    process = service.process
    assert process is not None
    if how == "stopped":
        process.send_signal(signal.SIGSTOP)
    else:
        (tmp_path / "status").write_text("503")
    lines = tended_until_restarted(service)
    assert lines[0] == f"svc hangs: {service.live_url} does not return 200; stopping it"
    assert "restarting it" in lines[1]
    assert service.process is not process
    (tmp_path / "status").write_text("200")
    until_ready(service)
