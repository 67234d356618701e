"""Windows as the log holds them, the last ones kept: a reader looks at one window in many ways."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, TypeAlias

from sqlalchemy import func, select

from dashboard.queries.shared_reads import SharedReads
from lagloss.errors import KafkaUnreachable
from lagloss_server.base.errors import NotConfigured, NotEnoughData, WindowTooLarge
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.matrix import Presence
from lagloss_server.queries.window_blocks import read_window
from lagloss_server.store.audit import Look
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store

OpenLog: TypeAlias = Callable[[], AbstractContextManager[BeaconLog]]
UNREADABLE: Final = (NotEnoughData, WindowTooLarge, KafkaUnreachable, NotConfigured)
"""Why a window is not read from the log: what its result kept stands in for it."""
MAX_BEACONS: Final = 4_000_000
"""Of one window, and of all that are kept: some 250 MB with all that is worked out of them (measured: 666,000 messages
at 6 checkpoints)."""


class Stamp(NamedTuple):
    """Key of a cached window: the revision of its result (0: none yet), and the position of the reports
    at which its tallies last changed. `beacons`: how many the tallies count."""

    revision: int
    changed_basis: int
    beacons: int


class LoggedWindows:
    """The windows that were read last, up to a number of beacons; a request for one that is being read waits for
    it."""

    def __init__(self, kept_beacons: int = MAX_BEACONS, max_beacons: int = MAX_BEACONS) -> None:
        self._max_beacons = max_beacons
        self._windows = SharedReads[Presence](kept_beacons, lambda presence: presence.blocks.count)

    def read(
        self, store: Store, open_log: OpenLog, pipeline: str, window_start_s: int, look: Look = "ids.window"
    ) -> Presence:
        """Return the window, read anew where something of it has changed.

        Raises:
            UnknownPipeline, NotEnoughData, KafkaUnreachable, NotConfigured: as `read_window` and `open_log`.
            WindowTooLarge: its tallies count too many beacons; none was read.
            IdsHidden: whoever asks may not see its message ids.
        """
        store.demand(pipeline)
        store.look_at_ids(look, pipeline, rfc3339(window_start_s))
        stamp = _read_stamp(store, pipeline, window_start_s)
        if stamp.beacons > self._max_beacons:
            raise WindowTooLarge(
                pipeline=pipeline, start=rfc3339(window_start_s), beacons=stamp.beacons, most=self._max_beacons
            )
        is_sealed = store.is_sealed(pipeline, window_start_s)

        def read() -> Presence:
            with open_log() as log:
                return Presence(read_window(store, log, pipeline, window_start_s))

        return self._windows.read((pipeline, window_start_s), stamp, read, anew=is_sealed)


def _read_stamp(store: Store, pipeline: str, window_start_s: int) -> Stamp:
    window, tally = tables.WindowRow, tables.TallyRow
    revision = select(window.revision).where(window.pipeline == pipeline, window.window_start == window_start_s)
    summary = select(func.max(tally.changed_basis), func.sum(tally.beacons)).where(
        tally.pipeline == pipeline, tally.window_start == window_start_s
    )
    with store.engine.connect() as connection:
        changed_basis, beacons = connection.execute(summary).one()
        return Stamp(connection.execute(revision).scalar_one_or_none() or 0, changed_basis or 0, int(beacons or 0))
