"""Recovery of a dead process's account: reads its spool, sends the unsent rest, and closes the account.

Flushed beacons arrive once, since their blocks keep emitter and seq. Beacons observed after the last flush are gone,
and their windows are unknown: as for any emitter that falls silent, the windows that it was changing in its last
minute, and those until a minute after, or until it was found dead, are left incomplete. Not so if it closed cleanly, or
if its host observes again what was not acknowledged. The account of one that died is closed as unfinished: what it had
in flight stays so until another process has taken that over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from lagloss.sdk.account import Account
from lagloss.sdk.flush import Flush
from lagloss.sdk.outlets.kafka import Outlet
from lagloss.sdk.packing import TallyKey
from lagloss.sdk.shipper import NEVER, POLL_S, EmitterIdentity, Shipper, now_ms
from lagloss.sdk.spool.directory import SpoolDirectory
from lagloss.sdk.spool.journal import Bases, End, Entry, Head, StoredFlush, entries, positions_of
from lagloss.wire.format import WINDOW_S, Tally

log = logging.getLogger("lagloss")

SEARCH_S: Final = 30.0
"""Seconds between two searches for spools of dead processes."""
UNSURE_MS: Final = 60_000
"""Span around its last flush in which an emitter's account is unsure: as long as noticing its silence would have
taken."""
REPORTS_SKIPPED: Final = 1 << 20
"""More reports than an emitter sends between two flushes: the closing ones count on from there."""
_WINDOW_MS: Final = WINDOW_S * 1000


class RecoveryThread(threading.Thread):
    """Thread that recovers the spools of a node's (by default any node's) dead processes below `directory`, until
    stopped.
    """

    def __init__(
        self, directory: Path, make_outlet: Callable[[], Outlet], pipeline: str = "*", node: str = "*"
    ) -> None:
        super().__init__(name="lagloss-recovery", daemon=True)
        self._directory = directory
        self._pipeline = pipeline
        self._node = node
        self._make_outlet = make_outlet
        self._stopped = threading.Event()
        self._outlet: Outlet | None = None
        self._at_work: SpoolDirectory | None = None
        self._failed: set[Path] = set()
        """Spools that could not be recovered, and were logged so."""

    def stop(self) -> None:
        """Stop the thread; returns at once. Spools not yet recovered are left to the next process."""
        self._stopped.set()

    def detach_after_fork(self) -> None:
        """Let go of the parent's spool in a forked child."""
        if self._outlet is not None:
            self._outlet.detach_after_fork()
        if self._at_work is not None:
            self._at_work.release()

    def run(self) -> None:
        while not self._stopped.is_set():
            for spool in SpoolDirectory.abandoned(self._directory, self._pipeline, self._node):
                self._at_work = spool
                self._recover(spool)
                self._at_work = None
            self._disconnect()
            self._stopped.wait(SEARCH_S)

    def _recover(self, spool: SpoolDirectory) -> None:
        try:
            outlet = self._outlet = self._outlet or self._make_outlet()
            identity = EmitterIdentity(*spool.owner, "unknown", 0)
            if SpoolRecovery(spool.path, identity, outlet, self._stopped.is_set).settle():
                spool.remove()
        except Exception as error:
            if spool.path not in self._failed:  # it is retried at every search
                log.warning("lagloss: cannot recover spool %s yet: %s", spool.path.name, error)
            self._failed.add(spool.path)
        spool.release()

    def _disconnect(self) -> None:
        outlet, self._outlet = self._outlet, None
        if outlet is not None:
            outlet.close()


