"""The spool on a real disk: whatever happens to process, disk and files, each beacon is sent once or counted."""

from __future__ import annotations

import errno
import os
import random
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Container
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lagloss import Emitter, MemoryOutlet
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.sdk.account import Account
from lagloss.sdk.buffer import BeaconBuffer
from lagloss.sdk.flush import Drain
from lagloss.sdk.packing import BeaconReader, Packer
from lagloss.sdk.shipper import EmitterIdentity, Shipper
from lagloss.sdk.spool import recovery
from lagloss.sdk.spool.directory import SpoolDirectory
from lagloss.sdk.spool.journal import Head, StoredFlush, entries, frame, frames
from lagloss.sdk.spool.recovery import REPORTS_SKIPPED, RecoveryThread, SpoolRecovery
from lagloss.sdk.spool.spool import Spool
from lagloss.wire.format import BeaconBlock, EmitterReport, Progress, Tally, decode_block, decode_report
from tests.unit.lagloss.sdk.test_emitter_turns import wait_for

NOW_MS = time.time_ns() // 1_000_000
START_S = NOW_MS // 60_000 * 60
Place = tuple[str, int]
"""Checkpoint and window."""
NEVER = float("inf")


class FlakyLog(MemoryOutlet):
    """A log that acknowledges a number of blocks, and then no more until it may again."""

    allowance = NEVER

    def poll(self, timeout_s: float) -> None:
        waiting = self._waiting
        while waiting and (self.allowance or waiting[0].topic == REPORTS):
            self.allowance -= waiting[0].topic == BEACONS
            self._waiting = deque([waiting.popleft()])
            super().poll(timeout_s)
        self._waiting = waiting


class Disk:
    """Calls of the operating system that fail: from some `write` on if it is full, each read if it is unreadable, else
    when data are to reach the disk, and then, if it is `stuck`, also when they are to be taken back."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.fault = "none"
        self.writes = 0
        """Before it is full."""
        self._real = os.write, os.fdatasync, os.ftruncate, os.pread
        self._is_synced = True
        for call in (self.write, self.fdatasync, self.ftruncate, self.pread):
            patch.setattr(f"lagloss.sdk.spool.directory.os.{call.__name__}", call)

    def write(self, descriptor: int, data: bytes) -> int:
        if self.fault == "full":
            if not self.writes:
                raise OSError(errno.ENOSPC, "no space left on device")
            self.writes -= 1
        return self._real[0](descriptor, data)

    def fdatasync(self, descriptor: int) -> None:
        self._is_synced = self.fault not in ("failing", "stuck")
        if not self._is_synced:
            raise OSError(errno.EIO, "input/output error")
        self._real[1](descriptor)

    def ftruncate(self, descriptor: int, length: int) -> None:
        if self.fault == "stuck" and not self._is_synced:
            raise OSError(errno.EIO, "input/output error")
        self._real[2](descriptor, length)

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        if self.fault == "unreadable":
            raise OSError(errno.EIO, "input/output error")
        return self._real[3](descriptor, length, offset)


class Life:
    """A process of a node, turn by turn, and its spool; what it puts in is remembered."""

    def __init__(
        self, below: Path, log: MemoryOutlet, *, max_bytes: int = 1 << 30, resumes: bool = False, final: bool = True
    ) -> None:
        self.log = log
        self.identity = EmitterIdentity("clicks", "mid", os.urandom(16), "host:1", NOW_MS - 5_000, resumes)
        self.directory = SpoolDirectory.made(below, "clicks", "mid", self.identity.emitter)
        self.account = Account("mid", final=final)
        self.errors: list[Exception] = []
        head = Head(self.identity, final)
        self.spool = Spool(self.directory, head, self.account, self.errors.append, segment_bytes=3_000)
        self.shipper = Shipper(self.identity, log, self.account)
        self.buffer = BeaconBuffer(1_000_000)
        packer = Packer("clicks", "mid", self.identity.emitter, first=False)
        self.drain = Drain(self.buffer, BeaconReader(keep_ids=False), packer, self.errors.append)
        self.now_ms = NOW_MS
        self.durable: Counter[Place] = Counter()
        self.fleeting: Counter[Place] = Counter()
        self.reported: dict[Place, int] = {}

    def observe(self, beacons: int, windows_ago: int) -> None:
        start_s = START_S - 60 * windows_ago
        for number in range(beacons):
            self.buffer.values.extend(("in", f"{self.drain.taken}-{number}", start_s * 1000, NOW_MS * 10**6, None))

    def put(self) -> None:
        if not self.spool.make_room(self.shipper.report_seq):
            return
        self.note_durable()
        self.now_ms += 1_000
        flush = self.drain.take(self.now_ms, (), 8, 1 << 32)
        is_durable = self.spool.put(flush, self.shipper.report_seq)
        for block in flush.blocks:
            self.fleeting[f"mid.{block.increment.key.place}", block.increment.key.window_start] += (
                block.increment.beacons
            )
        assert not flush.blocks or is_durable == self.spool.is_durable
        self.note_durable()

    def note_durable(self) -> None:
        if self.spool.is_durable:
            self.durable += self.fleeting
            self.fleeting.clear()

    def ship(self, *, report: bool = True, until: Callable[[], float] = lambda: NEVER) -> bool:
        flush = self.spool.head()
        positions = None if flush is None else self.shipper.ship(flush, until=until)
        if flush is None or positions is None:
            return False
        self.spool.shipped(flush, positions)
        if (report or self.spool.wants_report) and self.shipper.report():
            self.spool.reported(self.shipper.report_seq)
            self.note_durable()
        return True

    def ship_part(self, log: FlakyLog, blocks: int) -> None:
        """Ship the oldest flush, of which the log acknowledges so many blocks at most for now."""
        log.allowance = blocks
        try:
            self.ship(report=False, until=lambda: NEVER if log.allowance else -NEVER)
        finally:
            log.allowance = NEVER

    def die(self) -> None:
        self.spool.close(settled=False)


def settle(below: Path, log: MemoryOutlet) -> None:
    for found in SpoolDirectory.abandoned(below, "clicks", "mid"):
        identity = EmitterIdentity(*found.owner, "unknown", 0)
        settled = SpoolRecovery(found.path, identity, log, lambda: False)
        assert settled.settle()
        found.remove()


def blocks_once(log: MemoryOutlet, emitter: bytes) -> list[BeaconBlock]:
    """The emitter's blocks as the aggregator counts them."""
    blocks = [decode_block(value) for value in log.values(BEACONS)]
    return list({block.seq: block for block in blocks if block.emitter == emitter}.values())


