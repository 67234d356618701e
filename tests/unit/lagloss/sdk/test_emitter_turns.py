"""The emitter on a log in memory: order, bounds, and what it swallows."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from lagloss import Emitter, MemoryOutlet
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.sdk.packing import MAX_PAYLOAD_BYTES
from lagloss.wire.checks import check_block, read_report
from lagloss.wire.format import (
    MAX_TIME_MS,
    SAMPLE_ALL,
    BeaconBlock,
    EmitterReport,
    Progress,
    decode_block,
    decode_report,
)

GARBAGE_OF_THE_PARENT = """
import gc, os, threading, time
from confluent_kafka.admin import AdminClient
from lagloss import Emitter, MemoryOutlet

class Host:
    pass

gc.disable()
host = Host()
host.itself, host.client = host, AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
emitter = Emitter("clicks", "mid", outlet=MemoryOutlet)
del host
time.sleep(0.3)  # until the client's threads run
child = os.fork()
if child == 0:
    emitter.received("m", time.time_ns() // 1_000_000)
    threads = [threading.Thread(target=time.sleep, args=(0.5,)) for _ in range(16)]
    for thread in threads:
        thread.start()  # on a stack of the client's threads
    gc.collect()
    for thread in threads:
        thread.join()
    os._exit(0 if emitter.close() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@pytest.fixture
def log() -> MemoryOutlet:
    return MemoryOutlet()


@pytest.fixture
def emitter(log: MemoryOutlet) -> Iterator[Emitter]:
    with Emitter("clicks", "mid", outlet=lambda: log) as emitter:
        yield emitter


@pytest.fixture
def now_ms() -> int:
    return time.time_ns() // 1_000_000


def blocks(log: MemoryOutlet) -> list[BeaconBlock]:
    return [decode_block(value) for value in log.values(BEACONS)]


def reports(log: MemoryOutlet) -> list[EmitterReport]:
    return [decode_report(value) for value in log.values(REPORTS)]


def wait_for(condition: object, timeout_s: float = 10) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_importing_lagloss_brings_none_of_the_services_with_it() -> None:
    heavy = ("pyspark", "sqlalchemy", "dash", "fastapi", "numba")
    script = f"import sys, lagloss; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Lane:
    """A lane whose progress is the number of messages said to be taken in."""

    def __init__(self) -> None:
        self.taken = 0

    def snapshot(self) -> Sequence[Progress]:
        return [Progress("mid.in", "t/0", self.taken)]


def test_no_report_claims_progress_past_the_beacons_in_the_log_and_in_its_tallies(
    emitter: Emitter, log: MemoryOutlet, now_ms: int
) -> None:
    lane, stop = Lane(), threading.Event()
    emitter.follow(lane)

    def serve() -> None:
        while not stop.is_set():
            emitter.received(f"m{lane.taken}", now_ms)
            lane.taken += 1
            if lane.taken % 100 == 0:
                time.sleep(0.001)  # a caller that never rests would fill the buffer, and this is not about that

    thread = threading.Thread(target=serve)
    thread.start()
    for _ in range(20):
        assert emitter.flush()
    stop.set()
    thread.join()
    in_log = tallied = checked = 0
    for topic, _, _, value in log.records:
        if topic == BEACONS:
            in_log += decode_block(value).count
            continue
        report = decode_report(value)
        for tally in report.tallies:
            tallied = tally.beacons
        for progress in report.progress:
            assert progress.until <= tallied <= in_log
            checked += progress.until > 0
    assert checked > 5


def test_progress_and_final_through_stand_still_until_the_broker_acknowledges(
    emitter: Emitter, log: MemoryOutlet, now_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lagloss.sdk.shipper.IDLE_REPORT_S", 0.0)
    assert emitter.flush()
    before = reports(log)[-1]
    log.down = True
    emitter.received("m", now_ms)
    mark = emitter.mark()
    emitter.request_flush()
    wait_for(lambda: int(time.time()) > before.final_through)
    assert not emitter.acknowledged(mark)
    log.down = False
    assert emitter.flush()
    heartbeats = [report for report in reports(log)[before.seq :] if not report.tallies]
    assert {report.final_through for report in heartbeats[:1]} <= {before.final_through}
    assert reports(log)[-1].final_through > before.final_through
    assert emitter.acknowledged(mark)


def test_what_overflows_is_counted_in_its_window_and_checkpoint(log: MemoryOutlet, now_ms: int) -> None:
    log.down = True
    with Emitter("clicks", "mid", outlet=lambda: log, max_buffered=10) as emitter:
        assert sum(emitter.received(f"m{i}", now_ms) for i in range(25)) == 10
        assert not emitter.sent("m", now_ms - 60_000, to="x")
        assert not emitter.filtered("m", now_ms, "robot", replay="r")
        assert not emitter.received("m", 10**500)
        log.down = False
        assert emitter.flush()
    found = {(t.checkpoint, t.replay): (t.beacons, t.dropped) for report in reports(log) for t in report.tallies}
    assert found == {
        ("mid.in", None): (10, 15),
        ("mid.out:x", None): (0, 1),
        ("mid.filtered", "r"): (0, 1),
    }


def test_threads_that_overflow_together_are_counted_exactly(log: MemoryOutlet, now_ms: int) -> None:
    log.down = True
    with Emitter("clicks", "mid", outlet=lambda: log, max_buffered=1_000) as emitter:
        taken: list[int] = []

        def serve() -> None:
            taken.append(sum(emitter.received("m", now_ms) for _ in range(5_000)))

        threads = [threading.Thread(target=serve) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log.down = False
        assert emitter.flush()
        (tally,) = (reports(log)[-1]).tallies
        assert tally.beacons == sum(taken)
        assert tally.beacons + tally.dropped == 20_000


def test_bad_beacons_raise_nothing_and_are_counted(emitter: Emitter, log: MemoryOutlet, now_ms: int) -> None:
    for message_id in ("", "x" * 256, None, 7, b"raw", "\ud800"):
        emitter.received(message_id, now_ms)  # type: ignore[arg-type]
    for event_time in (None, "now", float("nan"), -1, 10**500, 0):
        emitter.received("m", event_time)  # type: ignore[arg-type]
    for to in ("", "a.b", 7, ["x"], "x" * 101):
        assert not emitter.sent("m", now_ms, to=to)  # type: ignore[arg-type]
    emitter.received("m", now_ms, payload_crc=-1)
    emitter.received("m", now_ms, observed_at=float("inf"))
    emitter.dead_lettered("good", now_ms, object())  # type: ignore[arg-type]
    assert emitter.flush()
    stats = emitter.stats()
    assert (stats.dropped, stats.unplaced, stats.sent, stats.errors) == (8, 11, 1, 0)
    assert emitter.stats() == stats
    assert sum(tally.dropped for tally in reports(log)[-1].tallies) == 8


def test_nothing_that_a_caller_says_makes_a_record_that_is_refused(now_ms: int) -> None:
    """A refused report would mute the emitter: its next one carries the same tally."""
    outlet = MemoryOutlet()
    with Emitter("orders", "mid", first=True, outlet=lambda: outlet) as emitter:
        for at, replay in enumerate(["\0", "", "x" * 501, "\ud800", 7]):
            emitter.dead_lettered(f"{at}", now_ms, "r\0", replay=replay)  # type: ignore[arg-type]
        for at, size in enumerate([-1, MAX_PAYLOAD_BYTES + 1, 1 << 70, "x"]):
            emitter.received(f"size-{at}", now_ms, payload_bytes=size)  # type: ignore[arg-type]
        for at in range(1_025):
            emitter.received(f"large-{at}", now_ms, payload_bytes=MAX_PAYLOAD_BYTES)
        for at, observed_at in enumerate([MAX_TIME_MS, -MAX_TIME_MS, MAX_TIME_MS + 1, 1e15, 1e300]):
            emitter.received(f"time-{at}", now_ms, observed_at=observed_at)
        assert emitter.flush()
        assert emitter.stats().dropped == 4 + 3
    for topic, _, key, value in outlet.records:
        if topic == REPORTS:
            read_report(value)
        else:
            check_block(key, value, now_ms, {"orders"})


def test_what_a_sample_leaves_out_is_not_dropped_and_its_tally_says_so_even_where_no_block_does(
    emitter: Emitter, log: MemoryOutlet, now_ms: int
) -> None:
    assert emitter.received("whole", now_ms)
    assert emitter.flush()
    log.sampled = 1
    assert emitter.received("left out", now_ms)
    assert emitter.sent("left out", now_ms)
    assert emitter.flush()
    assert [block.sample for block in blocks(log)] == [SAMPLE_ALL]
    tallies = {tally.checkpoint: (tally.beacons, tally.dropped, tally.sample) for tally in reports(log)[-1].tallies}
    assert tallies == {"mid.in": (1, 0, 1), "mid.out": (0, 0, 1)}
    stats = emitter.stats()
    assert (stats.sent, stats.sampled_out, stats.dropped) == (1, 2, 0)


def test_ids_are_names_or_hashes_and_nothing_else() -> None:
    with pytest.raises(ValueError, match="expected ids"):
        Emitter("clicks", "mid", outlet=MemoryOutlet, ids="secret")  # type: ignore[arg-type]


def test_the_first_node_refuses_what_comes_from_the_future_or_from_before_the_log(
    log: MemoryOutlet, now_ms: int
) -> None:
    with Emitter("clicks", "src", outlet=lambda: log, first=True) as emitter:
        assert emitter.received("m", now_ms + 59_000)
        assert not emitter.received("m", now_ms + 61_000)
        assert not emitter.received("m", now_ms - 7 * 86_400_000 - 1_000)
        assert emitter.stats().refused == 2
    with Emitter("clicks", "mid", outlet=MemoryOutlet) as inner:
        assert inner.received("m", now_ms + 61_000)


def test_work_in_hand_holds_progress_at_the_oldest_begun(emitter: Emitter, log: MemoryOutlet) -> None:
    assert emitter.flush()
    assert reports(log)[-1].progress == ()
    begun = time.time_ns() // 1_000_000
    oldest = emitter.processing()
    with emitter.processing():
        assert emitter.flush()
    (progress,) = reports(log)[-1].progress
    assert (progress.checkpoint, progress.lane) == ("mid.out", "")
    assert begun <= progress.until <= begun + 500
    wait_for(lambda: time.time_ns() // 1_000_000 > begun + 20)
    oldest.done()
    oldest.done()
    assert emitter.flush()
    assert reports(log)[-1].progress[0].until > begun + 19


def test_an_emitter_that_ends_with_work_in_flight_reports_so(emitter: Emitter, log: MemoryOutlet, now_ms: int) -> None:
    begun = time.time_ns() // 1_000_000
    work = emitter.processing()
    emitter.received("m", now_ms)
    assert emitter.close(finished=False)
    last = reports(log)[-1]
    assert (last.closed, last.unfinished) == (True, True)
    assert [(tally.checkpoint, tally.beacons) for tally in last.tallies] == [("mid.in", 1)]
    assert begun <= last.progress[0].until <= begun + 500
    work.done()
    assert not emitter.sent("m", now_ms)
    assert not emitter.acknowledged(emitter.mark()), "its host would commit what the log shows as in, and not as out"
    assert emitter.close()
    assert reports(log)[-1] == last, "it has no more to say, at exit neither"


def test_a_failing_lane_source_is_left_out_and_the_rest_goes_on(
    emitter: Emitter, log: MemoryOutlet, now_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def snapshot(self) -> Sequence[Progress]:
            raise RuntimeError("no lanes here")

    emitter.follow(Broken())
    emitter.follow(Lane())
    emitter.received("m", now_ms)
    assert emitter.flush()
    assert emitter.flush()
    assert [progress.lane for progress in reports(log)[-1].progress] == ["t/0"]
    assert emitter.stats().last_error == "RuntimeError: no lanes here"
    assert len(caplog.records) == 1


def test_an_emitter_that_is_never_final_says_zero(log: MemoryOutlet, now_ms: int) -> None:
    with Emitter("clicks", "mid", outlet=lambda: log, final=False) as emitter:
        emitter.received("m", now_ms)
        assert emitter.flush()
    assert {report.final_through for report in reports(log)} == {0}
    assert reports(log)[-1].closed


def test_closing_drops_and_reports_what_the_broker_did_not_take(now_ms: int) -> None:
    class TakesReportsOnly(MemoryOutlet):
        def poll(self, timeout_s: float) -> None:
            beacons = [record for record in self._waiting if record.topic == BEACONS]
            for record in beacons:
                self._waiting.remove(record)
            super().poll(timeout_s)
            self._waiting.extendleft(reversed(beacons))

    log = TakesReportsOnly()
    emitter = Emitter("clicks", "mid", outlet=lambda: log)
    emitter.received("m", now_ms)
    assert emitter.close(timeout_s=1)
    last = reports(log)[-1]
    assert last.closed
    assert [(tally.beacons, tally.dropped) for tally in last.tallies] == [(0, 1)]
    assert not emitter.received("m", now_ms)
    assert emitter.stats().refused == 1


def test_without_an_address_it_does_nothing_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, now_ms: int
) -> None:
    monkeypatch.delenv("LAGLOSS_KAFKA_BOOTSTRAP", raising=False)
    with Emitter("clicks", "mid") as emitter:
        assert not emitter.received("m", now_ms)
        assert emitter.flush()
        assert emitter.acknowledged(emitter.mark())
        with emitter.processing():
            pass
    assert len(caplog.records) == 1


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a.b", "x" * 101])
def test_a_name_that_checkpoints_cannot_be_built_with_is_an_error_at_once(name: str) -> None:
    with pytest.raises(ValueError, match="expected a name"):
        Emitter("clicks", name, outlet=MemoryOutlet)


@FORKS
def test_a_multiprocessing_child_closes_its_emitter_though_it_leaves_without_atexit(now_ms: int) -> None:
    read_end, write_end = os.pipe()

    class Told(MemoryOutlet):
        def close(self) -> None:
            last = reports(self)[-1]
            os.write(write_end, bytes([last.closed, sum(block.count for block in blocks(self))]))

    with Emitter("clicks", "mid", outlet=Told) as emitter:
        child = multiprocessing.get_context("fork").Process(target=emitter.received, args=("m", now_ms))
        child.start()
        child.join(10)
        assert child.exitcode == 0
        assert os.read(read_end, 2) == b"\x01\x01"
    assert os.read(read_end, 2) == b"\x01\x00"


@FORKS
def test_a_forked_child_that_observes_nothing_is_no_emitter(emitter: Emitter) -> None:
    child = os.fork()
    if child == 0:
        os._exit(threading.active_count() - 1)
    assert os.waitpid(child, 0)[1] == 0


@FORKS
def test_lanes_that_a_forked_child_follows_before_its_first_beacon_are_reported() -> None:
    class Lanes:
        def snapshot(self) -> Sequence[Progress]:
            return [Progress("mid.in", "orders/0", 7)]

    log = MemoryOutlet()
    with Emitter("clicks", "mid", outlet=lambda: log) as emitter:
        child = os.fork()
        if child == 0:
            emitter.follow(Lanes())  # as a consumer does that is made here
            emitter.close()
            lanes = [lane.lane for report in reports(log) if report.emitter == emitter.id for lane in report.progress]
            os._exit(0 if lanes == ["orders/0"] else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_forked_child_outlives_a_client_that_is_garbage_of_its_parent() -> None:
    words = [sys.executable, "-c", GARBAGE_OF_THE_PARENT]
    host = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert host.stdout == "0\n"
