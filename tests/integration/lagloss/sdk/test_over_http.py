"""The Python SDK by way of a real collector: its account is as exact as on Kafka itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from lagloss import Emitter
from lagloss.sdk.outlets.http import HttpOutlet
from lagloss.wire.format import hash_id
from lagloss_server.store.tokens import create, revoke
from tests.integration.conftest import DEFINITION, YAML, Collector
from tests.support.kafka_log import blocks_of, in_ranges, newest_tallies, reports_of, wait_for

ROOT = Path(__file__).parents[4]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def assert_exact(collector: Collector, emitter: Emitter, expected: Counter[tuple[str, int]]) -> None:
    """The log holds these beacons, by checkpoint and id hash, each block once; the tallies say so, too."""
    blocks = {at.block.seq: at.block for at in blocks_of(collector.bootstrap, emitter.id)}.values()
    assert Counter((block.checkpoint, int(h)) for block in blocks for h in block.id_hash) == expected
    reports = reports_of(collector.bootstrap, emitter.id)
    tallies = newest_tallies(reports).values()
    assert sum(tally.beacons for tally in tallies) == expected.total()
    ranges = tuple(place for tally in tallies for place in tally.ranges)
    assert all(in_ranges(ranges, at.partition, at.offset) for at in blocks_of(collector.bootstrap, emitter.id))
    assert reports[-1].closed
    assert reports[-1].final_through * 1000 >= now_ms() - 20_000


def test_beacons_reports_and_the_closing_one_reach_the_log_through_the_collector(
    collector: Collector, pipeline: str, tmp_path: Path
) -> None:
    expected: Counter[tuple[str, int]] = Counter()
    with Emitter(pipeline, "src", collector=collector.url, first=True, spool=tmp_path) as emitter:
        for number in range(3_000):
            assert emitter.received(f"m{number}", now_ms())
            assert emitter.sent(f"m{number}", now_ms())
            expected["src.in", hash_id(f"m{number}")] += 1
            expected["src.out", hash_id(f"m{number}")] += 1
            if number % 1_000 == 0:
                assert emitter.flush()
    assert_exact(collector, emitter, expected)
    named = [at.block for at in blocks_of(collector.bootstrap, emitter.id) if at.block.checkpoint == "src.in"]
    assert all(block.message_ids for block in named)


def test_the_example_runs_as_it_stands(collector: Collector, pipeline: str) -> None:
    env = os.environ | {"LAGLOSS_COLLECTOR_URL": collector.url, "PYTHONPATH": str(ROOT)}
    env.pop("LAGLOSS_KAFKA_BOOTSTRAP", None)
    command = [sys.executable, str(ROOT / "examples" / "http_service.py"), "--pipeline", pipeline]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=True)
    assert "sent=200" in done.stdout
    assert done.stderr == ""


def test_while_the_collector_is_stopped_nothing_is_lost_and_nothing_counts_twice(
    collector: Collector, pipeline: str
) -> None:
    with Emitter(pipeline, "mid", collector=collector.url) as emitter:
        assert emitter.received("before", now_ms())
        assert emitter.flush()
        collector.process.suspend()
        try:
            for number in range(500):
                assert emitter.received(f"m{number}", now_ms())
            mark = emitter.mark()
            emitter.request_flush()
            assert not emitter.flush(timeout_s=1)
            assert not emitter.acknowledged(mark)
        finally:
            collector.process.resume()
        assert emitter.flush(timeout_s=30)
        assert emitter.stats().dropped == 0
    expected = Counter({("mid.in", hash_id(f"m{number}")): 1 for number in range(500)})
    assert_exact(collector, emitter, expected + Counter({("mid.in", hash_id("before")): 1}))


def test_a_token_that_does_not_hold_makes_beacons_wait_and_not_be_lost(collector: Collector, pipeline: str) -> None:
    token, secret = create(collector.store, pipeline)
    wait_for(lambda: collector.client.get(f"/v1/pipelines/{pipeline}/intake").status_code == 401, what="the token")
    with Emitter(pipeline, "mid", collector=collector.url) as locked_out:
        locked_out.received("m", now_ms())
        wait_for(lambda: "401" in (locked_out.stats().last_error or ""), what="a refusal")
        assert locked_out.stats().dropped == 0
        locked_out.close(timeout_s=0.5)
    with Emitter(pipeline, "mid", collector=collector.url, token=secret) as emitter:
        emitter.received("m", now_ms())
        assert emitter.flush()
    assert_exact(collector, emitter, Counter({("mid.in", hash_id("m")): 1}))
    revoke(collector.store, token.id)


def test_the_sample_of_a_definition_is_heard_over_http(collector: Collector, pipeline: str) -> None:
    sampled = DEFINITION.replace("NAME", pipeline).replace("spec:\n", "spec:\n  sample: 0.5\n")
    assert collector.client.put(f"/v1/pipelines/{pipeline}", content=sampled, headers=YAML).is_success
    outlet = HttpOutlet(collector.url, pipeline)
    try:
        assert outlet.partitions() == 8
        wait_for(lambda: collector.client.get(f"/v1/pipelines/{pipeline}/intake").json()["sample"] == 1 << 31)
        assert HttpOutlet(collector.url, pipeline).partitions() == 8
    finally:
        outlet.close()
    with Emitter(pipeline, "mid", collector=collector.url) as emitter:
        for number in range(200):
            emitter.received(f"m{number}", now_ms())
        assert emitter.flush()
        stats = emitter.stats()
        assert stats.sent + stats.sampled_out == 200
        assert stats.sampled_out == sum(hash_id(f"m{number}") & 0xFFFFFFFF >= 1 << 31 for number in range(200))


def test_a_block_that_the_collector_will_never_take_is_dropped_and_counted_and_the_others_arrive(
    collector: Collector, pipeline: str
) -> None:
    """Its event time is hours ahead: the emitter allows for a clock of its own that is behind."""
    with Emitter(pipeline, "mid", collector=collector.url) as emitter:
        assert emitter.flush()
        emitter.received("m", now_ms())
        emitter.dead_lettered("n", now_ms() + 6 * 3_600_000, "x")
        assert emitter.flush()
        stats = emitter.stats()
        assert (stats.sent, stats.dropped) == (1, 1)
        assert "422" in (stats.last_error or "")
