"""Processes that kill themselves with SIGKILL at a point: their functions are wrapped, nothing in them knows of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Die = Callable[[], None]


def death(point: str, marker: Path, permit: Path | None = None) -> Die:
    """Kills the process that called this, from any of its children too; `marker` is a file that is written when it
    comes to the point. With a `permit`, it stays there until that file exists."""
    victim = os.getpid()

    def die() -> None:  # perhaps several at once
        draft = marker.with_suffix(f".{os.getpid()}")
        draft.write_text(point)
        draft.replace(marker)
        while permit is not None and not permit.exists():
            time.sleep(0.05)
        os.kill(victim, signal.SIGKILL)

    return die


def around(
    owner: Any, name: str, *, before: Callable[[], None] | None = None, after: Callable[[Any], None] | None = None
) -> None:
    """Call something before, or with the result after, each call of `owner.name`."""
    whole = getattr(owner, name)

    def wrapped(*args: Any, **named: Any) -> Any:
        if before is not None:
            before()
        result = whole(*args, **named)
        if after is not None:
            after(result)
        return result

    setattr(owner, name, wrapped)
