"""The emitter against a real broker: what lies in the log is what was put in, and the reports say so."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections import Counter

import numpy as np
import psutil
import pytest

from lagloss import Emitter
from lagloss.broker.topics import create_topics
from lagloss.wire.format import block_key, hash_id, partition_of, unpack_ids
from lagloss.wire.sketch import Sketch
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from tests.support.kafka_log import blocks_of, in_ranges, newest_tallies, reports_of, wait_for

PARTITIONS = 8


@pytest.fixture
def bootstrap(kafka_bootstrap: str) -> str:
    create_topics(kafka_bootstrap, PARTITIONS)
    return kafka_bootstrap


@pytest.fixture
def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_blocks_hold_what_was_put_in_and_lie_where_the_tallies_say(bootstrap: str, now_ms: int) -> None:
    put_in: Counter[tuple[str, int, str, float]] = Counter()
    with Emitter("it-clicks", "src", bootstrap, first=True) as emitter:
        for i in range(5_000):
            message_id, event_ms = f"m-{uuid.uuid4().hex[: i % 20 + 4]}é{i}", now_ms - 7 * i
            assert emitter.received(message_id, event_ms, observed_at=event_ms + i % 100)
            assert emitter.sent(message_id, event_ms, observed_at=event_ms + 250)
            put_in["src.in", event_ms, message_id, i % 100] += 1
            put_in["src.out", event_ms, message_id, 250] += 1
        assert emitter.flush()
        stored, reports = blocks_of(bootstrap, emitter.id), reports_of(bootstrap, emitter.id)

    found: Counter[tuple[str, int, str, float]] = Counter()
    names = {hash_id(name): (name, event_ms) for _, event_ms, name, _ in put_in}
    for at in stored:
        block = at.block
        assert at.key == block_key("it-clicks", block.window_start)
        assert {partition_of(int(h), PARTITIONS) for h in block.id_hash} == {at.partition}
        assert block.partitions == PARTITIONS
        if block.checkpoint == "src.in":
            assert block.event_offset_ms is not None
            assert block.message_ids is not None
            ids = [raw.decode() for raw in unpack_ids(block.message_ids, range(block.count))]
            events = (block.window_start * 1000 + block.event_offset_ms.astype(np.int64)).tolist()
        else:
            assert block.event_offset_ms is None
            assert block.message_ids is None
            ids, events = zip(*(names[int(h)] for h in block.id_hash), strict=True)
        for name, event_ms, lag_ms in zip(ids, events, block.lag_ms.tolist(), strict=True):
            assert event_ms // 60_000 * 60 == block.window_start
            found[block.checkpoint, event_ms, name, lag_ms] += 1
    assert found == put_in
    assert sorted(at.block.seq for at in stored) == list(range(1, len(stored) + 1))

    tallies = newest_tallies(reports)
    for (checkpoint, _, window_start), tally in tallies.items():
        mine = [at for at in stored if (at.block.checkpoint, at.block.window_start) == (checkpoint, window_start)]
        hashes = np.concatenate([at.block.id_hash for at in mine])
        assert tally.beacons == hashes.size
        assert tally.id_sum % 2**64 == sum(hashes.tolist()) % 2**64
        assert tally.dropped == 0
        expected = Sketch.of(np.concatenate([at.block.lag_ms for at in mine]))
        assert tally.lag_sketch.bins() == expected.bins()
        assert all(in_ranges(tally.ranges, at.partition, at.offset) for at in mine)
        ends = {(place.partition, edge) for place in tally.ranges for edge in (place.first, place.last)}
        assert ends <= {(at.partition, at.offset) for at in mine}
    assert sum(tally.beacons for tally in tallies.values()) == 10_000


def test_tallies_are_cumulative_and_the_closing_report_comes_last(bootstrap: str, now_ms: int) -> None:
    emitter = Emitter("it-clicks", "mid", bootstrap)
    event_ms = now_ms // 60_000 * 60_000 - 60_000
    for round_ in range(3):
        for i in range(10):
            emitter.received(f"{round_}-{i}", event_ms)
        emitter.filtered(f"{round_}-0", event_ms, "robot")
        emitter.received(f"{round_}-1", event_ms, replay="second try")
        assert emitter.flush()
    assert emitter.close(timeout_s=10)
    assert emitter.close()
    reports = reports_of(bootstrap, emitter.id)
    of_in = [t.beacons for r in reports for t in r.tallies if t.checkpoint == "mid.in" and t.replay is None]
    assert of_in == sorted(of_in)
    assert {key[:2]: tally.beacons for key, tally in newest_tallies(reports).items()} == {
        ("mid.in", None): 30,
        ("mid.filtered", None): 3,
        ("mid.in", "second try"): 3,
    }
    assert [report.seq for report in reports] == list(range(1, len(reports) + 1))
    assert [report.closed for report in reports] == [False] * (len(reports) - 1) + [True]
    assert reports[-1].final_through * 1000 >= now_ms - 1000
    assert {at.block.reason for at in blocks_of(bootstrap, emitter.id)} == {None, "robot"}
    assert not emitter.received("late", event_ms)
    assert emitter.stats().refused == 1


def test_a_mark_is_acknowledged_once_the_log_holds_what_came_before(bootstrap: str, now_ms: int) -> None:
    with Emitter("it-clicks", "mid", bootstrap) as emitter:
        emitter.received("a", now_ms)
        mark = emitter.mark()
        emitter.request_flush()
        wait_for(lambda: emitter.acknowledged(mark), what="acknowledgement")
        assert [at.block.count for at in blocks_of(bootstrap, emitter.id)] == [1]
        assert not emitter.acknowledged(emitter.mark() + 1)


def test_a_small_report_size_makes_parts_of_which_only_the_last_moves_final_through(
    bootstrap: str, now_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lagloss.sdk.shipper.MAX_REPORT_BYTES", 300)
    with Emitter("it-clicks", "mid", bootstrap) as emitter:
        assert emitter.flush()
        before = reports_of(bootstrap, emitter.id)[-1]
        with emitter.processing():
            wait_for(lambda: time.time() > before.final_through + 1, what="another second")
            for minute in range(12):
                emitter.received("x", now_ms - minute * 60_000)
            assert emitter.flush()
        parts = reports_of(bootstrap, emitter.id)[before.seq :]
        with_tallies = [part for part in parts if part.tallies]
        assert len(with_tallies) > 3
        assert sum(len(part.tallies) for part in with_tallies) == 12
        assert {part.final_through for part in with_tallies[:-1]} == {before.final_through}
        assert {part.progress for part in with_tallies[:-1]} == {()}
        assert with_tallies[-1].final_through > before.final_through
        assert with_tallies[-1].progress[0].until < now_ms + 1_000


def test_without_a_topic_the_host_goes_on_and_nothing_is_lost(
    kafka_bootstrap: str, now_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    beacons, reports = (f"lagloss.{kind}.{uuid.uuid4().hex[:8]}" for kind in ("beacons", "reports"))
    for name in ("lagloss.sdk.outlets.kafka.BEACONS", "lagloss.sdk.shipper.BEACONS"):
        monkeypatch.setattr(name, beacons)
    monkeypatch.setattr("lagloss.sdk.shipper.REPORTS", reports)
    with Emitter("it-clicks", "mid", kafka_bootstrap) as emitter:
        for i in range(100):
            assert emitter.received(f"m{i}", now_ms)
        wait_for(lambda: "does not exist" in (emitter.stats().last_error or ""), what="a look for the topic")
        create_topics(kafka_bootstrap, PARTITIONS, beacons=beacons, reports=reports)
        wait_for(lambda: emitter.stats().sent == 100, what="delivery")
        assert emitter.flush()
        assert sum(at.block.count for at in blocks_of(kafka_bootstrap, emitter.id, beacons)) == 100


def test_a_broker_that_hangs_for_longer_than_a_request_loses_nothing(
    kafka: EmbeddedKafka, bootstrap: str, now_ms: int
) -> None:
    config = {"socket.timeout.ms": 1_000, "request.timeout.ms": 1_000}
    with Emitter("it-clicks", "mid", bootstrap, kafka_config=config) as emitter:
        emitter.received("before", now_ms)
        assert emitter.flush()
        broker = psutil.Process(kafka.processes[0].pid)
        victims = [broker, *broker.children(recursive=True)]
        for victim in victims:
            victim.send_signal(signal.SIGSTOP)
        try:
            before = emitter.stats().sent
            for i in range(20_000):
                assert emitter.received(f"m{i}", now_ms)
            assert not emitter.flush(timeout_s=4)
            for i in range(20_000):
                assert emitter.sent(f"m{i}", now_ms)
            assert emitter.stats().sent == before
        finally:
            for victim in victims:
                victim.send_signal(signal.SIGCONT)
        assert emitter.flush(timeout_s=60)
        assert emitter.stats().dropped == 0
        stored = {at.block.seq: at for at in blocks_of(bootstrap, emitter.id)}.values()
        assert sum(at.block.count for at in stored) == 40_001
        tallies = newest_tallies(reports_of(bootstrap, emitter.id)).values()
        assert sum(tally.beacons for tally in tallies) == 40_001


@pytest.mark.slow
def test_a_broker_that_is_stopped_and_started_again_loses_nothing_and_what_overflows_is_counted(
    kafka: EmbeddedKafka, bootstrap: str, now_ms: int
) -> None:
    with Emitter("it-clicks", "mid", bootstrap, max_buffered=1_000) as emitter:
        emitter.received("before", now_ms)
        assert emitter.flush()
        kafka.stop()
        emitter.received("in the drain that waits", now_ms)
        wait_for(lambda: emitter.stats().buffered == 0, what="a drain")
        taken = sum(emitter.received(f"m{i}", now_ms) for i in range(1_500))
        assert taken == 1_000
        kafka.start()
        assert emitter.flush(timeout_s=60)
        assert sum(at.block.count for at in blocks_of(bootstrap, emitter.id)) == 1_002
        (tally,) = newest_tallies(reports_of(bootstrap, emitter.id)).values()
        assert (tally.beacons, tally.dropped) == (1_002, 500)


def test_close_keeps_its_time_while_nobody_answers(now_ms: int) -> None:
    emitter = Emitter("it-clicks", "mid", "127.0.0.1:1")
    emitter.received("a", now_ms)
    started = time.monotonic()
    assert not emitter.close(timeout_s=1)
    assert time.monotonic() - started < 3


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_is_an_emitter_of_its_own(bootstrap: str, now_ms: int) -> None:
    with Emitter("it-clicks", "mid", bootstrap) as emitter:
        emitter.received("parent's", now_ms)
        assert emitter.flush()
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                emitter.received("child's", now_ms)
                closed = emitter.close(timeout_s=10)
                os.write(write_end, emitter.id + bytes([closed]))
            finally:
                os._exit(0)
        os.close(write_end)
        said = b""
        while len(said) < 17 and (more := os.read(read_end, 17)):
            said += more
        os.close(read_end)
        os.waitpid(child, 0)
        assert said[16:] == b"\x01"
        assert said[:16] != emitter.id
        assert [at.block.count for at in blocks_of(bootstrap, said[:16])] == [1]
        assert reports_of(bootstrap, said[:16])[-1].closed
        emitter.received("parent's again", now_ms)
        assert emitter.flush()
        assert sum(at.block.count for at in blocks_of(bootstrap, emitter.id)) == 2
