"""Child processes: how they end, and that they never outlive who started them."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from lagloss.errors import LaglossError
from lagloss_server.base import errors
from lagloss_server.base.errors import PortInUse
from lagloss_server.ops._die_with_parent import started
from lagloss_server.ops.demo.run import make_empty
from lagloss_server.ops.processes import (
    choose_port,
    end_leftovers,
    log_tail,
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


@pytest.mark.parametrize(
    "module", ["aggregator", "alerting", "canary", "collector", "dashboard", "pipeline_under_test", "taps"]
)
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
            choose_port("Kafka", preferred=taken)
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
    assert "web died (SIGKILL); restarting it in 1 s" in said[0]
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
        "Kafka cannot listen on port 1"
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


def write_pids(path: Path, child: int, parent: int, child_started: str = "", parent_started: str = "") -> None:
    """Write a file as launchers do; a start that is not given is the process's own."""
    lines = ((child, child_started or started(child)), (parent, parent_started or started(parent)))
    path.write_text("".join(f"{pid} {start or 'boot:0'}\n" for pid, start in lines))


@pytest.fixture
def leftover(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = spawn(SLEEP, tmp_path / "leftover.log")
    yield process
    terminate(process)


def test_the_child_of_a_parent_that_lives_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leftover: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr("lagloss_server.ops.processes.DYING_S", 0.1)
    wait_until((tmp_path / "leftover.pid").exists)
    with pytest.raises(errors.AlreadyRunning, match=rf"process {leftover.pid}\)"):
        end_leftovers("it", tmp_path, [tmp_path / "leftover.pid"])
    assert leftover.poll() is None


@pytest.mark.parametrize("how", [signal.SIGCONT, signal.SIGSTOP])
def test_what_a_dead_parent_left_is_waited_for_and_then_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leftover: subprocess.Popen[bytes], how: int
) -> None:
    monkeypatch.setattr("lagloss_server.ops.processes.LEFTOVER_S", 0.3)
    leftover.send_signal(how)
    path = tmp_path / "of-dead.pid"
    write_pids(path, leftover.pid, 1, parent_started="an-earlier-boot:17")
    began = time.monotonic()
    end_leftovers("it", tmp_path, [path])
    assert time.monotonic() - began >= 0.3
    assert leftover.wait(5) == -signal.SIGKILL


def test_a_process_with_the_number_of_a_leftover_is_neither_waited_for_nor_killed(
    tmp_path: Path, leftover: subprocess.Popen[bytes]
) -> None:
    path = tmp_path / "stale.pid"
    boot, _, tick = started(leftover.pid).rpartition(":")
    began = time.monotonic()
    for start in (f"{boot}:{int(tick) + 1}", f"another-boot:{tick}"):
        write_pids(path, leftover.pid, 1, child_started=start, parent_started="another-boot:1")
        end_leftovers("it", tmp_path, [path])
    for text in ("", "torn", f"{leftover.pid}\n", f"{leftover.pid} \n1 \n", "x y\nz\n"):
        path.write_text(text)
        end_leftovers("it", tmp_path, [path, tmp_path / "none.pid"])
    assert time.monotonic() - began < 5
    assert leftover.poll() is None


@pytest.mark.parametrize(
    "log", ["logs/taps.log", "kafka/node-1/kafka.log", "postgres/postgres.log", "pipeline/run.log"]
)
def test_the_next_demo_waits_for_what_a_killed_one_left_before_it_removes_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str
) -> None:
    monkeypatch.setattr("lagloss_server.ops.processes.LEFTOVER_S", 0.1)
    process = spawn(SLEEP, tmp_path / log)
    path = (tmp_path / log).with_suffix(".pid")
    wait_until(path.exists)
    write_pids(path, process.pid, 1, parent_started="an-earlier-boot:17")
    make_empty(tmp_path)
    assert process.wait(5) == -signal.SIGKILL
    assert [each.name for each in tmp_path.iterdir()] == ["up.lock"]


def test_the_file_of_a_child_says_which_it_is_before_it_becomes_its_program(tmp_path: Path) -> None:
    process = spawn(["cat", tmp_path / "it.pid"], tmp_path / "it.log")
    assert process.wait(20) == 0
    child, parent = (tmp_path / "it.log").read_text().splitlines()
    assert child.split()[0] == str(process.pid)
    assert parent == f"{os.getpid()} {started(os.getpid())}"


def test_a_full_disk_does_not_keep_a_program_from_its_start(tmp_path: Path) -> None:
    (tmp_path / "it.pid.new").mkdir()  # stands for a file that cannot be made
    process = spawn(["echo", "started"], tmp_path / "it.log")
    assert process.wait(20) == 0
    assert (tmp_path / "it.log").read_text() == "started\n"


def test_a_log_is_not_moved_aside_where_there_is_no_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "x.log"
    log.write_text("a line\n")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=3))
    rotate(log, max_bytes=3)
    assert log.read_text() == "a line\n"
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10**9))
    monkeypatch.setattr("shutil.copyfile", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    rotate(log, max_bytes=3)
    assert log.read_text() == "a line\n"