def reports(log: MemoryOutlet, emitter: bytes) -> list[EmitterReport]:
    found = [decode_report(value) for value in log.values(REPORTS)]
    return [report for report in found if report.emitter == emitter]


def newest(log: MemoryOutlet, emitter: bytes) -> dict[Place, Tally]:
    return {(tally.checkpoint, tally.window_start): tally for r in reports(log, emitter) for tally in r.tallies}


def in_log(log: MemoryOutlet, emitter: bytes) -> Counter[Place]:
    found: Counter[Place] = Counter()
    for block in blocks_once(log, emitter):
        found[block.checkpoint, block.window_start] += block.count
    return found


def assert_ranges_cover_the_blocks(log: MemoryOutlet, emitter: bytes, tallied: Container[Place]) -> None:
    places: Counter[int] = Counter()
    seen: dict[int, bool] = {}
    tallies = newest(log, emitter)
    for topic, partition, _, value in log.records:
        if topic != BEACONS:
            continue
        offset = places[partition]
        places[partition] += 1
        block = decode_block(value)
        if block.emitter == emitter and (block.checkpoint, block.window_start) in tallied:
            ranges = tallies[block.checkpoint, block.window_start].ranges
            covered = any(r.partition == partition and r.first <= offset <= r.last for r in ranges)
            seen[block.seq] = seen.get(block.seq, False) or covered
    assert all(seen.values())


