"""What pytest says when it is done, set up as it is here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SETTINGS = Path(__file__).parents[3] / "pyproject.toml"
FLAKY = """
import pytest

tries = []

@pytest.mark.flaky(reruns=1)
def test_flaky():
    tries.append(1)
    if len(tries) == 1:
        raise TimeoutError("no answer from the broker")
"""


def test_a_second_try_is_named_with_the_failure_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "test_flaky.py"
    path.write_text(FLAKY)
    words = [sys.executable, "-m", "pytest", "-c", SETTINGS, "--rootdir", tmp_path, "--numprocesses", "2", path]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.partition("rerun test summary info")[2].splitlines()
    assert "RERUN test_flaky.py::test_flaky" in summary
    assert "E           TimeoutError: no answer from the broker" in summary
    assert "test_flaky.py:10: TimeoutError" in summary
    assert " 1 passed, 1 rerun " in summary[-1]
