"""Which messages are observed behind a later one of their key."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

import xxhash

MAX_KEYS: Final = 65_536
"""Keys whose latest event time is remembered, of all checkpoints together: some 15 MB."""


class KeyOrder:
    """The latest event time of each checkpoint and key. Thread-safe, also in signal handlers.

    Of more than `MAX_KEYS`, the one that was not observed for longest is forgotten: its next message is in order.
    """

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._latest: OrderedDict[tuple[str, int], float] = OrderedDict()
        self._lock = threading.RLock()

    def is_overtaken(self, place: str, key: object, event_ms: float) -> bool:
        """Return whether a message of this key (bytes or text) with a later event time was observed at this checkpoint
        before, and remember this one. `event_ms`: epoch ms."""
        raw = key if isinstance(key, bytes) else str(key).encode("utf-8", "surrogatepass")
        slot = place, xxhash.xxh3_64_intdigest(raw)
        with self._lock:
            latest = self._latest.get(slot)
            self._latest[slot] = event_ms if latest is None else max(latest, event_ms)
            self._latest.move_to_end(slot)
            if len(self._latest) > self._max_keys:
                self._latest.popitem(last=False)
        return latest is not None and latest > event_ms
