"""A wrong clock for a process: libfaketime, preloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PLACES: Final = ("/usr/lib", "/usr/local/lib", "/opt/homebrew/lib")
NAME: Final = "libfaketimeMT.so.1"


class NoFaketime(RuntimeError):
    """libfaketime is not on this machine; the message says how to get it."""


def library() -> Path:
    """Return the path of libfaketime.

    Raises:
        NoFaketime: if it is nowhere.
    """
    for place in PLACES:
        found = sorted(Path(place).glob(f"**/{NAME}"))
        if found:
            return found[0]
    raise NoFaketime("expected libfaketime, found none; on Debian: apt-get install faketime")


def environment(ahead_s: float) -> dict[str, str]:
    """Return the variables under which a process finds its clock this many seconds ahead (behind, if negative).
    Monotonic time, by which timeouts are measured, is unaffected."""
    return {
        "LD_PRELOAD": str(library()),
        "FAKETIME": f"{ahead_s:+g}s",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
    }
