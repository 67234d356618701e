"""A process that stands still, as for a double write, does so with all of its threads, and goes on by itself."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import threading, time
from pipeline_under_test.batch.importer import stand_still

ticks = []
def tick():
    while True:
        ticks.append(time.monotonic())
        time.sleep(0.01)

threading.Thread(target=tick, daemon=True).start()
time.sleep(0.2)
stand_still(0.7)
time.sleep(0.2)
print(max(later - earlier for earlier, later in zip(ticks, ticks[1:])))
"""


def test_no_thread_runs_while_a_process_stands_still() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stdout) > 0.5
