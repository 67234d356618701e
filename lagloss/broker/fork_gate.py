"""A lock between forks and the threads of client libraries."""

from __future__ import annotations

import gc
import os
import threading
from typing import Final

FORK_WAIT_S: Final = 1.0
"""Longest wait of a fork for a client that is being made or ended."""


class _ForkGate:
    """Held while a client library starts or ends its threads: a child that is forked in the midst of that may inherit a
    lock of the library that is never released. Two threads that made and closed emitters without a pause left 3 of
    80 forked children mute; with this 1 of 470: its threads right after their start are beyond our control."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_shut = False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def before_fork(self) -> None:
        self._is_shut = self._lock.acquire(timeout=FORK_WAIT_S)

    def in_parent(self) -> None:
        if self._is_shut:
            self._lock.release()

    def in_child(self) -> None:
        self._lock = threading.Lock()


fork_gate: Final = _ForkGate()

# A Kafka client of the parent that is garbage must not be collected in the child: its end joins threads that are not
# there, and on whose stacks threads of the child may run by now, which is a segmentation fault.
os.register_at_fork(after_in_child=gc.freeze)
os.register_at_fork(
    before=fork_gate.before_fork, after_in_parent=fork_gate.in_parent, after_in_child=fork_gate.in_child
)
