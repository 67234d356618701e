"""Nothing outlives its parent: a service that hangs in Spark, and `kill -9` of `lagloss up`."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.kills import BOUND_S, Up, kill_again_and_again
from lagloss_server.ops._die_with_parent import started
from lagloss_server.ops.processes import launcher
from tests.support.closers import wait_until

PROGRAM = """
import signal, sys, time
from pathlib import Path
from aggregator.kernel.spark_reader import AGGREGATOR_JOB
from lagloss_server.base.ending import end_in_time
from lagloss_server.ops.spark_session import start_session

def hang(batches):
    time.sleep(600)
    yield from batches

end_in_time(2)
signal.signal(signal.SIGTERM, lambda *_: None)
start_session(AGGREGATOR_JOB, "local[1]", "512m", Path(sys.argv[1])).range(1).mapInArrow(hang, "id long").count()
"""


def test_a_call_into_spark_that_hangs_ends_with_the_jvm_and_its_workers(jars: None, own_dir: Path) -> None:
    with subprocess.Popen([*launcher(), sys.executable, "-c", PROGRAM, own_dir]) as service:
        family = psutil.Process(service.pid)

        def started_all() -> list[psutil.Process]:
            """The JVM, Spark's daemon and a worker that it forked."""
            found = family.children(recursive=True)
            forked = [each for each in found if "java" not in each.name()]
            return found if len(forked) >= 2 and len(found) > len(forked) else []

        children = wait_until(started_all, 120, "for a worker")
        service.send_signal(signal.SIGTERM)
        assert service.wait(15) == -signal.SIGKILL
        wait_until(lambda: not any(started(each.pid) for each in children), 5, "that all are gone")


@pytest.mark.slow
def test_the_start_after_a_kill_9_succeeds_by_itself(jars: None, own_dir: Path) -> None:
    """With a broker that is stopped, and a start that is killed half-way, too. benchmarks.kills has many more."""
    up = Up(own_dir)
    up.ready()
    bound_s = max(BOUND_S, 2 * up.ready_s)  # a busy machine starts slowly without a kill, too
    (killed,) = kill_again_and_again(up, 1, random.Random(16))
    assert killed.broker == "stopped"
    assert killed.started_s is not None
    assert killed.ready_s < bound_s
