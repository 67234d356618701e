"""SIGTERM to a process with an emitter: it is closed, and the process ends by the signal, whatever it is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

HOST = """
import asyncio, os, signal, sys, threading, time
from confluent_kafka import Consumer
from lagloss import Emitter, MemoryOutlet
from lagloss.wire.format import decode_report

class Telling(MemoryOutlet):
    def close(self):
        last = decode_report(self.values("lagloss.reports")[-1])
        os.write(1, f"{os.getpid() == parent} {last.closed} {last.tallies[0].beacons}\\n".encode())

parent = os.getpid()
emitter = Emitter("clicks", "mid", outlet=Telling)
emitter.received("m", time.time_ns() // 1_000_000)

def wait_in_c():
    consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})
    consumer.subscribe(["t"])
    os.write(1, b"ready\\n")
    consumer.consume(10)

def wait_in_python():
    os.write(1, b"ready\\n")
    threading.Event().wait()

def wait_in_asyncio():
    async def wait():
        os.write(1, b"ready\\n")
        await asyncio.sleep(60)
    asyncio.run(wait())

def handle_it():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    os.write(1, b"ready\\n")
    time.sleep(60)

def terminate_a_child():
    child = os.fork()
    if child == 0:
        emitter.received("c", time.time_ns() // 1_000_000)
        emitter.received("d", time.time_ns() // 1_000_000)
        os.write(1, b"forked\\n")
        Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}).consume(10)
    time.sleep(0.5)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    os.write(1, b"ready\\n")
    time.sleep(60)

globals()[sys.argv[1]]()
"""


@pytest.mark.parametrize(
    ("doing", "said", "code"),
    [
        ("wait_in_c", ["True True 1"], -signal.SIGTERM),
        ("wait_in_python", ["True True 1"], -signal.SIGTERM),
        ("wait_in_asyncio", ["True True 1"], -signal.SIGTERM),
        ("handle_it", ["True True 1"], 3),
        ("terminate_a_child", ["forked", "False True 2", "True True 1"], -signal.SIGTERM),
    ],
)
def test_an_emitter_is_closed_and_the_process_ends_by_the_signal(doing: str, said: list[str], code: int) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAGLOSS_")}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", HOST, doing], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        lines = []
        while (line := process.stdout.readline().strip()) != "ready":
            assert line
            lines.append(line)
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=15)
    finally:
        process.kill()
    assert (lines + rest.split("\n")[:-1], process.returncode) == (said, code)