@settings(max_examples=200)
@given(st.integers(0, 2**32))
def test_after_a_crash_at_any_time_what_was_flushed_is_in_the_log_once_and_in_the_tallies(seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as below:
        log = FlakyLog()
        life = Life(Path(below), log)
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(patch)
            patch.setattr("lagloss.sdk.spool.spool.RETRY_S", 0.0)
            for _ in range(chance.randrange(80)):
                match chance.choices(("observe", "put", "ship", "ship part", "disk"), (6, 6, 4, 2, 2))[0]:
                    case "observe":
                        life.observe(chance.randint(1, 40), chance.randint(0, 3))
                    case "put":
                        life.put()
                    case "ship":
                        with suppress(OSError):
                            life.ship(report=chance.random() < 0.5)
                    case "ship part":
                        with suppress(OSError):
                            life.ship_part(log, chance.randint(0, 5))
                    case "disk":
                        disk.fault = chance.choice(("none", "none", "full", "failing", "stuck", "unreadable"))
                        disk.writes = chance.randint(0, 3)
        before = newest(log, life.identity.emitter)
        life.die()
        is_known = any(
            isinstance(entry, StoredFlush)
            for file in life.directory.path.glob("*.log")
            for entry in entries(file.read_bytes())
        )
        settle(Path(below), log)
        emitter = life.identity.emitter
        found, tallies = in_log(log, emitter), newest(log, emitter)
        for place, beacons in found.items():
            assert life.durable[place] <= beacons <= life.durable[place] + life.fleeting[place]
            assert not is_known or life.fleeting[place] or tallies[place].beacons == beacons
        assert set(life.durable) <= set(tallies)
        assert set(life.durable) <= set(found)
        assert all(tally.dropped == 0 for tally in tallies.values())
        assert all(tallies[place].beacons >= tally.beacons for place, tally in before.items())
        assert_ranges_cover_the_blocks(log, emitter, life.durable.keys() - life.fleeting.keys())
        told = reports(log, emitter)
        assert [report.seq for report in told] == sorted({report.seq for report in told})
        assert not is_known or told[-1].closed
        assert not list(Path(below).iterdir())


@settings(max_examples=50)
@given(st.integers(0, 400), st.integers(0, 3), st.integers(0, 40), st.booleans())
def test_a_flush_that_a_full_disk_refused_is_spooled_later_though_a_part_of_it_was_shipped(
    before: int, blocks: int, after: int, reported: bool
) -> None:
    with tempfile.TemporaryDirectory() as below, pytest.MonkeyPatch.context() as patch:
        patch.setattr("lagloss.sdk.spool.spool.RETRY_S", 0.0)
        log = FlakyLog()
        life = Life(Path(below), log)
        life.observe(before, windows_ago=0)
        life.put()
        life.ship(report=reported)
        with pytest.MonkeyPatch.context() as full:
            Disk(full).fault = "full"
            for windows_ago in range(4):
                life.observe(50, windows_ago)
            life.put()
            life.ship_part(log, blocks)
            life.put()
        assert sum(life.durable.values()) == before
        life.observe(after, windows_ago=0)
        life.put()
        assert sum(life.durable.values()) == before + 200 + after
        life.die()
        settle(Path(below), log)
        emitter = life.identity.emitter
        assert in_log(log, emitter) == life.durable
        assert {place: tally.beacons for place, tally in newest(log, emitter).items()} == life.durable


def test_what_cannot_be_read_for_a_while_is_sent_afterwards(tmp_path: Path) -> None:
    log = MemoryOutlet()
    life = Life(tmp_path, log, final=False)
    for _ in range(5):
        life.observe(10, windows_ago=0)
        life.put()
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch).fault = "unreadable"
        for _ in range(2):
            with pytest.raises(OSError, match="input/output"):
                life.ship()
    while life.ship():
        pass
    assert sum(in_log(log, life.identity.emitter).values()) == 50
    assert not any(report.closed for report in reports(log, life.identity.emitter))
    life.die()


