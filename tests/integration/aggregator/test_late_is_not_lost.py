"""Late is not lost: what is only late is told as unknown with its reason, then as ok; what is lost besides, as lost.

Each case is a story of two minutes of orders with real consumers. In the second minute 2 % are lost on the way to the
sink. Where a story yields, everybody reports and the closer works; what it yields is the verdict of the first and of
the second window then, and a reason that both give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
from pyspark.sql import SparkSession

from aggregator.closing import report_state as told
from lagloss_server.store.store import Store
from tests.support.stages import CHAIN, MuteOutlet, Sink, Stage, staged

Moments = Iterator[tuple[str, str, str | None]]
EARLY = 17
"""Orders of the first 10 seconds."""
LOST = (7, 57)
WITH_CANARY = "[{name: src, to: [snk, canary], copy: all}, {name: snk}, {name: canary}]"
STUCK = 3
DUE, MUCH_LATER = 181, 400
HELD = sum(at % 8 == STUCK for at in range(EARLY, 100)) + sum(at % 8 == STUCK for at in range(100))


def begin(stage: Stage) -> Sink:
    """The first orders go through."""
    sink = Sink(stage)
    stage.at(10)
    sink.work(stage.send(0, 0, EARLY))
    for emitter in stage.emitters:
        assert emitter.flush(10)
    return sink


def send_rest(stage: Stage) -> int:
    """All other orders, before the clock moves on: a lane that was looked at later had them waiting."""
    sent = stage.send(0, EARLY, 100) + stage.send(1, 0, 100, LOST)
    stage.at(120)
    return sent


def one_of_eight_partitions_is_stuck(stage: Stage) -> Moments:
    sink = begin(stage)
    sink.pause(STUCK)
    sink.work(send_rest(stage) - HELD)
    stage.at(DUE)
    yield "unknown", "unknown", "pending"
    stage.at(MUCH_LATER)
    sink.resume(STUCK)
    sink.work(HELD)
    yield "ok", "loss", None


def a_rebalance_takes_longer_than_grace(stage: Stage) -> Moments:
    begin(stage).leave()
    late = send_rest(stage)
    stage.at(DUE)
    yield "unknown", "unknown", "pending"
    stage.at(MUCH_LATER)
    Sink(stage).work(late)
    yield "ok", "loss", None


def a_batch_is_held_back_by_a_429_for_two_minutes(stage: Stage) -> Moments:
    sink = begin(stage)
    with sink.emitter.processing():
        sink.take(send_rest(stage))
        stage.at(DUE)
        # what never came in at the sink is overtaken there already
        yield "unknown", "loss", "pending"
        stage.at(DUE + 120)
        sink.deliver()
    yield "ok", "loss", None


def the_consumer_is_three_hours_behind(stage: Stage) -> Moments:
    sink = begin(stage)
    late = send_rest(stage)
    stage.at(DUE)
    yield "unknown", "unknown", "pending"
    stage.at(DUE + 20 * 60)
    yield "unknown", "unknown", "overdue"
    stage.at(3 * 3600)
    sink.work(late)
    yield "ok", "loss", None


def the_sink_runs_once_an_hour(stage: Stage) -> Moments:
    sink = begin(stage)
    sink.end()
    late = send_rest(stage)
    stage.at(DUE)
    yield "unknown", "unknown", "pending"
    stage.at(3600)
    sink = Sink(stage)
    sink.work(late)
    yield "ok", "loss", None


def a_canary_never_reports(stage: Stage) -> Moments:
    begin(stage).work(send_rest(stage))
    stage.at(DUE)
    yield "unknown", "loss", "pending"
    stage.at(DUE + 20 * 60)
    yield "unknown", "loss", "overdue"


def a_canary_sends_beacons_and_no_reports(stage: Stage) -> Moments:
    sink = begin(stage)
    sink.work(send_rest(stage))
    canary = stage.emitter("canary", MuteOutlet)
    for order in stage.orders.values():
        canary.received(order.id, order.event_ms, observed_at=stage.seen_ms("canary"))
        canary.sent(order.id, order.event_ms, observed_at=stage.seen_ms("canary"))
    stage.at(DUE)
    yield "ok", "loss", "evidence:canary"
    stage.at(DUE + 20 * 60)
    yield "ok", "loss", "evidence:canary"


@pytest.mark.parametrize(
    ("story", "nodes", "ahead_s", "apart_s"),
    [
        pytest.param(
            *(story, nodes, ahead_s, apart_s),
            id=" ".join((story.__name__, *ahead_s)),
            marks=[pytest.mark.slow] if len(ahead_s) == 1 else [],
        )
        for story, nodes, ahead_s, apart_s in (
            (one_of_eight_partitions_is_stuck, CHAIN, {}, 0),
            (a_rebalance_takes_longer_than_grace, CHAIN, {}, 0),
            (a_batch_is_held_back_by_a_429_for_two_minutes, CHAIN, {}, 0),
            (the_consumer_is_three_hours_behind, CHAIN, {}, 0),
            (the_sink_runs_once_an_hour, CHAIN, {}, 0),
            (a_canary_never_reports, WITH_CANARY, {}, 0),
            (a_canary_sends_beacons_and_no_reports, WITH_CANARY, {}, 0),
            (one_of_eight_partitions_is_stuck, CHAIN, {"snk": 90}, 90),
            (one_of_eight_partitions_is_stuck, CHAIN, {"src": -90}, 90),
            (one_of_eight_partitions_is_stuck, CHAIN, {"snk": 60, "src": -60}, 120),
        )
    ],
)
def test_late_is_not_lost(
    story: Callable[[Stage], Moments],
    nodes: str,
    ahead_s: Mapping[str, int],
    apart_s: int,
    spark: SparkSession,
    kafka_bootstrap: str,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead_ms = {node: 1000 * ahead for node, ahead in ahead_s.items()}
    with staged(spark, kafka_bootstrap, store, monkeypatch, nodes, ahead_ms) as stage:
        for late, lossy, reason in story(stage):
            stage.judge()
            assert [stage.window(at)["verdict"] for at in (0, 1)] == [late, lossy]
            assert all(reason is None or reason in stage.window(at)["reasons"] for at in (0, 1))
            assert {stage.window(at)["clock_skew_ms"] for at in (0, 1)} == {1000 * apart_s}
            with store.engine.connect() as connection:
                furthest_ms = told.largest_skew_ms(connection, stage.clock.now_ms)
            assert furthest_ms == max(map(abs, ahead_ms.values()), default=0)
        assert all(found["verdict"] != "loss" and found["lost"]["min"] == 0 for found in stage.told(0))
        assert all(found["verdict"] == "loss" or found["lost"]["min"] == 0 for found in stage.told(1))
        assert stage.window(1)["lost"]["min"] == len(LOST)
        lost = [found.message_id for found in store.missing("shop", stage.start_s + 60) if found.kind == "lost"]
        assert sorted(lost) == sorted(f"order-1-{at}" for at in LOST)


@pytest.mark.parametrize("hours", [1, -1], ids=["ahead", "behind"])
@pytest.mark.parametrize("node", ["src", "snk"])
def test_a_clock_that_jumps_by_an_hour_and_back_makes_nothing_lost(
    node: str, hours: int, spark: SparkSession, kafka_bootstrap: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While orders wait that the sink takes in only afterwards: they are late, by either clock."""
    ahead_ms = {node: 0}
    with staged(spark, kafka_bootstrap, store, monkeypatch, CHAIN, ahead_ms) as stage:
        sink = begin(stage)
        sink.pause(STUCK)
        sink.work(stage.send(0, EARLY, 100) - sum(at % 8 == STUCK for at in range(EARLY, 100)))
        stage.at(60)
        stage.judge()
        ahead_ms[node] = hours * 3_600_000
        sink.work(stage.send(1, 0, 100, LOST) - sum(at % 8 == STUCK for at in range(100)))
        for second in (70, 121, DUE, DUE + 60):
            stage.at(second)
            stage.judge()
        assert [stage.window(at)["clock_skew_ms"] for at in (0, 1)] == [3_600_000] * 2
        ahead_ms[node] = 0
        for second in (MUCH_LATER, MUCH_LATER + 120):
            stage.at(second)
            stage.judge()
        assert [stage.window(at)["verdict"] for at in (0, 1)] == ["unknown", "unknown"]
        sink.resume(STUCK)
        sink.work(HELD)
        stage.at(2 * 3600)
        sink.work(stage.send(119, 0, 8))
        stage.at(3 * 3600)
        stage.judge()
        assert [stage.window(at)["verdict"] for at in (0, 1)] == ["ok", "loss"]
        assert all(found["lost"]["min"] == 0 for found in stage.told(0))
        assert {found["lost"]["min"] for found in stage.told(1)} == {0, len(LOST)}
        reasons = {reason for at in (0, 1) for found in stage.told(at) for reason in found["reasons"]}
        assert reasons <= {"pending", "overdue", f"evidence:{node}"}
