"""The machine's Java, if it is new enough."""

from __future__ import annotations

from pathlib import Path

from lagloss_server.base.errors import JavaMissing
from lagloss_server.ops.machine import MIN_JAVA, java_found, java_path, java_version


def find_java() -> Path:
    """Return the `java` to run: JAVA_HOME's, else the PATH's. Raises JavaMissing if there is none or it is too old."""
    java = java_path()
    version = java_version(java) if java else None
    if java is None or version is None or version < MIN_JAVA:
        raise JavaMissing(found=java_found(java, version))
    return Path(java)
