"""Spark of a service on a host that has lost its name server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kafka_log import PATIENCE

_START = """
import sys
from pathlib import Path
from aggregator.kernel.spark_reader import AGGREGATOR_JOB
from lagloss_server.ops.spark_session import start_session
session = start_session(AGGREGATOR_JOB, "local[1]", "512m", Path(sys.argv[1]))
print(session.range(3).count())
session.stop()
"""


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "ip"))), reason="a host's name is changed by root only"
)
def test_a_local_session_starts_where_the_host_s_own_name_is_unknown(jars: None, tmp_path: Path) -> None:
    alone = 'ip link set lo up && hostname nowhere-at-all && exec "$@"'
    done = subprocess.run(
        ["unshare", "--uts", "--net", "sh", "-c", alone, "sh", sys.executable, "-c", _START, str(tmp_path)],
        env={name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3_000:]
    assert done.stdout.splitlines()[-1] == "3"
