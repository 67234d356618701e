"""The flushing thread: drains the buffer into a backlog of flushes, and ships them in order."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from lagloss.broker.topics import BEACONS_PARTITIONS
from lagloss.sdk.account import Account
from lagloss.sdk.backlog import Backlog, MemoryBacklog
from lagloss.sdk.buffer import BeaconBuffer
from lagloss.sdk.flush import Drain, Flush
from lagloss.sdk.outlets.kafka import Outlet
from lagloss.sdk.packing import BeaconReader, Packer
from lagloss.sdk.shipper import NEVER, EmitterIdentity, Position, Shipper, now_ms
from lagloss.wire.format import Progress

log = logging.getLogger("lagloss")

SHORTEST_S: Final = 1.0
"""From one flush to the next, unless it is requested. The buffer is looked at as often: no burst waits for longer."""
LONGEST_S: Final = 2.5
"""Live numbers are to be at most 5 s old, of which following reports takes up to 2 s: the rest bounds the wait. It also
bounds what a killed process without a spool loses."""
ENOUGH: Final = 500
"""Beacons that are worth a flush. One costs almost as much for a beacon as for some hundred, so few wait for more; what
these cost themselves exceeds what any flush costs."""
TIDY_S: Final = 60.0
SHARE_FOR_BLOCKS: Final = 0.75
"""Share of the time of `close` after which unacknowledged blocks are dropped, so that the report still counts them."""


def wait_s(waited_s: float, beacons: int, max_buffered: int, *, is_awaited: bool) -> float:
    """Return the seconds until a flush is due, or the buffer is to be looked at again; none are left if it is due.

    A flush is due `SHORTEST_S` after the one before if there are `ENOUGH` beacons for it, the buffer is half full, or
    the host waits for it; else `LONGEST_S` after.

    Args:
        waited_s: seconds since the flush before.
        beacons: in the buffer, which takes `max_buffered`.
        is_awaited: the host commits, or goes on, once these beacons are acknowledged.
    """
    is_enough = beacons >= min(ENOUGH, max_buffered / 2)
    due_s = SHORTEST_S if is_enough or is_awaited else LONGEST_S
    return min(due_s - waited_s, SHORTEST_S)


class ProgressSource(Protocol):
    """A source of lane progress; `KafkaLanes` is one."""

    def snapshot(self) -> Sequence[Progress]:
        """Return progress that was true when this was called. Called from the emitter's thread."""
        ...


MakeBacklog = Callable[[Account, Callable[[Exception], None]], Backlog]


