"""Shipping: hands an emitter's flushes to the outlet, accounts for acknowledged blocks, and reports."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import time_ns
from typing import Final

from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.sdk.account import Account
from lagloss.sdk.flush import Flush
from lagloss.sdk.outlets.kafka import Outgoing, Outlet
from lagloss.sdk.packing import PackedBlock, TallyKey
from lagloss.wire.format import EmitterReport, Progress, Tally, encode_report

REPORT_S: Final = 0.9
"""Seconds between two reports that no caller requested, a little less than from one flush to the next so that each may
report."""
IDLE_REPORT_S: Final = 9.0
"""Seconds between reports of an emitter without news, a little less than its four flushes take, so that it is 10 s. It
counts as silent after 60 s, and a silent one's blocks are looked for up to 10 s after its last report."""
POLL_S: Final = 0.05
MAX_REPORT_BYTES: Final = 512 * 1024

Position = tuple[int, int] | None
"""Partition and offset of an acknowledged block, None for one that was given up."""
NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class EmitterIdentity:
    """Who an emitter is, as its blocks and reports say. `started_at`: epoch ms; `resumes`: what it observed and had not
    acknowledged when it died is observed again; `labels`: of the deployment."""

    pipeline: str
    node: str
    emitter: bytes
    host: str
    started_at: int
    resumes: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class PendingReport:
    """A report under way: the tallies that are not acknowledged yet, by part."""

    parts: deque[list[Tally]]
    closed_at_ms: int | None
    unfinished: bool
    acknowledged: list[bool] = field(default_factory=list)


