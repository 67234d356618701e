"""The flushing thread: turns what callers left into blocks and reports, in the order that makes reports true."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from time import time_ns
from typing import Any, Final, Protocol

from lagloss.account import Account
from lagloss.blocks import STRIDE, Increment, Observed, PackedBlock, Packer, Reader, Refused, thinned
from lagloss.intake import Intake
from lagloss.outlet import Outgoing, Outlet
from lagloss.topics import BEACONS, REPORTS
from lagloss.wire import EmitterReport, Progress, Tally, encode_report

log = logging.getLogger("lagloss")

FLUSH_S: Final = 1.0
REPORT_S: Final = 0.9
"""Seconds between two reports that nobody asked for, a little less than a flush so that each flush may report."""
IDLE_REPORT_S: Final = 10.0
"""Seconds between reports of an emitter that has nothing new to say."""
TIDY_S: Final = 60.0
POLL_S: Final = 0.05
MAX_REPORT_BYTES: Final = 512 * 1024
SLICE: Final = 4_096
"""Beacons read at a stretch: a few milliseconds in which the host's threads may have to wait for the interpreter."""
SHARE_FOR_BLOCKS: Final = 0.75
"""Of the time that `close` has: what is not acknowledged by then is dropped, so that the report can still say so."""


class ProgressSource(Protocol):
    """Tells how far a node's lanes are; `KafkaLanes` is one."""

    def snapshot(self) -> Sequence[Progress]:
        """Must claim nothing that was not true when it was called. Called from the emitter's thread."""
        ...