class Flusher:
    """One emitter's thread. A turn reads progress, drains, puts the flush into the backlog, ships, accounts and
    reports.

    In that order: a report that claims that a lane was taken in up to some moment has in its tallies all that was taken
    in by then, acknowledged. While the broker does not acknowledge, beacons wait in the backlog as far as it has room,
    then in the buffer; both are bounded.

    Args:
        make_backlog: called with the account and an error callback; by default makes one in memory.
    """

    def __init__(
        self,
        identity: EmitterIdentity,
        buffer: BeaconBuffer,
        outlet: Outlet,
        *,
        first: bool,
        names_ids: bool,
        keep_traces: bool,
        final: bool,
        make_backlog: MakeBacklog | None = None,
    ) -> None:
        self.outlet = outlet
        self.account = Account(identity.node, final=final)
        self.sources: list[ProgressSource] = []
        self.wake = threading.Event()
        self.turned = threading.Condition()
        """Notified after each turn."""
        self.safe = 0
        """The newest flush that is acknowledged by the broker, as are all before, or spooled where that is enough."""
        self.reported = 0
        """The newest flush covered by a report that the broker has acknowledged."""
        self.report_wanted = 0
        """The newest flush that a caller of `flush` waits to see covered by a report."""
        self.ended = False
        """True once the broker has the closing report."""
        self.errors = 0
        self.last_error: str | None = None

        self._pipeline, self._node, self._resumes = identity.pipeline, identity.node, identity.resumes
        self._buffer = buffer
        self._drain = Drain(
            buffer,
            BeaconReader(keep_ids=first and names_ids, keep_traces=keep_traces, times_are_own=final),
            Packer(identity.pipeline, identity.node, identity.emitter, first, names_ids),
            self._note,
        )
        self._shipper = Shipper(identity, outlet, self.account)
        self._make_backlog = make_backlog
        self._backlog: Backlog = MemoryBacklog()
        self._partitions: int | None = None
        self._marked = 0
        """The newest flush whose number `mark` has returned."""
        self._progress_up_to = 0
        """The newest flush shipped for which progress was read: the extent of the next report."""
        self._flushed_at = self._tidied_at = time.monotonic()
        self._was_woken = False
        """A turn was requested while one was under way."""
        self._closing = False
        self._is_finished = True
        self._shut: Callable[[], None] = lambda: None
        self._blocks_until = self._all_until = NEVER
        self._thread = threading.Thread(target=self._run, name=f"lagloss-{identity.node}", daemon=True)

    @property
    def drains(self) -> int:
        """Flushes begun so far."""
        return self._drain.taken

    def mark(self) -> int:
        """Return the number of the flush that has all beacons observed so far, from any thread: it is waited for."""
        mark = self.drains + 1  # a drain under way may have missed the newest of them, the next one cannot
        self._marked = max(self._marked, mark)
        return mark

    @property
    def sent(self) -> int:
        return self._shipper.sent

    @property
    def dropped(self) -> int:
        return self._shipper.dropped

    @property
    def unplaced(self) -> int:
        return self._drain.unplaced

    @property
    def sampled_out(self) -> int:
        return self._drain.sampled_out

    @property
    def spooled_bytes(self) -> int:
        return self._backlog.waiting_bytes

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float, shut: Callable[[], None], *, is_finished: bool = True) -> None:
        """End the thread after a last turn, which calls `shut` once nothing more is to be taken in.

        `is_finished`: nothing is in flight.
        """
        now = time.monotonic()
        self._blocks_until = now + SHARE_FOR_BLOCKS * timeout_s
        self._all_until = now + timeout_s
        self._shut = shut
        self._is_finished = is_finished
        self._closing = True
        self.wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def detach_after_fork(self) -> None:
        """Forget the parent's connections and files without touching them, in a forked child."""
        self.outlet.detach_after_fork()
        self._backlog.detach_after_fork()

    def _run(self) -> None:
        self._guarded(self._open_backlog)
        while not self._closing:
            self._guarded(self._turn)
            self._pause()
        self._guarded(self._last_turn)
        self._shut()
        self.outlet.close()
        self._backlog.close(settled=self.ended)
        self._notify()

    def _pause(self) -> None:
        """Wait until the next flush is due, or requested."""
        while not self._was_woken and (left_s := self._wait_s()) > 0:
            self._was_woken = self.wake.wait(left_s)
        self._was_woken = False
        self.wake.clear()

    def _wait_s(self) -> float:
        is_awaited = self._marked > self.drains
        waited_s = time.monotonic() - self._flushed_at
        return wait_s(waited_s, len(self._buffer), self._buffer.max_beacons, is_awaited=is_awaited)

    def _open_backlog(self) -> None:
        """Open the backlog if it has failed so far; retried once per minute."""
        if self._make_backlog is not None and self._backlog.head() is None:
            self._backlog = self._make_backlog(self.account, self._note)
            self._make_backlog = None

    def _guarded(self, turn: Callable[[], None]) -> None:
        try:
            turn()
        except Exception as error:
            self._note(error)

    def _note(self, error: Exception) -> None:
        self.errors += 1
        self.last_error = f"{type(error).__name__}: {error}"
        if self.errors == 1:
            log.warning("lagloss: error in the emitter; it keeps running", exc_info=error)

    # -- turns ----------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._flushed_at = time.monotonic()
        may_report = self._is_report_wanted or self._shipper.may_report
        partitions = self.outlet.partitions()
        self._partitions = partitions or self._partitions
        if self._backlog.make_room(self._shipper.report_seq):
            self._take(self._read_progress if may_report else None)
        if partitions is None:
            return
        try:
            if self._ship_all():
                self._tidy()
        finally:  # also if a flush cannot be read: a later one may be safe
            self._notify()

    def _ship_all(self) -> bool:
        """Ship what waits, and report it. False if the time was up. Raises OSError."""
        while (flush := self._backlog.head()) is not None:
            positions = self._shipper.ship(flush, until=self._until_closing, meanwhile=self._heartbeat_and_drain)
            if positions is None:
                return False
            self._shipped(flush, positions)
            is_covering = self._is_report_wanted and flush.progress is not None
            is_due = is_covering or (self._shipper.may_report and self._shipper.has_news)
            if (is_due or self._backlog.wants_report) and not self._report(self._until_closing):
                return False
        return True

    def _until_closing(self) -> float:
        return float("-inf") if self._closing else NEVER

    @property
    def _is_report_wanted(self) -> bool:
        return self.report_wanted > self.reported

    def _take(self, read_progress: Callable[[], tuple[Progress, ...]] | None) -> None:
        """Drain the buffer into the backlog, once the number of partitions for blocks is known."""
        partitions = self._partitions or self._backlog.presumed_partitions
        if partitions is None:
            return
        observed_until_ms = now_ms()  # before progress is read: its claims were observed by then
        sample = self.outlet.sample(self._pipeline)
        flush = self._drain.take(observed_until_ms, read_progress() if read_progress else None, partitions, sample)
        is_spooled = self._backlog.put(flush, self._shipper.report_seq)
        # What a host commits, others do not read again: if it is cut off and then dies, the broker must have it.
        if is_spooled and not (self._resumes or self.sources):
            self.safe = flush.number

    def _shipped(self, flush: Flush, positions: Sequence[Position]) -> None:
        self._backlog.shipped(flush, positions)
        if flush.progress is not None:
            self._progress_up_to = flush.number
        self.safe = max(self.safe, flush.number)

    def _report(self, until: Callable[[], float]) -> bool:
        """Report the flushes shipped so far. False if the time was up."""
        if not self._shipper.report(until=until, meanwhile=self._drain_if_due):
            return False
        self.reported = self._progress_up_to
        self._backlog.reported(self._shipper.report_seq)
        return True

    def _heartbeat_and_drain(self) -> None:
        """Send a heartbeat and drain, if due, while blocks are not acknowledged."""
        if not self._closing:
            self._shipper.heartbeat()
        self._drain_if_due()

    def _drain_if_due(self) -> None:
        """Continue to flush while acknowledgements are late, as far as the backlog has room.

        Progress is not read: that may take seconds while brokers are away.
        """
        is_due = self.wake.is_set() or self._wait_s() <= 0
        if is_due and not self._closing and self._backlog.make_room(self._shipper.report_seq):
            self._was_woken = self._was_woken or self.wake.is_set()
            self.wake.clear()
            self._flushed_at = time.monotonic()
            self._take(None)
            self._notify()

    def _last_turn(self) -> None:
        """Put the rest into the backlog and ship as much as the time allows.

        Blocks not acknowledged by then are left to the spool's next owner; without a spool, they are dropped and
        reported so.
        """
        closed_at_ms = now_ms()
        progress = self._read_progress() if self._is_level() else ()
        self._shut()
        self._partitions = self._partitions or self.outlet.partitions() or BEACONS_PARTITIONS
        self._take(lambda: progress)
        if self._is_finished:
            self._backlog.end(closed_at_ms)
        while (flush := self._backlog.head()) is not None:
            positions = self._shipper.ship(flush, until=lambda: self._blocks_until)
            if positions is None:
                if self._backlog.is_durable:
                    return
                positions = self._shipper.give_up(flush)
            self._shipped(flush, positions)
            if self._backlog.wants_report and not self._report(lambda: self._all_until):
                return
        self.ended = self._shipper.report(
            closed_at_ms=closed_at_ms, unfinished=not self._is_finished, until=lambda: self._all_until
        )
        if self.ended:
            self.safe = self.drains  # beacons of later marks may have been refused
            self.reported = self.drains + 1  # as far as any mark can reach

    def _is_level(self) -> bool:
        """Return whether nothing waits to be shipped."""
        try:
            return self._backlog.head() is None
        except OSError as error:  # what is still to be taken can be written all the same
            self._note(error)
            return False

    # -- progress -------------------------------------------------------------------------------------------------

    def _read_progress(self) -> tuple[Progress, ...]:
        """Return the progress of work in flight and lanes, now or a little later; a source that fails is left out.

        Of a lane that several sources report, such as one without a name, the lowest counts.
        """
        progress: list[Progress] = []
        if self._buffer.has_hand:
            t_ms = now_ms()  # work that begins after this was taken in later
            since = self._buffer.in_flight_since()
            progress.append(Progress(f"{self._node}.out", "", t_ms if since is None else min(since, t_ms)))
        for source in list(self.sources):
            try:
                progress.extend(source.snapshot())
            except Exception as error:
                self._note(error)
        lowest: dict[tuple[str, str], Progress] = {}
        for lane in progress:
            before = lowest.setdefault((lane.checkpoint, lane.lane), lane)
            before.until = min(before.until, lane.until)
        return tuple(lowest.values())

    def _tidy(self) -> None:
        if time.monotonic() - self._tidied_at >= TIDY_S:
            self._tidied_at = time.monotonic()
            self.account.tidy(time.time())
            self._open_backlog()

    def _notify(self) -> None:
        with self.turned:
            self.turned.notify_all()
