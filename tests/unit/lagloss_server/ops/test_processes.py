"""Child processes: how they end, and that they never outlive who started them."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from lagloss.errors import LaglossError
from lagloss_server import errors
from lagloss_server.errors import PortInUse
from lagloss_server.ops._die_with_parent import started
from lagloss_server.ops.processes import (
    PACKAGES,
    choose_port,
    log_tail,
    own_modules_first,
    rotate,
    spawn,
    terminate,
)
from lagloss_server.ops.supervisor import Service, start_all, stop_all
from tests.support.kafka_log import wait_for

SLEEP = [sys.executable, "-c", "print('awake', flush=True); import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('awake', flush=True); time.sleep(600)",
]
PARENT = """
import sys, time
from pathlib import Path
from lagloss_server.ops.processes import spawn
child = spawn([sys.executable, "-c", "import time; time.sleep(600)"], Path(sys.argv[1]))
print(child.pid, flush=True)
time.sleep(600)
"""


def wait_until(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.02)


@pytest.mark.parametrize("module", ["aggregator", "alerting", "collector", "dashboard", "pipeline_under_test", "taps"])
def test_a_file_of_a_services_name_is_not_started_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{module}.py").write_text("print('somebody else')")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "there"))
    env = {"LAGLOSS_BIND_ADDRESS": "nowhere", "LAGLOSS_DATA_DIR": str(tmp_path), "LAGLOSS_LOG_LEVEL": "loud"}
    service = Service(module, module, tmp_path / "log", env, arguments=("--wrongly",))
    service.start()
    assert service.process is not None
    assert service.process.wait(60) != 0
    assert "somebody else" not in (tmp_path / "log").read_text()


def test_a_child_keeps_the_callers_path_after_lagloss_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"/first{os.pathsep}{PACKAGES}{os.pathsep}/second")
    assert own_modules_first()["PYTHONPATH"] == os.pathsep.join([str(PACKAGES), "/first", "/second"])


def test_a_child_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, tmp_path / "log"], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert psutil.pid_exists(child)
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(child))


def test_a_child_writes_to_its_log_and_ends_when_asked(tmp_path: Path) -> None:
    process = spawn(SLEEP, tmp_path / "log")
    wait_until(lambda: (tmp_path / "log").read_text() == "awake\n")
    assert started(process.pid)
    assert terminate(process) == -signal.SIGTERM
    assert not started(process.pid)
    assert terminate(process) == -signal.SIGTERM  # twice does no harm


def test_a_child_that_will_not_end_is_killed(tmp_path: Path) -> None:
    process = spawn(STUBBORN, tmp_path / "log")
    wait_until(lambda: (tmp_path / "log").read_text() == "awake\n")
    assert terminate(process, timeout_s=0.2) == -signal.SIGKILL


def test_a_program_that_does_not_exist_leaves_its_reason_in_the_log(tmp_path: Path) -> None:
    process = spawn(["/no/such/program"], tmp_path / "log")
    assert process.wait(20) == 1
    assert log_tail(tmp_path / "log") == "/no/such/program: No such file or directory"


def test_a_taken_port_is_an_error_only_if_it_was_asked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        with pytest.raises(PortInUse, match=f"port {taken}"):
            choose_port("Kafka", wanted=taken)
        assert choose_port("Kafka", remembered=taken) != taken
    assert choose_port("Kafka", remembered=taken) == taken


def test_a_service_that_dies_is_started_again_and_said(tmp_path: Path) -> None:
    said: list[str] = []
    service = Service("web", "http.server", tmp_path / "log", {}, None, ("--bind", "127.0.0.1", "0"))
    service.start()
    assert service.process is not None
    first = service.process
    first.kill()
    first.wait()
    wait_until(lambda: service.tend(said.append) or service.process is not first)
    assert service.process.poll() is None
    assert "web died (SIGKILL), restarting it in 1 s" in said[0]
    stop_all([service])
    assert service.process.poll() is not None


def test_a_service_that_never_lives_ends_the_start_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lagloss_server.ops.supervisor.GIVE_UP_STARTING", 1)
    service = Service("ghost", "no_such_module", tmp_path / "log", {})
    with pytest.raises(errors.ServerNotReady, match="No module named no_such_module"):
        start_all([service], 20, lambda _: None)


def test_every_error_has_an_exit_code_of_the_contract_and_survives_pickling() -> None:
    assert str(pickle.loads(pickle.dumps(PortInUse(server="Kafka", port=1)))).startswith(
        "Kafka should listen on port 1"
    )
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, LaglossError):
            assert kind.exit_code in (2, 3, 4)
            assert kind.__doc__


def test_a_log_that_is_too_large_moves_aside_while_its_process_goes_on(tmp_path: Path) -> None:
    log, moved = tmp_path / "x.log", tmp_path / "x.log.1"
    script = "import sys\nfor line in sys.stdin:\n print(line, end='', flush=True)"
    with (
        log.open("ab") as file,
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=file) as it,
    ):
        assert it.stdin is not None
        for number in range(3):
            it.stdin.write(b"%d\n" % number)
            it.stdin.flush()
            wait_for(lambda number=number: log.read_text().endswith(f"{number}\n"), what="the line")
            rotate(log, max_bytes=3)
    assert (moved.read_text(), log.read_text()) == ("0\n1\n", "2\n")
    rotate(tmp_path / "none.log")
