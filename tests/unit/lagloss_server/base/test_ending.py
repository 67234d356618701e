"""A service ends in bounded time, whatever its threads are at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from lagloss_server.ops import _die_with_parent
from lagloss_server.ops._die_with_parent import PID_BYTES, started
from tests.support.closers import wait_until

WITHIN_S = 1.0
CHILD = "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
HANDLED = "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, lambda *_: None)\n"
READY = "print(child.pid, flush=True)\n"
PROGRAMS = {
    "waits for an answer for ever": "pair = socket.socketpair()\npair[0].recv(1)\n",
    "is in a call that does not return to Python": (
        "libc = ctypes.CDLL(None)\nwhile True: libc.select(0, None, None, None, None)\n"
    ),
    "waits for a thread that does not end": (
        "waiting = threading.Thread(target=threading.Event().wait)\nwaiting.start()\nwaiting.join()\n"
    ),
}
PRELUDE = (
    "import ctypes, signal, socket, subprocess, threading, time\n"
    "from lagloss_server.base import ending\n"
    f"ending.end_in_time({WITHIN_S})\n"
)
SERVED = f"""
import asyncio, subprocess, time
from lagloss_server.base import ending
from lagloss_server.net.http_server import HttpServer
from lagloss_server.ops.processes import choose_port
child = subprocess.Popen(['sleep', '600'])
ending.ENDING_S = {WITHIN_S}

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({{"type": "lifespan.startup.complete"}})
        print(child.pid, flush=True)
        await receive()
        time.sleep(600)  # the end of a service whose server does not answer

ending.end_in_time()
HttpServer(app, "127.0.0.1", choose_port("it")).run()
"""


@contextmanager
def running(program: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A program, once it has printed its child's number."""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            yield process, child
        finally:
            process.kill()
            if psutil.pid_exists(child):
                os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("state", PROGRAMS)
def test_a_service_that_hangs_kills_itself_and_what_it_started(state: str, number: int) -> None:
    with running(PRELUDE + CHILD + HANDLED + READY + PROGRAMS[state]) as (process, child):
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(20) == -signal.SIGKILL
        assert time.monotonic() - began >= WITHIN_S
        wait_until(lambda: not started(child), 5, "that its child is gone")


def test_a_service_on_uvicorn_that_hangs_in_its_shutdown_kills_itself() -> None:
    with running(SERVED) as (process, child):
        process.terminate()
        assert process.wait(20) == -signal.SIGKILL
        wait_until(lambda: not started(child), 5, "that its child is gone")


def test_a_service_that_ends_in_time_is_left_alone() -> None:
    stops = "stop = threading.Event()\nsignal.signal(signal.SIGTERM, lambda *_: stop.set())\n"
    with running(PRELUDE + CHILD + stops + READY + "stop.wait()\nchild.kill()\n") as (process, _):
        process.terminate()
        assert process.wait(20) == 0


PARENT = """
import json, os, sys, time
from pathlib import Path
from lagloss_server.ops import processes
processes.ORPHANS_END_S = 1
folder = Path(sys.argv[1])
shell = "trap '' TERM; sleep 600 & setsid sleep 600 & echo $! >{0}/other; wait"
stubborn = processes.spawn(["sh", "-c", shell.format(folder)], folder / "stubborn.log")
stopped = processes.spawn(["sleep", "600"], folder / "stopped.log")
obeys = processes.spawn(["sleep", "600"], folder / "obeys.log")
while not (folder / "other").exists() or not (folder / "other").read_text().strip():
    time.sleep(0.05)
stopped.send_signal(19)
others = [int((folder / "other").read_text())]
print(json.dumps([each.pid for each in (stubborn, stopped, obeys)] + others), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_parent_leaves_is_killed_though_it_is_stopped_or_ignores_signals(tmp_path: Path, end: int) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, tmp_path], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = json.loads(parent.stdout.readline())
        assert all(map(started, pids))
        guards = [each for each in psutil.Process(parent.pid).children() if "guard" in each.cmdline()]
        parent.send_signal(end)
    wait_until(lambda: not any(map(started, pids)), 10, "that all are gone")
    assert len(guards) == 1
    wait_until(lambda: not started(guards[0].pid), 5, "that the guard is gone, too")


def test_a_guard_that_starts_after_its_parent_died_ends_the_children_all_the_same() -> None:
    read, write = os.pipe()  # the end that is written to stays open, as a fork of the parent would keep it
    with subprocess.Popen(["sleep", "600"]) as child, subprocess.Popen(["true"]) as parent:
        parent.wait()
        os.write(write, child.pid.to_bytes(PID_BYTES))
        command = [sys.executable, "-I", "-S", _die_with_parent.__file__, "guard", str(parent.pid), "0"]
        with subprocess.Popen(command, stdin=read) as guard:
            try:
                assert child.wait(10) == -signal.SIGKILL
            finally:
                child.kill()
            assert guard.wait(10) == 0
    os.close(read)
    os.close(write)
