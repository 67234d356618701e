"""The examples of docs/collector.md run as they stand."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from lagloss.wire.format import hash_id
from tests.integration.collector.test_collector import blocks_of, hashes
from tests.integration.conftest import Collector
from tests.programs import need

PAGE = Path(__file__).parents[3] / "docs" / "collector.md"


def test_the_examples_run_as_they_stand(collector: Collector) -> None:
    need("curl")
    text = PAGE.read_text("utf-8")
    setup = re.findall(r"^```sh\n(export COLLECTOR=.*?)^```$", text, re.MULTILINE | re.DOTALL)
    examples = re.findall(r"^```sh run\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert (len(setup), len(examples)) == (1, 8)
    script = setup[0].replace("http://127.0.0.1:8060", collector.url) + "\n".join(examples)
    done = subprocess.run(["bash", "-eu", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {hash_id(f"m-{number}") for number in (1, 2, 3, 4)} <= set(hashes(blocks_of(collector, "orders")))
