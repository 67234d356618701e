"""Windows as the log holds them, the last ones kept: a reader looks at one window in many ways."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, TypeAlias

from sqlalchemy import func, select

from lagloss import tables
from lagloss.beacon_log import BeaconLog
from lagloss.matrix import Presence
from lagloss.store import Store
from lagloss.window_blocks import read_window

OpenLog: TypeAlias = Callable[[], AbstractContextManager[BeaconLog]]
_KEPT_BEACONS: Final = 8_000_000
"""Some 200 MB with all that is worked out of them."""
Stamp: TypeAlias = tuple[int, int]
"""Revision of a window's result (0: none yet), and the position of the reports at which its tallies last changed."""


class LoggedWindows:
    """The windows that were read last, up to a number of beacons; the newest is kept whatever its size."""

    def __init__(self, kept_beacons: int = _KEPT_BEACONS) -> None:
        self._kept_beacons = kept_beacons
        self._windows: OrderedDict[tuple[str, int], tuple[Stamp, Presence]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, store: Store, open_log: OpenLog, pipeline: str, window_start_s: int) -> Presence:
        """The window, read anew where something of it has changed.

        Raises:
            UnknownPipeline, NotEnoughData, KafkaUnreachable, NotConfigured: as `read_window` and `open_log`.
        """
        store.pipeline(pipeline)
        key, stamp = (pipeline, window_start_s), read_stamp(store, pipeline, window_start_s)
        with self._lock:
            known = self._windows.get(key)
            if known is not None and known[0] == stamp and not store.is_sealed(pipeline, window_start_s):
                self._windows.move_to_end(key)
                return known[1]
        with open_log() as log:
            found = Presence(read_window(store, log, pipeline, window_start_s))
        with self._lock:
            self._windows[key] = stamp, found
            self._windows.move_to_end(key)
            while len(self._windows) > 1 and self._beacons() > self._kept_beacons:
                self._windows.popitem(last=False)
        return found

    def _beacons(self) -> int:
        return sum(presence.found.count for _, presence in self._windows.values())


def read_stamp(store: Store, pipeline: str, window_start_s: int) -> Stamp:
    """It differs where a window would be read otherwise than before."""
    window, tally = tables.Window, tables.Tally
    revision = select(window.revision).where(window.pipeline == pipeline, window.window_start == window_start_s)
    changed = select(func.max(tally.changed_basis)).where(
        tally.pipeline == pipeline, tally.window_start == window_start_s
    )
    with store.engine.connect() as connection:
        return (
            connection.execute(revision).scalar_one_or_none() or 0,
            connection.execute(changed).scalar_one_or_none() or 0,
        )