class SpoolRecovery:
    """Recovery of one dead emitter's account.

    Args:
        path: its spool.
        identity: of the emitter, as far as the directory's name has it.
        stopped: polled while waiting for the broker.
    """

    def __init__(self, path: Path, identity: EmitterIdentity, outlet: Outlet, stopped: Callable[[], bool]) -> None:
        self._found_ms = now_ms()
        self._path = path
        self._identity = identity
        self._outlet = outlet
        self._stopped = stopped
        self._account = Account(identity.node, final=False)
        self._expected: set[TallyKey] = set()
        self._restored: set[TallyKey] = set()
        self._end: End | None = None
        self._last: Flush | None = None
        self._last_ms = 0
        self._windows: list[tuple[int, int]] = []
        """(observed until, oldest window changed) of flushes: epoch ms and s."""
        self._shipper: Shipper | None = None

    def settle(self) -> bool:
        """Send the unsent rest, and close the account. False if stopped before the broker had all of it."""
        while self._outlet.partitions() is None:
            if self._stopped():
                return False
            self._outlet.poll(POLL_S)
        return all(map(self._recover_file, sorted(self._path.glob("*.log")))) and self._close()

    @property
    def _closed_at_ms(self) -> int:
        """When the emitter ended (epoch ms). If it died, that is the end of a window, which may still be to come: it is
        expected to account for that, and has not.
        """
        if self._end is not None:
            return self._end.closed_at_ms
        if self._identity.resumes and self._last is not None:
            return self._last.observed_until_ms or self._last_ms  # earlier than another, if the clock was set back
        died_ms = max(self._last_ms, min(self._found_ms, self._last_ms + UNSURE_MS))
        return (died_ms // _WINDOW_MS + 1) * _WINDOW_MS

    def _close(self) -> bool:
        if self._shipper is None:
            return True  # it never flushed
        lost = self._expected - self._restored
        for key in lost:
            self._account.forget(key)  # less of it is known than was reported
        unsure = [key.window_start for key in lost]
        if self._end is None and not self._identity.resumes:
            unsure += [window for observed_ms, window in self._windows if observed_ms > self._last_ms - UNSURE_MS]
            unsure.append(self._found_ms // _WINDOW_MS * WINDOW_S)  # earlier than its last, if the clock was set back
        self._account.final_through = min([self._account.final_through, *unsure])
        return self._shipper.report(closed_at_ms=self._closed_at_ms, unfinished=self._end is None, until=self._until)

    def _recover_file(self, log_file: Path) -> bool:
        sent_file, base_file = log_file.with_suffix(".sent"), log_file.with_suffix(".base")
        positions = positions_of(sent_file.read_bytes()) if sent_file.exists() else {}
        for entry in self._entries(base_file, log_file):
            match entry:
                case Head():
                    self._begin(entry)
                case Bases(keys):
                    self._expected.update(keys)
                case Tally():
                    self._restore(entry)
                case End():
                    self._end = entry
                case StoredFlush(flush):
                    shipper = self._take(entry)
                    known_positions = positions.get(flush.number)
                    if known_positions is not None and len(known_positions) == len(flush.blocks):
                        shipper.account_for(flush, known_positions)
                    elif shipper.ship(flush, until=self._until) is None:
                        return False
        return True

    def _begin(self, head: Head) -> None:
        """Each file says who wrote it; without the first one the account is never final."""
        self._identity = head.identity
        if self._shipper is None and not self._restored:
            self._account = Account(head.identity.node, final=head.final)

    @staticmethod
    def _entries(*files: Path) -> Iterator[Entry]:
        for file in files:
            if file.exists():
                yield from entries(file.read_bytes())

    def _restore(self, tally: Tally) -> None:
        self._account.restore(tally, time.time())
        self._restored.add(TallyKey(tally.checkpoint.partition(".")[2], tally.replay, tally.window_start))

    def _take(self, stored: StoredFlush) -> Shipper:
        if self._shipper is None:
            self._account.final_through = stored.final_through
            self._shipper = Shipper(self._identity, self._outlet, self._account)
        elif self._last is not None and stored.after > self._last.number:
            self._account.blind = True  # damage in between that no summary accounts for
        self._shipper.report_seq = max(self._shipper.report_seq, stored.report_seq + REPORTS_SKIPPED)
        self._last = stored.flush
        self._last_ms = max(self._last_ms, stored.flush.observed_until_ms)
        windows = [key.window_start for key in stored.flush.keys]
        if windows:
            self._windows.append((stored.flush.observed_until_ms, min(windows)))
        return self._shipper

    def _until(self) -> float:
        return float("-inf") if self._stopped() else NEVER