def test_an_emitter_that_cannot_read_its_spool_leaves_all_of_it_to_another_process(tmp_path: Path) -> None:
    log = MemoryOutlet(down=True)
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        emitter = Emitter("clicks", "mid", outlet=lambda: log, spool=tmp_path)
        for name in ("a", "b", "c"):
            emitter.received(name, NOW_MS)
            mark = emitter.mark()
            emitter.request_flush()
            wait_for(lambda: emitter.acknowledged(mark))  # noqa: B023
        disk.fault = "unreadable"
        log.down = False
        emitter.received("d", NOW_MS)
        assert not emitter.close(timeout_s=5)
    settle(tmp_path, log)
    assert sum(block.count for block in blocks_once(log, emitter.id)) == 4
    assert [tally.dropped for tally in newest(log, emitter.id).values()] == [0]


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_file_that_was_to_be_reported_before_more_was_shipped_stays(tmp_path: Path, beyond: int) -> None:
    log = MemoryOutlet()
    life = Life(tmp_path, log)
    while not list(life.directory.path.glob("00000003.log")):
        life.observe(100, windows_ago=0)
        life.put()
    ends = life.spool._segments[0].last
    while (flush := life.spool.head()) is not None and flush.number <= ends + beyond:
        positions = life.shipper.ship(flush)
        assert positions is not None
        life.spool.shipped(flush, positions)
    assert life.spool.wants_report
    assert life.shipper.report()
    life.spool.reported(life.shipper.report_seq)
    assert (life.directory.path / "00000001.log").exists() == (beyond > 0)
    life.die()
    settle(tmp_path, log)
    emitter = life.identity.emitter
    assert in_log(log, emitter) == life.durable
    assert {place: tally.beacons for place, tally in newest(log, emitter).items()} == life.durable


