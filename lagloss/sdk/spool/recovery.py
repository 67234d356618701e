"""Recovery of a dead process's account: reads its spool, sends the unsent rest, and closes the account.

Flushed beacons arrive once, since their blocks keep emitter and seq. Beacons observed after the last flush are gone,
and their windows are unknown: as for any emitter that falls silent, the windows that it was changing in its last
minute, and those that end in the minute after, are left incomplete. Not so if it closed cleanly, or if its host
observes again what was not acknowledged.
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
from lagloss.wire.format import Tally

log = logging.getLogger("lagloss")

SEARCH_S: Final = 30.0
"""Seconds between two searches for spools of dead processes."""
UNSURE_MS: Final = 60_000
"""Span around its last flush in which an emitter's account is unsure: as long as noticing its silence would have
taken."""
REPORTS_SKIPPED: Final = 1 << 20
"""More reports than an emitter sends between two flushes: the closing ones count on from there."""


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
        self._at_work: tuple[SpoolDirectory, Outlet] | None = None
        self._failed: set[Path] = set()
        """Spools that could not be recovered, and were logged so."""

    def stop(self) -> None:
        """Stop the thread; returns at once. Spools not yet recovered are left to the next process."""
        self._stopped.set()

    def detach_after_fork(self) -> None:
        """Let go of the parent's spool in a forked child."""
        if self._at_work is not None:
            journal, outlet = self._at_work
            outlet.detach_after_fork()
            journal.release()

    def run(self) -> None:
        while not self._stopped.is_set():
            for spool in SpoolDirectory.abandoned(self._directory, self._pipeline, self._node):
                self._take_over(spool)
            self._stopped.wait(SEARCH_S)

    def _take_over(self, spool: SpoolDirectory) -> None:
        outlet = self._make_outlet()
        self._at_work = spool, outlet
        try:
            identity = EmitterIdentity(*spool.owner, "unknown", 0)
            if SpoolRecovery(spool.path, identity, outlet, self._stopped.is_set).run():
                spool.remove()
        except Exception as error:
            if spool.path not in self._failed:  # it is retried at every search
                log.warning("lagloss: cannot recover spool %s yet: %s", spool.path.name, error)
            self._failed.add(spool.path)
        finally:
            self._at_work = None
            outlet.close()
            spool.release()


class SpoolRecovery:
    """Recovery of one dead emitter's account.

    Args:
        path: its spool.
        identity: of the emitter, as far as the directory's name has it.
        stopped: polled while waiting for the broker.
    """

    def __init__(self, path: Path, identity: EmitterIdentity, outlet: Outlet, stopped: Callable[[], bool]) -> None:
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

    def run(self) -> bool:
        """Recover the spool. False if stopped before the broker had all of it."""
        while self._outlet.partitions() is None:
            if self._stopped():
                return False
            self._outlet.poll(POLL_S)
        for log_file in sorted(self._path.glob("*.log")):
            if not self._recover_file(log_file):
                return False
        return self._last is None or self._close()

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

    def _close(self) -> bool:
        assert self._shipper is not None
        lost = self._expected - self._restored
        for key in lost:
            self._account.forget(key)  # less of it is known than was reported
        unsure = [key.window_start for key in lost]
        if self._end is not None:
            closed_at_ms = self._end.closed_at_ms
        elif self._identity.resumes:
            closed_at_ms = self._last_ms
        else:
            closed_at_ms = min(now_ms(), self._last_ms + UNSURE_MS)
            unsure += [window for observed_ms, window in self._windows if observed_ms > self._last_ms - UNSURE_MS]
        self._account.final_through = min([self._account.final_through, *unsure])
        return self._shipper.report(closed_at_ms=closed_at_ms, until=self._until)

    def _until(self) -> float:
        return float("-inf") if self._stopped() else NEVER
