"""The machine's Java, if it is new enough, and how its heap stays small."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lagloss_server.base.errors import JavaMissing
from lagloss_server.ops.machine import MIN_JAVA, java_found, java_path, java_version

SMALL_HEAP: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions",  # of a Java that has not got the last one
    "-Xms32m",
    "-XX:MinHeapFreeRatio=10",
    "-XX:MaxHeapFreeRatio=25",
    "-XX:TrimNativeHeapInterval=60000",
)
"""Options of a program that idles for most of its time: Java begins with 1/64 of the machine's memory, and hardly gives
back what it has once used."""
FEW_ARENAS: Final = {"MALLOC_ARENA_MAX": "2"}
"""Variables of a program with many threads: glibc keeps freed memory for each eight of a core."""


def find_java() -> Path:
    """Return the `java` to run: JAVA_HOME's, else the PATH's. Raises JavaMissing if there is none or it is too old."""
    java = java_path()
    version = java_version(java) if java else None
    if java is None or version is None or version < MIN_JAVA:
        raise JavaMissing(found=java_found(java, version))
    return Path(java)