class Flusher:
    """One emitter's thread. A turn: look at progress, drain, send, wait for acks, account, report.

    In that order: whoever reads in a report that a lane was taken in up to some moment finds in its tallies all that
    was taken in by then, acknowledged. There is one turn at a time; while the broker does not acknowledge, beacons wait
    in the intake, which is bounded.
    """

    def __init__(
        self,
        pipeline: str,
        node: str,
        emitter: bytes,
        intake: Intake,
        outlet: Outlet,
        *,
        first: bool,
        names_ids: bool,
        final: bool,
    ) -> None:
        self.outlet = outlet
        self.account = Account(node, final=final)
        self.sources: list[ProgressSource] = []
        self.wake = threading.Event()
        self.turned = threading.Condition()
        """Notified after each turn."""
        self.drains = 0
        """Drains begun so far."""
        self.acknowledged = 0
        """The newest drain whose beacons the broker has acknowledged, all of them, and of all before."""
        self.reported = 0
        """The newest drain that a report covers which the broker has acknowledged."""
        self.report_wanted = 0
        """Somebody waits for a report that covers this drain."""
        self.ended = False
        """The broker has the closing report."""
        self.sent = 0
        self.dropped = 0
        self.sampled_out = 0
        self.unplaced = 0
        self.errors = 0
        self.last_error: str | None = None

        self._pipeline = pipeline
        self._node = node
        self._emitter = emitter
        self._intake = intake
        self._host = f"{socket.gethostname()}:{os.getpid()}"
        self._started_at = _now_ms()
        self._reader = Reader(keep_ids=first and names_ids)
        self._packer = Packer(pipeline, node, emitter, first, names_ids)
        self._waiting_for = 0
        self._heartbeat_is_out = False
        self._report_seq = 0
        self._progress: tuple[Progress, ...] = ()
        self._final_through = 0
        self._reported_at = float("-inf")
        self._tidied_at = time.monotonic()
        self._closing = False
        self._shut: Callable[[], None] = lambda: None
        self._blocks_until = self._all_until = float("inf")
        self._thread = threading.Thread(target=self._run, name=f"lagloss-{node}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float, shut: Callable[[], None]) -> None:
        """Ends the thread after a last turn. `shut` is called by it once nothing more is to be taken in."""
        now = time.monotonic()
        self._blocks_until = now + SHARE_FOR_BLOCKS * timeout_s
        self._all_until = now + timeout_s
        self._shut = shut
        self._closing = True
        self.wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closing:
            self._guarded(self._turn)
            if not self._closing:
                self.wake.wait(FLUSH_S)
            self.wake.clear()
        self._guarded(self._last_turn)
        self._shut()
        self.outlet.close()
        self._notify()

    def _guarded(self, turn: Callable[[], None]) -> None:
        try:
            turn()
        except Exception as error:
            self._note(error)

    def _note(self, error: Exception) -> None:
        self.errors += 1
        self.last_error = f"{type(error).__name__}: {error}"
        if self.errors == 1:
            log.warning("lagloss: the emitter stumbled and goes on", exc_info=error)

    def _turn(self) -> None:
        wanted = self.report_wanted > self.reported
        may_report = wanted or time.monotonic() - self._reported_at >= REPORT_S
        t_ms = _now_ms()
        progress = self._look_at_progress(t_ms) if may_report else ()
        partitions = self.outlet.partitions()
        if partitions is None:
            return  # no block can be made; the intake keeps the beacons
        self.drains += 1
        drain = self.drains
        self._send_blocks(partitions)
        if not self._wait(until=lambda: self._blocks_until, beat=True):
            return
        self.account.settle(t_ms)
        self.acknowledged = drain
        if may_report and (wanted or self._has_news()) and self._send_report(progress, closed=False):
            self.reported = drain
        self._notify()
        self._tidy()

    def _last_turn(self) -> None:
        """Settles the account, within the time that is left: what the broker does not take is dropped, and reported
        so."""
        t_ms = _now_ms()
        progress = self._look_at_progress(t_ms)
        self._shut()
        self._send_blocks(self.outlet.partitions())
        if not self._wait(until=lambda: self._blocks_until):
            self.outlet.abandon()
        self.account.settle(t_ms)
        self.ended = self._send_report(progress, closed=True)
        if self.ended:
            self.acknowledged = self.reported = self.drains + 1  # as far as any mark may stand for

    # -- progress -------------------------------------------------------------------------------------------------

    def _look_at_progress(self, t_ms: int) -> tuple[Progress, ...]:
        """How far work in hand and lanes are, at `t_ms` or a little later; a source that fails says nothing."""
        found: list[Progress] = []
        if self._intake.has_hand:
            # Work that begins from here on was taken in after `t_ms`.
            since = self._intake.in_hand_since()
            found.append(Progress(f"{self._node}.out", "", t_ms if since is None else min(since, t_ms)))
        for source in list(self.sources):
            try:
                found.extend(source.snapshot())
            except Exception as error:
                self._note(error)
        return tuple(found)

    # -- blocks ---------------------------------------------------------------------------------------------------

    def _send_blocks(self, partitions: int | None) -> None:
        """Drains the intake and hands its beacons to the outlet; those that make no block are counted."""
        now_s = time.time()
        flat, refused = self._intake.take(), Refused()
        parts = list(self._read(flat, now_s * 1000, refused))
        if parts and partitions is not None:
            try:
                for block in self._packed(parts, partitions, now_s):
                    self._send_block(block)
            except Exception:
                self.account.blind = True  # some beacons are in no block and no tally knows
                raise
        elif flat:
            self.account.blind = True
        self.unplaced += refused.unplaced
        for dropped in (refused.dropped, self._intake.take_overflow()):
            for key, beacons in dropped.items():
                self.account.drop(key, beacons, now_s)
                self.dropped += beacons
        if self._intake.lost_count.read():
            self.account.blind = True

    def _read(self, flat: list[Any], now_ms: float, refused: Refused) -> Iterator[Observed]:
        for at in range(0, len(flat), SLICE * STRIDE):
            try:
                part = self._reader.read(flat[at : at + SLICE * STRIDE], now_ms, refused)
            except Exception as error:
                self.account.blind = True
                self._note(error)
                continue
            if part is not None:
                yield part

    def _packed(self, parts: Sequence[Observed], partitions: int, now_s: float) -> Iterator[PackedBlock]:
        """Blocks of the beacons that the pipeline's sample takes. The tallies of the others are told of the sample,
        whether a block says so or not."""
        sample, observed = self.outlet.sample(self._pipeline), Observed.joined(parts)
        taken, left_out = thinned(observed, self._reader.kinds, sample)
        for key in left_out:
            self.account.thin(key, sample, now_s)
        self.sampled_out += len(observed) - len(taken)
        return self._packer.pack(taken, self._reader.kinds, partitions, sample)

    def _send_block(self, block: PackedBlock) -> None:
        increment: Increment = block.increment

        def done(partition: int | None, offset: int) -> None:
            self._waiting_for -= 1
            if partition is None:
                self.account.drop(increment.key, increment.beacons, time.time())
                self.dropped += increment.beacons
            else:
                self.account.add(increment, partition, offset, time.time())
                self.sent += increment.beacons

        self._waiting_for += 1
        self.outlet.send(Outgoing(BEACONS, block.key, block.value, done, block.partition))

    def _wait(self, until: Callable[[], float], *, beat: bool = False) -> bool:
        """Until everything that was sent is acknowledged or given up. False if it took too long, which it may only when
        closing."""
        while self._waiting_for:
            if time.monotonic() >= until():
                return False
            if beat:
                self._heartbeat()
            self.outlet.poll(POLL_S)
        return True

    # -- reports --------------------------------------------------------------------------------------------------

    def _has_news(self) -> bool:
        """A tally changed, a window became final, or ten seconds have passed."""
        return (
            self.account.has_changed
            or self.account.final_through // 60 != self._final_through // 60
            or time.monotonic() - self._reported_at >= IDLE_REPORT_S
        )

    def _send_report(self, progress: tuple[Progress, ...], *, closed: bool) -> bool:
        """The tallies that changed, in one report or several, one after the other; True once the broker has them all.

        Only the last brings the new progress and final_through: nobody may believe them before all tallies are there.
        """
        parts = _parts(self.account.changed())
        for number, tallies in enumerate(parts):
            is_last = number == len(parts) - 1
            report = self._report(
                tallies,
                progress if is_last else self._progress,
                self.account.final_through if is_last else self._final_through,
                closed=closed and is_last,
            )
            acknowledged: list[bool] = []
            self._waiting_for += 1
            self._send_record(report, acknowledged.append)
            if not self._wait(until=lambda: self._all_until) or not acknowledged[0]:
                return False
            self.account.reported(tallies)
        self._progress, self._final_through = progress, self.account.final_through
        self._reported_at = time.monotonic()
        return True

    def _send_record(self, report: EmitterReport, then: Callable[[bool], None]) -> None:
        def done(partition: int | None, offset: int) -> None:
            self._waiting_for -= 1
            then(partition is not None)

        self.outlet.send(Outgoing(REPORTS, self._emitter, encode_report(report), done))

    def _heartbeat(self) -> None:
        """While acknowledgements are late: that this emitter lives, and nothing else that is new."""
        if self._heartbeat_is_out or time.monotonic() - self._reported_at < IDLE_REPORT_S:
            return

        def done(partition: int | None, offset: int) -> None:
            self._heartbeat_is_out = False
            self._reported_at = time.monotonic()

        self._heartbeat_is_out = True
        report = self._report((), self._progress, self._final_through, closed=False)
        self.outlet.send(Outgoing(REPORTS, self._emitter, encode_report(report), done))

    def _report(
        self, tallies: Sequence[Tally], progress: tuple[Progress, ...], final_through: int, *, closed: bool
    ) -> EmitterReport:
        self._report_seq += 1
        return EmitterReport(
            pipeline=self._pipeline,
            node=self._node,
            emitter=self._emitter,
            host=self._host,
            seq=self._report_seq,
            started_at=self._started_at,
            sent_at=_now_ms(),
            closed=closed,
            final_through=final_through,
            progress=progress,
            tallies=tuple(tallies),
        )

    def _tidy(self) -> None:
        if time.monotonic() - self._tidied_at >= TIDY_S:
            self._tidied_at = time.monotonic()
            self.account.tidy(time.time())

    def _notify(self) -> None:
        with self.turned:
            self.turned.notify_all()


def _parts(tallies: Sequence[Tally]) -> list[list[Tally]]:
    """The tallies cut into lists that fit a report each; one empty list of none."""
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
    """An upper bound of a tally's encoded size: Avro's longest integers, but for sketch keys, which take three
    bytes."""
    names = len(tally.checkpoint) + 4 * len(tally.replay or "")
    return 80 + names + 13 * int(tally.lag_sketch.keys.size) + 25 * len(tally.ranges)


def _now_ms() -> int:
    return time_ns() // 1_000_000
