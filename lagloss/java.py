"""The machine's Java: where it is and whether it is new enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from lagloss.errors import JavaMissing

MIN_JAVA: Final = 17
"""Spark 4 and Kafka 4 both need it."""


def java_version(java: Path) -> int | None:
    """The major version a `java` says it has, None if it does not say."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2]) if major == 1 and found[2] else major  # "1.8.0" is Java 8


def find_java() -> Path:
    """The `java` to run: JAVA_HOME's, else the PATH's. Raises JavaMissing if there is none or it is too old."""
    home = os.environ.get("JAVA_HOME")
    found = f"{home}/bin/java" if home else shutil.which("java")
    if found is None:
        raise JavaMissing(found="none")
    version = java_version(Path(found))
    if version is None:
        raise JavaMissing(found=f"{found}, which does not run")
    if version < MIN_JAVA:
        raise JavaMissing(found=f"Java {version} at {found}")
    return Path(found)