@settings(max_examples=50)
@given(st.integers(0, 2**32))
def test_a_damaged_byte_costs_one_block_at_most_and_that_is_counted(seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as below:
        log = MemoryOutlet()
        life = Life(Path(below), log)
        for _ in range(chance.randrange(1, 12)):
            life.observe(chance.randrange(1, 60), chance.randrange(3))
            life.put()
            if chance.random() < 0.4:
                life.ship(report=chance.random() < 0.5)
        emitter = life.identity.emitter
        final_before = max((report.final_through for report in reports(log, emitter)), default=0)
        files = [file for file in sorted(life.directory.path.iterdir()) if file.stat().st_size]
        at_life = chance.random() < 0.5
        if files:
            file = chance.choice(files)
            data = bytearray(file.read_bytes())
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            file.write_bytes(data)
        if at_life:
            while life.ship():
                pass
            assert not any(isinstance(error, AssertionError) for error in life.errors)
        life.die()
        settle(Path(below), log)
        found, tallies = in_log(log, emitter), newest(log, emitter)
        last = reports(log, emitter)[-1]
        for place, beacons in life.durable.items():
            told = tallies.get(place)
            # Either the numbers tell what is missing, or the window is no longer claimed to be complete.
            is_exact = told is not None and found[place] + told.dropped == beacons and told.beacons == found[place]
            assert is_exact or last.final_through < place[1] + 60, (place, beacons, found[place], told, final_before)


def test_frames_are_found_again_around_any_damage() -> None:
    data = b"".join(frame(b"B", bytes([n]) * 50) for n in range(5))
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]
        whole = [bytes(found.payload)[0] for found in frames(damaged)]
        assert whole == [n for n in range(5) if n != at // (len(data) // 5)]


@pytest.mark.parametrize("set_back_ms", [0, 600_000])
def test_the_closing_report_of_a_host_that_observes_again_claims_all(tmp_path: Path, set_back_ms: int) -> None:
    log = MemoryOutlet()
    life = Life(tmp_path, log, resumes=True)
    life.observe(3, windows_ago=2)
    life.put()
    life.now_ms += 20_000 - set_back_ms
    life.put()
    life.die()
    settle(tmp_path, log)
    last = reports(log, life.identity.emitter)[-1]
    assert last.seq > REPORTS_SKIPPED
    assert (last.closed, last.sent_at, last.final_through) == (True, life.now_ms, life.now_ms // 1000)
    assert last.unfinished  # what it had in flight is observed again later


@pytest.mark.parametrize("is_quiet", [False, True])
@given(last_s=st.integers(0, 119), found_after_s=st.integers(-150, 300))
def test_a_window_in_which_an_emitter_may_have_died_is_not_complete(
    is_quiet: bool, last_s: int, found_after_s: int
) -> None:
    log, last_ms = MemoryOutlet(), (START_S + last_s) * 1000
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "now_ms", lambda: last_ms + 1000 * found_after_s)
        life = Life(Path(made), log)
        if not is_quiet:
            life.observe(3, windows_ago=2)
        life.now_ms = last_ms - 1000
        life.put()
        life.ship()
        life.die()
        settle(Path(made), log)
    last = reports(log, life.identity.emitter)[-1]
    assert last.closed
    died_s = (last_ms // 1000 + min(0, found_after_s), last_ms // 1000 + max(0, min(60, found_after_s)))
    for start_s in range(START_S - 180, START_S + 360, 60):
        may_have_died = start_s <= died_s[1] and died_s[0] < start_s + 60
        is_incomplete = start_s + 60 <= last.sent_at // 1000 and last.final_through < start_s + 60
        was_changed = not is_quiet and START_S - 120 <= start_s <= died_s[0]
        assert is_incomplete == (may_have_died or was_changed), start_s


@pytest.mark.parametrize("resumes", [False, True])
def test_the_accounts_of_the_dead_are_closed_at_once_as_unfinished(tmp_path: Path, resumes: bool) -> None:
    log = MemoryOutlet()
    lives = [Life(tmp_path, log, resumes=resumes), Life(tmp_path, log, resumes=resumes)]
    for life in lives:
        life.observe(3, windows_ago=0)
        life.put()
        life.die()
    thread = RecoveryThread(tmp_path, lambda: log)
    thread.start()
    wait_for(lambda: not list(tmp_path.iterdir()))
    thread.stop()
    for life in lives:
        assert blocks_once(log, life.identity.emitter)
        last = reports(log, life.identity.emitter)[-1]
        assert (last.closed, last.unfinished) == (True, True)


def test_the_account_of_one_that_was_never_final_is_not_so_once_it_is_settled(tmp_path: Path) -> None:
    log = MemoryOutlet()
    life = Life(tmp_path, log, resumes=True, final=False)
    life.observe(3, windows_ago=0)
    life.put()
    life.die()
    settle(tmp_path, log)
    (last,) = reports(log, life.identity.emitter)
    assert (last.closed, last.final_through, [tally.beacons for tally in last.tallies]) == (True, 0, [3])


class NoLanes:
    def snapshot(self) -> tuple[Progress, ...]:
        return ()


@pytest.mark.parametrize(("resumes", "follows"), [(True, False), (False, True), (False, False)])
def test_what_is_spooled_is_acknowledged_only_if_nobody_else_would_read_on_behind_it(
    tmp_path: Path, resumes: bool, follows: bool
) -> None:
    log = MemoryOutlet(down=True)
    with Emitter("clicks", "mid", outlet=lambda: log, spool=tmp_path, resumes=resumes) as emitter:
        if follows:
            emitter.follow(NoLanes())
        emitter.received("m", NOW_MS)
        mark = emitter.mark()
        emitter.request_flush()
        wait_for(lambda: emitter.stats().buffered == 0 and emitter.stats().spooled_bytes > 0)
        later = emitter.mark()
        emitter.request_flush()
        wait_for(lambda: emitter.mark() > later)  # the first flush is put away
        assert emitter.acknowledged(mark) == (not resumes and not follows)
        log.down = False
        wait_for(lambda: emitter.acknowledged(mark))


def test_an_orderly_end_with_work_in_flight_leaves_neither_a_spool_nor_an_open_account(tmp_path: Path) -> None:
    log = MemoryOutlet()
    emitter = Emitter("clicks", "mid", outlet=lambda: log, spool=tmp_path, resumes=True)
    emitter.processing()
    emitter.received("m", NOW_MS)
    assert emitter.close(finished=False)
    last = reports(log, emitter.id)[-1]
    assert (last.closed, last.unfinished, last.resumes) == (True, True, True)
    assert not list(tmp_path.iterdir())


def test_an_emitter_that_ends_while_nobody_answers_is_closed_by_the_next_one_with_all_it_observed(
    tmp_path: Path,
) -> None:
    log = MemoryOutlet(down=True)
    with Emitter("clicks", "mid", outlet=lambda: log, spool=tmp_path) as dead:
        dead.received("m", NOW_MS)
        mark = dead.mark()
        dead.request_flush()
        wait_for(lambda: dead.acknowledged(mark))
        dead.received("n", NOW_MS)
        assert not dead.close(timeout_s=1)
    log.down = False
    assert log.records == []
    with Emitter("clicks", "mid", outlet=lambda: log, spool=tmp_path):
        wait_for(lambda: bool(reports(log, dead.id)))
    assert sum(block.count for block in blocks_once(log, dead.id)) == 2
    (last,) = reports(log, dead.id)
    assert (last.closed, last.unfinished) == (True, False)
    assert [(tally.beacons, tally.dropped) for tally in last.tallies] == [(2, 0)]
    assert last.final_through * 1000 >= NOW_MS - 1000
    assert not list(tmp_path.iterdir())


def test_a_spool_takes_what_memory_has_no_room_for_and_stops_at_its_size(tmp_path: Path) -> None:
    log = MemoryOutlet(down=True)
    with Emitter("clicks", "mid", outlet=lambda: log, spool=tmp_path, max_buffered=10, spool_bytes=4_000) as emitter:
        observed = 0
        while emitter.stats().spooled_bytes < 4_000:
            observed += sum(emitter.received(f"m{observed}", NOW_MS) for _ in range(10))
            mark = emitter.mark()
            emitter.request_flush()
            wait_for(lambda mark=mark: emitter.acknowledged(mark))  # type: ignore[misc]
        refused = sum(not emitter.received("m", NOW_MS) for _ in range(25))
        assert refused >= 15
        log.down = False
        assert emitter.flush()
        stats = emitter.stats()
        assert (stats.dropped, stats.sent) == (refused, observed + 25 - refused)
        assert stats.spooled_bytes < 20_000
    (tally,) = newest(log, emitter.id).values()
    assert (tally.beacons, tally.dropped) == (stats.sent, stats.dropped)


def test_a_disk_that_was_full_for_a_moment_while_the_broker_is_away_takes_what_waits_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lagloss.sdk.spool.spool.RETRY_S", 0.05)
    log = MemoryOutlet(down=True)
    with Emitter("clicks", "mid", outlet=lambda: log, spool=tmp_path, max_buffered=10) as emitter:
        with monkeypatch.context() as full:
            Disk(full).fault = "full"
            assert all(emitter.received(f"a{number}", NOW_MS) for number in range(5))
            mark = emitter.mark()
            emitter.request_flush()
            wait_for(lambda: emitter.stats().errors > 1)
            assert not emitter.acknowledged(mark)
        for flush in range(4):
            emitter.request_flush()
            wait_for(lambda: emitter.stats().buffered == 0)
            assert all(emitter.received(f"b{flush}-{number}", NOW_MS) for number in range(10))
        wait_for(lambda: emitter.acknowledged(mark))
        assert not log.records
        log.down = False
        assert emitter.flush()
        assert (emitter.stats().sent, emitter.stats().dropped) == (45, 0)
    (tally,) = newest(log, emitter.id).values()
    assert (tally.beacons, tally.dropped) == (45, 0)


def test_a_directory_that_cannot_be_written_leaves_the_host_with_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    log = MemoryOutlet()
    with Emitter("clicks", "mid", outlet=lambda: log, spool=tmp_path / "file") as emitter:
        assert emitter.received("m", NOW_MS)
        assert emitter.flush()
        assert emitter.stats().sent == 1
        assert emitter.stats().errors >= 1
    assert len(caplog.records) <= 2
    assert reports(log, emitter.id)[-1].closed


def test_two_processes_of_a_node_share_a_directory_and_nobody_takes_a_living_one_for_dead(tmp_path: Path) -> None:
    log = MemoryOutlet()
    with (
        Emitter("clicks", "mid", outlet=lambda: log, spool=tmp_path) as one,
        Emitter("clicks", "mid", outlet=lambda: log, spool=tmp_path) as other,
    ):
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        assert list(SpoolDirectory.abandoned(tmp_path, "clicks", "mid")) == []
        assert one.flush()
        assert other.flush()
        assert not any(report.closed for report in [*reports(log, one.id), *reports(log, other.id)])
    assert not list(tmp_path.iterdir())
