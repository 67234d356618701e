"""Waiting for a server that tests start to be ready."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import httpx2
import pytest


def await_ready(name: str, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until its /-/ready answers 200; the test fails with the end of its log if it has ended, or after 30 s."""
    ends = time.monotonic() + 30
    while time.monotonic() < ends and process.poll() is None:
        try:
            if httpx2.get(f"{url}/-/ready", trust_env=False).status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.05)
    pytest.fail(f"{name} did not become ready: {log.read_text()[-2_000:]}")
