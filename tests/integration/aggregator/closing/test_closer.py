"""The aggregator on a real broker, Spark and PostgreSQL."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from sqlalchemy import insert, select, update

from aggregator import quarantine
from aggregator.closing import closer as closing
from aggregator.closing import due
from aggregator.closing.context import JudgementContext
from aggregator.closing.prover import Prover
from aggregator.closing.schedule import SETTLE_MS
from aggregator.closing.window_store import Closing, read_facts
from aggregator.kernel.spark_reader import FEW_RECORDS
from aggregator.maintenance.tasks import WINDOWS_PER_ROUND
from aggregator.set_aside import RETRY_MS, Item
from lagloss.broker.topics import BEACONS, REPORTS, create_topics
from lagloss.sdk.emitter import Emitter
from lagloss.wire.format import BeaconBlock, block_key, encode_block, hash_id
from lagloss.wire.traces import TraceContext
from lagloss_server.base.settings import Settings
from lagloss_server.judging.facts import WindowFacts
from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.model.message_ids import escape_id
from lagloss_server.model.window import rfc3339
from lagloss_server.ops.recompute import recompute
from lagloss_server.queries.difference import difference
from lagloss_server.queries.named_messages import read_kept
from lagloss_server.store import recompute_requests
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from tests.oracle import oracle
from tests.oracle.by_hand import worked_case
from tests.oracle.plan import START_MS, START_S
from tests.oracle.worlds import make_world
from tests.support.closers import Driven, driven, wait_until
from tests.support.window_documents import documents
from tests.support.worlds_in_kafka import put_world

NODES = ("src", "mid", "snk")


@pytest.mark.parametrize(
    "seed", [3, 7, 209, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (289, 1093, 1699))]
)
@pytest.mark.parametrize("few", [0, FEW_RECORDS])
def test_a_world_in_kafka_is_judged_as_the_oracle_judges_it(
    seed: int, few: int, spark: SparkSession, kafka_bootstrap: str, store: Store
) -> None:
    world, start_s = make_world(random.Random(seed))
    placed = put_world(kafka_bootstrap, world)
    definitions = [(at_ms, Definition.model_validate(document)) for at_ms, document in world.definitions]
    for at_ms, definition in definitions:
        store.apply(definition, at_ms)
    name = definitions[0][1].name
    with store.engine.begin() as connection:
        position = {"topic_partition": 0, "next_offset": 0, "topic_id": "", "whole_from": world.whole_from_ms}
        connection.execute(insert(tables.ReportsPositionRow).values(position))
    with driven(spark, kafka_bootstrap, store, placed.beacons, placed.reports, few=few) as parts:
        parts.follow_all()
        parts.closer.close_windows([(name, start_s)], world.now_ms)
    (found,) = [
        window for window in documents(store.windows(name, start_s, start_s + 60)) if window["state"] == "closed"
    ]
    expected = oracle.judge(world, start_s)
    for document in (found, expected):
        document["checkpoints"].sort(key=lambda checkpoint: checkpoint["name"])
        document.pop("staleness_ms")  # of earlier windows, too, of which this oracle knows none
    assert {field: found[field] for field in expected} == expected


@dataclass
class Chain:
    """A three-node pipeline of a test's own on the session's topics, five minutes ago."""

    name: str
    bootstrap: str
    parts: Driven
    emitters: dict[str, Emitter]
    start_s: int

    @property
    def store(self) -> Store:
        return self.parts.store

    def send(self, node: str, side: str, ids: list[str], window: int = 0) -> None:
        """Beacons of these ids at `node.side`, in the window so many minutes after the first."""
        emitter = self.emitters[node]
        for at, name in enumerate(ids):
            event_ms = (self.start_s + 60 * window) * 1000 + at
            observed = event_ms + 10 * NODES.index(node) + 5
            (emitter.received if side == "in" else emitter.sent)(name, event_ms, observed_at=observed)

    def settle(self) -> None:
        """Everything sent so far is in the log and followed."""
        for emitter in self.emitters.values():
            assert emitter.flush(30)
        self.parts.follow_all()

    def close(self, *windows: int) -> int:
        now_ms = int(time.time() * 1000)
        return self.parts.closer.close_windows([(self.name, self.start_s + 60 * at) for at in windows], now_ms).beacons

    def window(self, at: int = 0) -> dict[str, Any]:
        (found,) = documents(self.store.windows(self.name, self.start_s + 60 * at, self.start_s + 60 * at + 60))
        return found


@pytest.fixture
def chain(spark: SparkSession, kafka_bootstrap: str, store: Store) -> Iterator[Chain]:
    create_topics(kafka_bootstrap)
    name = f"chain-{uuid.uuid4().hex[:8]}"
    text = f"""
        apiVersion: lagloss/v1
        kind: Pipeline
        metadata: {{name: {name}}}
        spec: {{nodes: [{{name: src, to: [mid]}}, {{name: mid, to: [snk]}}, {{name: snk}}]}}
    """
    store.apply(parse_definition(text))
    start_s = int(time.time()) // 60 * 60 - 300
    emitters = {node: Emitter(name, node, kafka_bootstrap, first=node == "src") for node in NODES}
    with driven(spark, kafka_bootstrap, store, BEACONS, REPORTS) as parts:
        yield Chain(name, kafka_bootstrap, parts, emitters, start_s)
    for emitter in emitters.values():
        emitter.close()


IDS = [f"message-{at}" for at in range(200)]


def send_all(chain: Chain, window: int = 0) -> None:
    """All ids everywhere, but every twentieth is lost on link mid -> snk."""
    for node in NODES:
        ids = IDS if node != "snk" else [name for at, name in enumerate(IDS) if at % 20]
        for side in ("in", "out"):
            chain.send(node, side, ids, window)


def test_losses_are_counted_and_named_where_they_happened(chain: Chain) -> None:
    send_all(chain)
    send_all(chain, window=1)
    chain.settle()
    beacons = chain.close(0)
    window = chain.window()
    assert beacons == 4 * 200 + 2 * 190
    assert (window["verdict"], window["messages"], window["lost"]) == ("loss", 200, {"min": 10, "max": 10})
    missing = chain.store.missing(chain.name, chain.start_s)
    assert {found.message_id for found in missing} == set(IDS[::20])
    assert {(found.kind, *found.places, found.last_checkpoint) for found in missing} == {
        ("lost", "link mid->snk", "mid.out")
    }
    found = difference(chain.store, chain.parts.beacons, chain.name, chain.start_s, "mid.out", "snk.in")
    assert (found.count, found.message_ids) == (10, tuple(sorted(IDS[::20])))


def test_late_messages_of_a_window_that_loses_nothing_are_named_with_what_held_them(chain: Chain) -> None:
    late = IDS[:20]
    for window in (0, 1):
        for node in NODES:
            for side in ("in", "out"):
                chain.send(node, side, [name for name in IDS if node != "snk" or name not in late], window)
    for at, name in enumerate(late):
        event_ms = chain.start_s * 1000 + at
        chain.emitters["snk"].received(name, event_ms, observed_at=event_ms + 9_000 + at)
        chain.emitters["snk"].sent(name, event_ms, observed_at=event_ms + 9_100 + at)
    chain.settle()
    chain.close(0)
    window = chain.window()
    assert (window["delivered"], window["proof"]) == (200, "beacons")
    found = read_kept(chain.store, chain.name, chain.start_s).named("late")
    assert [message.message_id for message in found] == late[::-1]
    assert {message.hop for message in found} == {"link mid->snk"}
    assert {message.host for message in found} != {None}


def test_dead_messages_are_counted_by_node_and_reason(chain: Chain) -> None:
    send_all(chain)
    send_all(chain, window=1)
    for at, name in enumerate(IDS[::20]):
        chain.emitters["snk"].received(name, chain.start_s * 1000 + 20 * at)
        chain.emitters["snk"].dead_lettered(name, chain.start_s * 1000 + 20 * at, "no schema" if at else "unreadable")
    chain.settle()
    chain.close(0)
    window = chain.window()
    assert window["reasons_by_node"] == {"snk": {"dead": {"no schema": 9, "unreadable": 1}}}
    kept = read_kept(chain.store, chain.name, chain.start_s)
    assert {(message.message_id, message.kind) for message in kept.named("dead")} == {(i, "dead") for i in IDS[::20]}
    assert {message.reason for message in kept.named("dead")} == {"no schema", "unreadable"}


def test_late_beacons_restate_the_window_and_keep_the_earlier_result(chain: Chain) -> None:
    send_all(chain)
    send_all(chain, window=1)
    chain.settle()
    chain.close(0)
    for side in ("in", "out"):
        chain.send("snk", side, IDS[::20])
    chain.settle()
    chain.close(0)
    window = chain.window()
    assert (window["revision"], window["verdict"], window["lost"]["max"]) == (2, "ok", 0)
    assert [
        (old["revision"], old["verdict"]) for old in documents(chain.store.revisions(chain.name, chain.start_s))
    ] == [(1, "loss")]
    assert chain.store.missing(chain.name, chain.start_s) == []


def test_a_lost_message_keeps_the_trace_in_which_it_came_in(chain: Chain) -> None:
    traces = {name: TraceContext(f"{at + 1:032x}", f"{at + 1:016x}") for at, name in enumerate(IDS) if at % 40 == 0}
    send_all(chain, window=1)
    for at, name in enumerate(IDS):
        event_ms = chain.start_s * 1000 + at
        traceparent = f"00-{'-'.join(traces[name])}-01" if name in traces else None
        chain.emitters["src"].received(name, event_ms, observed_at=event_ms + 5, traceparent=traceparent)
    chain.send("src", "out", IDS)
    for side in ("in", "out"):
        chain.send("mid", side, IDS)
        chain.send("snk", side, [name for at, name in enumerate(IDS) if at % 20])
    chain.settle()
    assert chain.close(0) == 4 * 200 + 2 * 190
    assert chain.window()["verdict"] == "loss"
    expected = {name: traces.get(name) for name in IDS[::20]}
    for _ in range(2):
        missing = chain.store.missing(chain.name, chain.start_s)
        assert {found.message_id: found.trace for found in missing} == expected
        chain.settle()  # every emitter's account is judged anew, from the facts that are stored
        chain.close(0)
    with chain.store.engine.connect() as connection:
        stored = read_facts(connection, [(chain.name, chain.start_s)])[chain.name, chain.start_s][0].missing
    assert {found.name: found.trace for found in stored} == expected


def test_a_backlog_of_one_pipeline_delays_no_window_of_another(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due, "WINDOWS_AT_ONCE", 2)
    other = f"z-{chain.name}"  # after the other in any order
    head = f"apiVersion: lagloss/v1, kind: Pipeline, metadata: {{name: {other}}}"
    chain.store.apply(parse_definition(f"{{{head}, spec: {{nodes: [{{name: src}}]}}}}"))
    with Emitter(other, "src", chain.bootstrap, first=True) as emitter:
        for window in (0, 1, 2):
            send_all(chain, window)
        emitter.received("m", chain.start_s * 1000)
        chain.settle()
        assert emitter.flush(30)
    chain.parts.follow_all()
    now_ms = int(time.time() * 1000) + SETTLE_MS
    assert chain.parts.closer.tick(now_ms, now_ms)
    states = [
        documents(chain.store.windows(name, chain.start_s, chain.start_s + 60))[0]["state"]
        for name in (chain.name, other)
    ]
    assert states == ["closed", "closed"]


def postpone(chain: Chain, grace: str = "10m") -> None:
    """From now on windows are due that long after their end."""
    nodes = "[{name: src, to: [mid]}, {name: mid, to: [snk]}, {name: snk}]"
    head = f"apiVersion: lagloss/v1, kind: Pipeline, metadata: {{name: {chain.name}}}"
    chain.store.apply(parse_definition(f"{{{head}, spec: {{grace: {grace}, nodes: {nodes}}}}}"))


@pytest.mark.parametrize("proof", ["tallies", "beacons"])
def test_a_window_in_which_nothing_is_missing_is_closed_before_it_is_due(
    proof: str, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    if proof == "beacons":
        monkeypatch.setattr(Prover, "is_proven", lambda *_: False)
    postpone(chain)
    for node in NODES:
        for side in ("in", "out"):
            chain.send(node, side, IDS)
    chain.settle()
    now_ms = int(time.time() * 1000)
    assert not chain.parts.closer.tick(now_ms, now_ms)
    window = chain.window()
    assert (window["state"], window["verdict"], window["proof"]) == ("closed", "ok", proof)


def test_a_window_that_only_looks_complete_is_read_once_and_closed_when_it_is_due(chain: Chain) -> None:
    def beacons_read(after_s: int) -> float:
        now_ms = int(time.time() * 1000) + after_s * 1_000
        chain.parts.closer.tick(now_ms, now_ms)
        return chain.parts.metrics.registry.get_sample_value("lagloss_beacons_read_total") or 0.0

    postpone(chain)
    for node in NODES:
        ids = IDS if node != "snk" else [*IDS[1:], "another"]  # as many everywhere, so that only blocks tell
        for side in ("in", "out"):
            chain.send(node, side, ids)
    chain.settle()
    assert [beacons_read(after_s) for after_s in (0, 120)] == [6 * 200] * 2
    assert chain.window()["state"] == "open"
    postpone(chain, "1m")
    assert beacons_read(120) == 2 * 6 * 200
    window = chain.window()
    assert window["state"] == "closed"
    assert [window[name] for name in ("verdict", "messages", "delivered", "pending")] == ["unknown", 201, 200, 1]


def test_closing_again_changes_no_row(chain: Chain) -> None:
    send_all(chain)
    chain.settle()
    chain.close(0)
    before, missing = chain.window(), chain.store.missing(chain.name, chain.start_s)
    chain.close(0)
    assert (chain.window(), chain.store.missing(chain.name, chain.start_s)) == (before, missing)


def test_an_open_window_shows_live_numbers_from_tallies(chain: Chain) -> None:
    send_all(chain)
    chain.settle()
    window = chain.window()
    assert (window["state"], window["revision"], window["verdict"], window["lost"]) == ("open", 0, None, None)
    assert (window["messages"], window["delivered"]) == (200, 190)
    assert window["e2e_lag_ms"]["p95"] == pytest.approx(25, rel=0.02)


def test_a_window_of_the_past_that_was_filled_in_later_is_history(chain: Chain) -> None:
    send_all(chain)
    chain.settle()
    chain.close(0)
    assert chain.window()["history"] is True


def test_a_node_that_stands_still_is_stale_until_a_late_beacon_says_otherwise(chain: Chain) -> None:
    def settle() -> None:
        chain.settle()
        with chain.store.engine.begin() as connection:  # its emitters have been there all the time: this is no history
            emitter = tables.EmitterRow
            connection.execute(
                update(emitter).where(emitter.pipeline == chain.name).values(started_at=chain.start_s * 1_000 - 1)
            )

    send_all(chain)
    for window in (1, 2):
        for node in ("src", "mid"):
            for side in ("in", "out"):
                chain.send(node, side, IDS, window)
    settle()
    chain.close(0, 1, 2)
    stale = [chain.window(at)["staleness_ms"] for at in range(3)]
    assert [each["snk.in"] for each in stale] == [pytest.approx(25, rel=0.02), 60_000, 120_000]
    assert [each["mid.out"] for each in stale] == [pytest.approx(15, rel=0.02)] * 3
    chain.send("snk", "in", IDS, window=1)
    settle()
    chain.close(1)
    now_ms = int(time.time() * 1000)
    chain.parts.closer.tick(now_ms, now_ms)
    assert chain.window(1)["staleness_ms"]["snk.in"] == pytest.approx(25, rel=0.02)
    assert (chain.window(2)["staleness_ms"]["snk.in"], chain.window(2)["revision"]) == (60_000, 2)


def test_blocks_that_lie_in_wrong_partitions_are_shuffled_and_counted_once(chain: Chain) -> None:
    send_all(chain)
    producer = Producer({"bootstrap.servers": chain.bootstrap, "log_level": 0})
    ids = np.array([hash_id(name) for name in IDS], np.uint64)
    for at, checkpoint in enumerate(("snk.in", "snk.out")):
        block = BeaconBlock(
            chain.name, checkpoint, bytes(16), at, chain.start_s, 3, ids, np.full(ids.size, 30, np.float32)
        )
        producer.produce(BEACONS, encode_block(block), block_key(chain.name, chain.start_s), partition=1)
    producer.flush(10)
    chain.settle()
    chain.close(0)
    window = chain.window()
    counts = {checkpoint["name"]: checkpoint["distinct"] for checkpoint in window["checkpoints"]}
    assert counts == {f"{node}.{side}": 200 for node in NODES for side in ("in", "out")}
    assert (window["messages"], window["delivered"], window["lost"]["max"]) == (200, 200, 0)


@pytest.mark.parametrize("few", [0, FEW_RECORDS])
def test_bad_records_are_counted_by_reason_and_spoil_nothing(
    few: int, spark: SparkSession, kafka_bootstrap: str, store: Store
) -> None:
    world = worked_case().world()
    placed = put_world(kafka_bootstrap, world)
    store.apply(Definition.model_validate(world.definitions[0][1]), 0)
    good = BeaconBlock("clicks", "mid.in", bytes(16), 0, START_S, 8, np.zeros(1, np.uint64), np.ones(1, np.float32))
    key, ahead_s = block_key("clicks", START_S), START_S + 3600

    def changed(**fields: Any) -> bytes:
        return encode_block(replace(good, **fields))

    bad = {
        "not_avro": (key, b"hello"),
        "unknown_fingerprint": (key, b"\xc3\x01" + bytes(30)),
        "unknown_pipeline": (b"nobody/60", changed(pipeline="nobody", window_start=60)),
        "unknown_checkpoint": (key, changed(checkpoint="elsewhere.in")),
        "count_mismatch": (key, changed(lag_ms=np.ones(3, np.float32), checkpoint="elsewhere.in")),
        "key_mismatch": (key, changed(window_start=START_S + 60)),
        "window_ahead": (block_key("clicks", ahead_s), changed(window_start=ahead_s)),
        "lag_not_finite": (key, changed(checkpoint="mid.dead", lag_ms=np.array([np.nan], np.float32))),
    }
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    for bad_key, value in bad.values():
        producer.produce(placed.beacons, value, bad_key, partition=0, timestamp=START_MS + 2_000)
    producer.flush(10)
    with driven(spark, kafka_bootstrap, store, placed.beacons, placed.reports, few=few) as parts:
        parts.follow_all()
        parts.closer.close_windows([("clicks", START_S)], world.now_ms)
    with store.engine.connect() as connection:
        assert quarantine.counts(connection) == {(placed.beacons, reason): 1 for reason in bad}
    (window,) = [
        found for found in documents(store.windows("clicks", START_S, START_S + 60)) if found["state"] == "closed"
    ]
    assert (window["messages"], window["delivered"], window["filtered"]) == (10, 6, 1)
    # the block without a lag was mid's: what only mid's beacons would tell is no longer certain
    assert window["lost"] == {"min": 1, "max": 3}
    assert window["reasons"] == ["evidence:mid"]


def test_a_recompute_request_is_answered_with_what_was_read(chain: Chain) -> None:
    send_all(chain)
    chain.settle()
    chain.close(0)
    request = recompute_requests.add(chain.store, chain.name, chain.start_s, chain.start_s + 60)
    assert chain.parts.upkeep().answer_recompute(int(time.time() * 1000))
    answer = recompute_requests.answer_to(chain.store, request)
    assert answer is not None
    assert (answer["windows"], answer["beacons"]) == (1, 4 * 200 + 2 * 190)


def test_a_recompute_goes_on_where_the_closer_before_came_to(chain: Chain, tmp_path: Path) -> None:
    windows = WINDOWS_PER_ROUND + 10
    chain.start_s -= 60 * windows
    for at in range(windows):
        chain.send("src", "in", IDS[:2], at)
    chain.settle()
    assert chain.close(*range(windows)) == 2 * windows
    told: list[str] = []
    after = chain.parts.another()
    after.watch.refresh()
    with ThreadPoolExecutor() as pool:
        asked = chain.start_s, chain.start_s + 60 * windows
        answer = pool.submit(recompute, Settings(data_dir=tmp_path), chain.store, chain.name, *asked, told.append)
        now_ms = int(time.time() * 1000)
        wait_until(lambda: chain.parts.upkeep().answer_recompute(now_ms), what="for the request")
        wait_until(lambda: f"{WINDOWS_PER_ROUND} of {windows} windows" in told, what="to hear how far it is")
        assert not answer.done()
        assert after.upkeep().answer_recompute(now_ms)
        found = answer.result(20)
    assert told[0] == "waiting for the aggregator"
    assert (found["windows"], found["beacons"], found["sealed"]) == (windows, 2 * windows, 0)
    assert not chain.parts.upkeep().answer_recompute(now_ms)


def test_each_revision_tells_whoever_listens(chain: Chain) -> None:
    with chain.store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as listener:
        raw = listener.connection.driver_connection
        assert raw is not None
        raw.execute("LISTEN lagloss_windows")
        send_all(chain)
        chain.settle()
        chain.close(0)
        heard = [notice.payload for notice in raw.notifies(timeout=10, stop_after=1)]
    assert heard == [f"{chain.name}/{chain.start_s}"]


def test_tallies_are_the_newest_of_each_account(chain: Chain) -> None:
    for _ in range(3):
        chain.send("src", "in", IDS)
        chain.settle()
    tally = tables.TallyRow
    with chain.store.engine.connect() as connection:
        counts = connection.execute(
            select(tally.beacons).where(tally.pipeline == chain.name, tally.checkpoint == "src.in")
        ).scalars()
        assert list(counts) == [600]


def test_a_lost_message_may_be_called_anything(chain: Chain) -> None:
    odd = ["padded\0\0", "two\nlines", "\x1b[2J", '\'; DROP TABLE "window"; --', "\u202egnp.exe", r"C:\x00", "😀" * 63]
    chain.send("src", "in", [*IDS, *odd])
    chain.send("src", "out", [*IDS, *odd])
    for node in ("mid", "snk"):
        for side in ("in", "out"):
            chain.send(node, side, IDS)
    send_all(chain, window=1)
    chain.settle()
    chain.close(0)
    assert (chain.window()["verdict"], chain.window()["lost"]) == ("loss", {"min": len(odd), "max": len(odd)})
    stored = {found.message_id for found in chain.store.missing(chain.name, chain.start_s)}
    assert stored == set(map(escape_id, odd))
    found = difference(chain.store, chain.parts.beacons, chain.name, chain.start_s, "src.out", "mid.in")
    assert set(found.document()["message_ids"]) == set(odd)


def break_closing(monkeypatch: pytest.MonkeyPatch, is_bad: Callable[[str, int], bool]) -> None:
    """Let the closing of these windows (by pipeline and start) fail."""
    whole = closing.close

    def broken(
        context: JudgementContext, pipeline: str, start_s: int, facts: WindowFacts, *, is_read: bool = True
    ) -> Closing:
        if is_read and is_bad(pipeline, start_s):
            raise IndexError("index 0 is out of bounds")
        return whole(context, pipeline, start_s, facts, is_read=is_read)

    monkeypatch.setattr(closing, "close", broken)


def test_a_window_that_cannot_be_closed_is_set_aside_alone_and_tried_again(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    for window in range(4):
        send_all(chain, window)
    chain.settle()
    break_closing(monkeypatch, lambda _, start_s: start_s == chain.start_s + 60)
    chain.close(0, 1, 2)
    assert [(chain.window(at)["verdict"], chain.window(at)["reasons"]) for at in range(3)] == [
        ("loss", []),
        ("unknown", ["failed"]),
        ("loss", []),
    ]
    item = Item("window", chain.name, rfc3339(chain.start_s + 60))
    assert item in chain.parts.failures
    with chain.store.engine.connect() as connection:
        row = connection.execute(select(tables.table_of(tables.SetAsideRow))).one()
    assert (row.kind, row.pipeline, row.item) == item
    assert (row.error, row.tries) == ("IndexError: index 0 is out of bounds", 1)

    def work(after_ms: int = 0) -> tuple[bool, bool]:
        """Return whether the window failed, and whether it is set aside."""
        now_ms = int(time.time() * 1000) + after_ms
        while again.closer.tick(now_ms, now_ms):
            pass
        return "failed" in chain.window(1)["reasons"], item in again.failures

    again = chain.parts.another()  # the next start
    assert work() == (True, True)
    monkeypatch.undo()
    assert work() == (True, True)  # only after an hour
    assert work(RETRY_MS) == (False, False)
    assert chain.window(1)["lost"]["max"] == 10
    with chain.store.engine.connect() as connection:
        assert connection.execute(select(tables.table_of(tables.SetAsideRow))).all() == []


def test_a_window_that_was_set_aside_is_tried_again_by_recompute(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    send_all(chain)
    send_all(chain, window=1)
    chain.settle()
    break_closing(monkeypatch, lambda *_: True)
    chain.close(0)
    assert chain.parts.failures.names() == [f"window {chain.name}/{rfc3339(chain.start_s)}"]
    assert chain.parts.failures.counts() == {"window": 1, "rollup": 0, "group": 0, "definition": 0}
    monkeypatch.undo()
    request = recompute_requests.add(chain.store, chain.name, chain.start_s, chain.start_s + 60)
    assert chain.parts.upkeep().answer_recompute(int(time.time() * 1000))
    assert recompute_requests.answer_to(chain.store, request)["windows"] == 1
    assert (chain.window()["reasons"], chain.parts.failures.names()) == ([], [])


@pytest.mark.parametrize("gone", ["deleted", "sealed"])
def test_what_no_closing_wants_any_more_is_no_longer_set_aside(
    gone: str, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_all(chain)
    chain.settle()
    break_closing(monkeypatch, lambda *_: True)
    chain.close(0)
    assert len(chain.parts.failures.names()) == 1
    monkeypatch.undo()
    if gone == "deleted":
        chain.store.delete(chain.name)
    else:
        with chain.store.engine.begin() as connection:
            connection.execute(update(tables.WindowRow).values(state="sealed"))
    now_ms = int(time.time() * 1000) + RETRY_MS
    chain.parts.closer.tick(now_ms, now_ms)
    assert "failed" in documents(chain.store.windows(chain.name, chain.start_s, chain.start_s + 60))[0]["reasons"]
    assert chain.parts.failures.names() == []
    assert chain.parts.another().failures.names() == []


def test_a_pipeline_whose_windows_all_fail_delays_no_other(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "TURN_S", 0.0)
    others = f"a-{chain.name}", f"z-{chain.name}"  # before it and after it in any order
    for name in others:
        head = f"apiVersion: lagloss/v1, kind: Pipeline, metadata: {{name: {name}}}"
        chain.store.apply(parse_definition(f"{{{head}, spec: {{nodes: [{{name: src}}]}}}}"))
        with Emitter(name, "src", chain.bootstrap, first=True) as emitter:
            emitter.received("m", chain.start_s * 1000)
            assert emitter.flush(30)
    for window in range(4):
        send_all(chain, window)
    chain.settle()
    break_closing(monkeypatch, lambda name, _: name == chain.name)
    now_ms = int(time.time() * 1000) + SETTLE_MS
    assert chain.parts.closer.tick(now_ms, now_ms)
    states = [documents(chain.store.windows(name, chain.start_s, chain.start_s + 60))[0]["state"] for name in others]
    assert states == ["closed", "closed"]
    assert 0 < chain.parts.failures.counts()["window"] < 4  # it had no more time
    wait_until(lambda: not chain.parts.closer.tick(now_ms, now_ms), what="for the others to be set aside")
    assert [chain.window(at)["reasons"] for at in range(4)] == [["failed"]] * 4
