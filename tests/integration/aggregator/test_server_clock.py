"""The clock of the aggregator's machine is set: what is due, silent or overdue is judged as if it had not been."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from lagloss.broker.topics import create_topics
from lagloss_server.store.store import Store
from tests.integration.aggregator.test_aggregator_process import aggregator, health, metric
from tests.integration.aggregator.test_outages import MESSAGES, Minutes
from tests.support.closers import wait_until
from tests.support.window_documents import documents, window_of


@pytest.mark.slow
def test_an_hour_ahead_and_back_no_emitter_counts_as_silent_and_nothing_is_lost_that_was_not(
    kafka_bootstrap: str, database_url: str, store: Store, tmp_path: Path
) -> None:
    create_topics(kafka_bootstrap)
    ahead = tmp_path / "ahead_s"

    def step(seconds: float) -> None:
        draft = ahead.with_suffix(".new")
        draft.write_text(str(seconds))
        draft.replace(ahead)

    step(0)
    began_s = time.time()
    module = ("tests.support.stepping_clock", ahead)
    with closing(Minutes(kafka_bootstrap)) as minutes:
        minutes.define(store)
        with aggregator(kafka_bootstrap, database_url, tmp_path, module) as process:
            for number, seconds in enumerate((0, 3_600, 0, -3_600, 0), start=1):
                step(seconds)
                minutes.send()
                minutes.flush()
                wait_until(lambda number=number: len(minutes.closed(store)) == number, 120, f"for window {number}")  # type: ignore[misc]
            wait_until(lambda: health(process) == (200, "ok"), 60, "for all to be well")
            waited = metric(process.url, "lagloss_waiting_seconds")
        found = documents(store.windows(minutes.name, minutes.start_s, int(time.time()) + 7_200))
        closed = [window for window in found if window["state"] == "closed"]
        ever = [*closed]
        for window in closed:
            ever += documents(store.revisions(minutes.name, window_of(window).start_s))
    assert waited == 0
    assert [window["messages"] for window in closed if window["messages"]] == [MESSAGES] * 5
    assert window_of(closed[-1]).start_s < time.time()  # none of an hour that has not come
    reported = [window for window in ever if window["messages"] or window_of(window).start_s >= began_s]
    assert {reason for window in reported for reason in window["reasons"]} <= {"pending", "overdue"}
    assert not any(reason.startswith("crash:") for window in ever for reason in window["reasons"])
    # those of long ago count as overdue until they are judged again, minutes later
    assert [one["lost"]["max"] + one["pending"] for one in closed if one["messages"]] == [MESSAGES // 50] * 5
    assert max(window["lost"]["min"] for window in ever) <= MESSAGES // 50
    assert {window["clock_skew_ms"] for window in ever} == {0}
