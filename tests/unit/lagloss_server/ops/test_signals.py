"""A service whose work runs until a signal, in a process of its own."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
BEGINNING = """
import os, signal, sys, threading
from lagloss_server.ops.signals import run_until_signal
stop = threading.Event()
def send(number):
    os.kill(os.getpid(), number)
"""


def run(text: str, *, before: str = "") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", before + BEGINNING + textwrap.dedent(text)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_stops_the_work_and_is_no_end_by_itself(number: str) -> None:
    done = run(
        f"""
        def work():
            send(signal.{number})
            send(signal.{number})
            stop.wait()
        print(run_until_signal("work", work, stop.set))
        """,
        before=f"import signal\nsignal.signal(signal.{number}, signal.SIG_DFL)\n",  # the runner's may ignore it
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


def test_work_that_ends_or_fails_is_an_end_by_itself() -> None:
    done = run("""
        print(run_until_signal("work", lambda: None, stop.set))
        try:
            run_until_signal("work", lambda: 1 / 0, stop.set)
        except ZeroDivisionError:
            print("raised")
        """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\nraised\n", "")


def test_what_is_ignored_stays_so_as_nohup_wants_it() -> None:
    done = run(
        """
        def work():
            send(signal.SIGHUP)
            print(stop.wait(0.2))
        print(run_until_signal("work", work, stop.set))
        """,
        before="import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\nTrue\n", "")


@pytest.mark.parametrize(
    "part", ["aggregator", "alerting", "canary", "collector", "dashboard", "lagloss_server", "taps"]
)
def test_no_handler_sets_an_event(part: str) -> None:
    """The interrupted thread may hold the event's lock: of 250 processes that wait in small steps, one hung."""
    handlers = [
        ast.unparse(node)
        for path in sorted((ROOT / part).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "signal.signal"
    ]
    assert [text for text in handlers if ".set(" in text or ".set)" in text] == []
    assert signal.SIGTERM  # the name by which they are found
