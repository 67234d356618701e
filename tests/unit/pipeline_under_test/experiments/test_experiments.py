"""What experiments make of what they measured: figures and charts, without a server."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest

from lagloss_server.model.window import rfc3339
from pipeline_under_test.experiments import NotMeasured, delivery, expel, ingest, retry
from pipeline_under_test.experiments.chart import Chart
from pipeline_under_test.experiments.ingest import WARM_UP_S, Answered
from pipeline_under_test.experiments.retry import POLICIES, RetryRun, RetrySample
from pipeline_under_test.experiments.sandbox import verdict_of
from pipeline_under_test.stream.outcome import ScenarioOutcome
from pipeline_under_test.stream.settings import Retry
from tests.support.window_documents import window_of

SVG = "{http://www.w3.org/2000/svg}"
MINUTE_S = 1_700_000_040
"""Where a window begins."""


def window(start_s: int, p95_ms: float | None, *, messages: int = 10, lost: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    return {
        "window_start": rfc3339(start_s),
        "messages": messages,
        "e2e_lag_ms": {"p50": p95_ms and p95_ms / 2, "p95": p95_ms},
        "lost": {"min": lost[0], "max": lost[1]},
    }


def words_of(chart: Chart) -> set[str | None]:
    return {text.text for text in ET.fromstring(chart.svg()).iter(f"{SVG}text")}


# -- ingest -------------------------------------------------------------------------------------------------------


def test_ingest_leaves_the_warm_up_out_and_counts_events_not_requests() -> None:
    slow = [Answered(at_s, 1.0) for at_s in (0.0, 1.0, WARM_UP_S)]
    quick = [Answered(WARM_UP_S + number / 10, number / 1000) for number in range(1, 101)]
    found = ingest.trial([*slow, *quick], batch=10)
    assert found.events_per_s == pytest.approx(100)
    assert found.response_p50_ms == pytest.approx(50)
    assert found.response_p95_ms == pytest.approx(95)


def test_ingest_says_for_each_number_of_brokers_what_each_size_of_a_request_came_to() -> None:
    runs = {
        (brokers, batch): ingest.IngestTrial(1000.4 * batch / brokers, 10.04, 20.0)
        for brokers in ingest.BROKERS
        for batch in ingest.BATCHES
    }
    found = ingest.figures(runs)
    assert len(found) == len(runs)
    assert found["3 brokers, 3 replicas, 1 per request"]["events_per_s"] == 333
    assert {"1 broker, 1 replica", "3 brokers, 3 replicas", "100", "333"} <= words_of(ingest.chart(runs))


# -- expel --------------------------------------------------------------------------------------------------------


def test_a_connector_is_timed_from_the_last_look_that_saw_nothing_delivered_to_the_first_that_saw_all() -> None:
    looks = [(0.0, 0), (1.0, 0), (2.0, 20), (3.0, 60), (5.0, 120), (9.0, 120)]
    assert expel.rate_of(looks) == pytest.approx(30)
    assert expel.rate_of([(0.0, 0), (0.5, 100)]) == pytest.approx(200)


def test_a_queue_takes_seconds_to_empty_if_only_the_round_trip_counts_and_is_never_huge() -> None:
    assert expel.queue_for((1, 1)) * expel.ROUND_TRIP_S == pytest.approx(expel.QUEUE_S)
    assert expel.queue_for((50, 16)) == expel.MAX_QUEUE


def test_the_lag_of_a_connector_is_that_of_its_worst_window_and_its_losses_add_up() -> None:
    windows = [window(MINUTE_S, 900.0, lost=(1, 2)), window(MINUTE_S + 60, 2500.0, lost=(0, 3)), window(0, None)]
    found = expel.run_of(70.0, list(map(window_of, windows)))
    assert (found.lag_p95_s, found.lost) == (2.5, (1, 5))


def test_expel_tells_lagloss_of_a_pipeline_that_is_one_connector() -> None:
    assert [node.name for node in expel.definition("expel-1-by-1").spec.nodes] == ["conn-ga"]


def test_expel_shows_each_size_of_a_batch_with_each_number_of_requests_at_a_time() -> None:
    runs = {
        (batch, many): expel.ExpelRun(17.0 * batch * many, 0.2, (0, 0)) for batch in (1, 10, 50) for many in (1, 4, 16)
    }
    assert expel.figures(runs)["10 per request, 4 in parallel"]["events_per_s"] == 680
    assert {"1 parallel request", "16 parallel requests", "13600"} <= words_of(expel.chart(runs))


# -- retry --------------------------------------------------------------------------------------------------------


def run_of(*windows: dict[str, Any]) -> RetryRun:
    verdict = {
        "agree": True,
        "injected": {"messages": 100, "delivered": 97, "dead": 3},
        "measured": {"duplicates": 5, "lost": {"min": 0, "max": 0}},
        "windows": [{"measured": one} for one in windows],
    }
    samples = [RetrySample(0.0, 0, 0, 0), RetrySample(30.0, 10, 60, 1), RetrySample(90.0, 40, 102, 3)]
    return RetryRun(MINUTE_S + 30.0, samples, verdict)


@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_meets_the_same_trouble_on_both_vendors_and_ends_before_the_load_does(policy: Retry) -> None:
    made = retry.scenario(policy, seconds=100)
    assert made.run.retry == policy
    assert made.definition().name == f"retry-{policy}"
    other = retry.scenario("global", seconds=100)
    assert made.faults == other.faults
    in_trouble = {injected.fault.node: injected for injected in made.faults if injected.fault.kind == "receiver"}
    assert set(in_trouble) == {"ga", "fb"}
    assert all(one.for_ and one.at + one.for_ < 100_000 for one in in_trouble.values())
    assert {injected.fault.node for injected in made.faults if injected.fault.kind == "refuse"} == {"ga", "fb"}


def test_the_figures_of_a_policy_are_counts_at_the_end_and_the_worst_lag() -> None:
    found = retry.figures({"global": run_of(window(MINUTE_S, 1000.0), window(MINUTE_S + 60, 8000.0))})["global"]
    assert (found["requests"], found["dead_letters"], found["deliveries_too_many"]) == (40, 3, 5)
    assert (found["lag_p95_s_highest"], found["lag_p50_s_highest"]) == (8.0, 4.0)
    assert found["deliveries_a_request"] == pytest.approx(102 / 40, abs=0.1)


def test_lag_is_drawn_as_a_step_for_each_window_from_the_load_s_start_to_its_end() -> None:
    run = run_of(window(MINUTE_S, 1000.0), window(MINUTE_S + 60, 8000.0), window(MINUTE_S + 120, None, messages=0))
    assert retry.lag_steps(run) == [(0.0, 1.0), (30.0, 1.0), (30.0, 8.0), (90.0, 8.0)]


def test_a_policy_s_chart_has_a_line_for_each_policy_in_each_panel() -> None:
    drawn = ET.fromstring(retry.chart({policy: run_of(window(MINUTE_S, 1.0)) for policy in POLICIES}).svg())
    assert len(list(drawn.iter(f"{SVG}polyline"))) == 4 * len(POLICIES)


def test_a_run_that_did_not_get_to_its_end_is_an_error_that_says_why() -> None:
    with pytest.raises(NotMeasured, match="retry-local: no broker"):
        verdict_of(ScenarioOutcome("retry-local", problems=("no broker",)))


# -- delivery -----------------------------------------------------------------------------------------------------


def test_delivery_counts_what_stands_behind_a_later_record_of_its_own_partition() -> None:
    in_order = [(0, 1), (1, 5), (0, 2), (1, 6), (0, 3)]
    assert delivery.behind_a_later_one(in_order) == 0
    assert delivery.behind_a_later_one([*in_order, (0, 3), (1, 6)]) == 0
    assert delivery.behind_a_later_one([*in_order, (0, 2), (1, 5), (0, 4)]) == 2


def test_delivery_puts_each_mode_beside_the_others() -> None:
    def run(lost: int, doubled: int) -> delivery.DeliveryRun:
        measured = {"messages": 100, "lost": {"min": lost, "max": lost}}
        checkpoint = {"name": "event-norm.out", "duplicates": doubled}
        windows = [{"measured": {**window(MINUTE_S, 5_000.0), "checkpoints": [checkpoint]}}] * 2
        return delivery.DeliveryRun({"injected": {"pending": lost}, "measured": measured, "windows": windows}, doubled)

    found = delivery.figures({"at-most-once": run(7, 0), "at-least-once": run(0, 3)})
    assert found["at-most-once"]["lost_min"] == 7
    assert found["at-least-once"]["doubled"] == 6
    assert found["at-least-once"]["lag_p95_s_highest"] == 5.0
    drawn = delivery.chart({"at-most-once": run(7, 0), "at-least-once": run(0, 3)})
    assert {"at-most-once", "at-least-once", "7", "6"} <= words_of(drawn)


def test_delivery_differs_by_mode_alone() -> None:
    runs = {mode: delivery.scenario(mode, 60).run for mode in delivery.MODES}
    assert {mode: (run.at_most_once, run.exactly_once) for mode, run in runs.items()} == {
        "at-most-once": (True, False),
        "at-least-once": (False, False),
        "exactly-once": (False, True),
    }
    assert all(run.taps for run in runs.values())