class Shipper:
    """One emitter's blocks and reports in flight. Used by one thread.

    A flush is accounted for when all of its blocks are acknowledged or given up. Only then can a report make the
    flush's claims: its progress, and that the account is final up to it.
    """

    def __init__(self, identity: EmitterIdentity, outlet: Outlet, account: Account, *, report_seq: int = 0) -> None:
        self.outlet = outlet
        self.account = account
        self.report_seq = report_seq
        self.sent = 0
        """Beacons acknowledged."""
        self.dropped = 0
        """Beacons given up, and counted in their tally."""
        self._identity = identity
        self._sending: tuple[Flush, list[Position]] | None = None
        self._waiting_for = 0
        self._heartbeat_is_out = False
        self._progress: tuple[Progress, ...] = ()
        """As last reported."""
        self._next_progress: tuple[Progress, ...] = ()
        """As of the newest flush that was accounted for."""
        self._final_through = account.final_through
        self._closed_at_ms: int | None = None
        self._unfinished = False
        """As of the newest report, too."""
        self._reported_at = float("-inf")

    # -- blocks ---------------------------------------------------------------------------------------------------

    def ship(
        self, flush: Flush, *, until: Callable[[], float] = lambda: NEVER, meanwhile: Callable[[], None] = lambda: None
    ) -> list[Position] | None:
        """Send a flush, wait for its acknowledgements and account for it; continue to wait if called with the same one
        again.

        Args:
            until: monotonic s at which to stop waiting.
            meanwhile: called while waiting, every 50 ms at most.

        Returns:
            Position of each block; None if the time was up.
        """
        if self._sending is None or self._sending[0] is not flush:
            self._send(flush)
        assert self._sending is not None
        if not self._wait(until, meanwhile):
            return None
        _, positions = self._sending
        self._sending = None
        self._settle(flush)
        return positions

    def give_up(self, flush: Flush) -> list[Position]:
        """Drop the unacknowledged blocks of this flush, which was being shipped."""
        self.outlet.abandon()
        positions = self.ship(flush)
        assert positions is not None
        return positions

    def account_for(self, flush: Flush, positions: Sequence[Position]) -> None:
        """Account for a flush that was shipped before, with its blocks at these positions."""
        for block, position in zip(flush.blocks, positions, strict=True):
            self._account_for(block, position)
        self._settle(flush)

    def _settle(self, flush: Flush) -> None:
        self.account.blind = self.account.blind or flush.is_blind
        for key, beacons in flush.dropped.items():
            self._drop(key, beacons)
        for key, sample in flush.thinned.items():
            self.account.thin(key, sample, time.time())
        self.account.settle(flush.observed_until_ms)
        if flush.progress is not None:
            self._next_progress = flush.progress

    def _send(self, flush: Flush) -> None:
        positions: list[Position] = [None] * len(flush.blocks)
        self._sending = flush, positions
        partitions = self.outlet.partitions()
        for index, block in enumerate(flush.blocks):
            # The topic may have another number of partitions by now than the block was made for.
            partition = block.partition % partitions if partitions else block.partition
            self._waiting_for += 1
            self.outlet.send(
                Outgoing(BEACONS, block.key, block.value, self._listener(block, positions, index), partition)
            )

    def _listener(
        self, block: PackedBlock, positions: list[Position], listener: int
    ) -> Callable[[int | None, int], None]:
        def done(partition: int | None, offset: int) -> None:
            self._waiting_for -= 1
            positions[listener] = None if partition is None else (partition, offset)
            self._account_for(block, positions[listener])

        return done

    def _account_for(self, block: PackedBlock, position: Position) -> None:
        increment = block.increment
        if position is None:
            self._drop(increment.key, increment.beacons)
            return
        self.account.add(increment, *position, time.time())
        self.sent += increment.beacons

    def _drop(self, key: TallyKey, beacons: int) -> None:
        self.account.drop(key, beacons, time.time())
        self.dropped += beacons

    def _wait(self, until: Callable[[], float], meanwhile: Callable[[], None]) -> bool:
        """Wait until all sent records are acknowledged or given up. False if the time was up before."""
        while self._waiting_for:
            if time.monotonic() >= until():
                return False
            meanwhile()
            self.outlet.poll(POLL_S)
        return True

    # -- reports --------------------------------------------------------------------------------------------------

    @property
    def may_report(self) -> bool:
        """True if the minimum interval between reports has passed."""
        return time.monotonic() - self._reported_at >= REPORT_S

    @property
    def has_news(self) -> bool:
        """True if a tally changed, a window became final, or `IDLE_REPORT_S` have passed."""
        return (
            self.account.has_changed
            or self.account.final_through // 60 != self._final_through // 60
            or time.monotonic() - self._reported_at >= IDLE_REPORT_S
        )

    def report(
        self,
        *,
        closed_at_ms: int | None = None,
        unfinished: bool = False,
        until: Callable[[], float] = lambda: NEVER,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> bool:
        """Report the changed tallies; return True once the broker has them all.

        Args:
            closed_at_ms: the end of the emitter, which is expected in windows up to then; None while it lives.
            unfinished: it ended with work in flight.
            until: as for `ship`.
            meanwhile: as for `ship`.
        """
        return bool(
            self.finish_report(self.start_report(closed_at_ms, unfinished=unfinished), until=until, meanwhile=meanwhile)
        )

    def start_report(self, closed_at_ms: int | None = None, *, unfinished: bool = False) -> PendingReport:
        """Begin to report the changed tallies, in one report or several in sequence; wait for nothing.

        Only the last has the new progress and final_through: they are not true before all tallies are there.
        """
        reporting = PendingReport(deque(_parts(self.account.changed())), closed_at_ms, unfinished)
        self._send_part(reporting)
        return reporting

    def finish_report(
        self,
        reporting: PendingReport,
        *,
        until: Callable[[], float] = lambda: NEVER,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> bool | None:
        """Send the rest of a report, and wait for its acknowledgements.

        Returns:
            True once the broker has it all, False if a part was given up, None if the time was up: then another call
            goes on.
        """
        while True:
            if not self._wait(until, meanwhile):
                return None
            if not reporting.acknowledged.pop():
                return False
            self.account.reported(reporting.parts.popleft())
            if not reporting.parts:
                break
            self._send_part(reporting)
        self._progress, self._final_through = self._next_progress, self.account.final_through
        self._closed_at_ms, self._unfinished = reporting.closed_at_ms, reporting.unfinished
        self._reported_at = time.monotonic()
        return True

    def _send_part(self, reporting: PendingReport) -> None:
        tallies = reporting.parts[0]
        is_last = len(reporting.parts) == 1
        report = self._next_report(tallies, reporting) if is_last else self._same_again(tallies)
        self._waiting_for += 1
        self._send_record(report, reporting.acknowledged.append)

    def heartbeat(self) -> None:
        """Report that this emitter lives, and nothing else that is new, while blocks are not acknowledged.

        Not to be called while a report is in flight, which may say more.
        """
        if self._heartbeat_is_out or time.monotonic() - self._reported_at < IDLE_REPORT_S:
            return

        def done(partition: int | None, offset: int) -> None:
            self._heartbeat_is_out = False
            self._reported_at = time.monotonic()

        self._heartbeat_is_out = True
        report = self._same_again(())
        self.outlet.send(Outgoing(REPORTS, self._identity.emitter, encode_report(report), done))

    def _send_record(self, report: EmitterReport, then: Callable[[bool], None]) -> None:
        def done(partition: int | None, offset: int) -> None:
            self._waiting_for -= 1
            then(partition is not None)

        self.outlet.send(Outgoing(REPORTS, self._identity.emitter, encode_report(report), done))

    def _next_report(self, tallies: Sequence[Tally], reporting: PendingReport) -> EmitterReport:
        return self._made(
            tallies, self._next_progress, self.account.final_through, reporting.closed_at_ms, reporting.unfinished
        )

    def _same_again(self, tallies: Sequence[Tally]) -> EmitterReport:
        """Make a report of these tallies, with all else as it was reported last."""
        return self._made(tallies, self._progress, self._final_through, self._closed_at_ms, self._unfinished)

    def _made(
        self,
        tallies: Sequence[Tally],
        progress: tuple[Progress, ...],
        final_through: int,
        closed_at_ms: int | None,
        unfinished: bool,
    ) -> EmitterReport:
        self.report_seq += 1
        return EmitterReport(
            pipeline=self._identity.pipeline,
            node=self._identity.node,
            emitter=self._identity.emitter,
            host=self._identity.host,
            seq=self.report_seq,
            started_at=self._identity.started_at,
            sent_at=now_ms() if closed_at_ms is None else closed_at_ms,
            closed=closed_at_ms is not None,
            final_through=final_through,
            progress=progress,
            tallies=tuple(tallies),
            resumes=self._identity.resumes,
            labels=self._identity.labels,
            unfinished=unfinished,
        )


def _parts(tallies: Sequence[Tally]) -> list[list[Tally]]:
    """Cut the tallies into lists that fit a report each; one empty list for none."""
    parts: list[list[Tally]] = [[]]
    size = 0
    for tally in tallies:
        more = _at_most_bytes(tally)
        if parts[-1] and size + more > MAX_REPORT_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(tally)
        size += more
    return parts


def _at_most_bytes(tally: Tally) -> int:
    """Return an upper bound of a tally's encoded size.

    Takes the longest integers of Avro, except for the steps between sketch keys, which take three bytes.
    """
    names = len(tally.checkpoint) + 4 * len(tally.replay or "")
    return 80 + names + 13 * int(tally.lag_sketch.keys.size) + 25 * len(tally.ranges)


def now_ms() -> int:
    """Return the current time in epoch ms."""
    return time_ns() // 1_000_000
