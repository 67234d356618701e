"""Slow tests of a run that takes too long are left out, by name."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tests.conftest

SAMPLE = """
import pytest

@pytest.mark.slow
def test_slow(): pass

def test_quick(): pass
"""


@pytest.mark.parametrize(("left_s", "expected"), [(-1, "1 passed, 1 skipped"), (None, "2 passed")])
def test_no_slow_test_begins_once_the_time_is_up(tmp_path: Path, left_s: int | None, expected: str) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_runtest_setup\n")
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    until = {} if left_s is None else {"LAGLOSS_SLOW_UNTIL": str(int(time.time()) + left_s)}
    root = Path(tests.conftest.__file__).parents[1]
    words = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "LAGLOSS_SLOW"))}
    ran = subprocess.run(words, cwd=root, env=env | until, capture_output=True, text=True, check=False)
    assert expected in ran.stdout, ran.stdout + ran.stderr
    assert ("the time for slow tests is up" in ran.stdout) == (left_s == -1)
