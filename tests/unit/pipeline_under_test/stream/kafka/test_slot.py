"""Places among a node's processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from pipeline_under_test.stream.kafka.transactional_producer import Slot

HOLDER = """
import sys
from pathlib import Path
from pipeline_under_test.stream.kafka.transactional_producer import Slot
slot = Slot(Path(sys.argv[1]), "event-norm")
print(slot.number, flush=True)
sys.stdin.read()
"""


def free(directory: Path, node: str) -> int:
    with closing(Slot(directory, node)) as slot:
        return slot.number


def test_two_processes_of_a_node_never_have_one_place_and_a_killed_one_leaves_its_own(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "0\n"
        assert free(tmp_path, "event-norm") == 1
        assert free(tmp_path, "event-router") == 0
        holder.kill()
    assert holder.returncode == -signal.SIGKILL
    assert free(tmp_path, "event-norm") == 0
