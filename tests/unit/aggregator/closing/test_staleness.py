"""Staleness of windows that are being closed, without a database: what is asked of it, and what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from msgspec import structs
from sqlalchemy import Connection

from aggregator.closing.schedule import WindowSchedule
from aggregator.closing.staleness import add_staleness, restate_later
from aggregator.closing.window_store import Closing
from lagloss.wire.sketch import Sketch, bin_keys
from lagloss_server.judging.facts import CheckpointFacts
from lagloss_server.model.window import DestinationCounts, Interval, Lags
from tests.support import stored_windows
from tests.support.window_documents import chain

START_S = 1_800_000_000
GRAPH = chain().graph
BEFORE = ("src.in", "src.out", "mid.in", "mid.out")
ALL = (*BEFORE, "snk.in", "snk.out")


class Answers:
    """A connection that gives these rows to each statement, and keeps what it was asked."""

    def __init__(self, rows: Sequence[Any] = ()) -> None:
        self.rows = rows
        self.asked: list[Mapping[str, Any]] = []

    def execute(self, _: object, parameters: Mapping[str, Any] = MappingProxyType({})) -> Sequence[Any]:
        self.asked.append(parameters)
        return self.rows


def closing(at: int, lowest_ms: Mapping[str, float], basis: int = 5, **changes: Any) -> Closing:
    """A window so many minutes after the first, whose messages were seen with these lags at the earliest."""
    lags = {name: Sketch.of(np.array([lag_ms, lag_ms + 5])) for name, lag_ms in lowest_ms.items()}
    made = stored_windows.closing(START_S + 60 * at, 10, 0, 1, basis, 0)
    facts = replace(made.facts, checkpoints={name: CheckpointFacts(2, lags=each) for name, each in lags.items()})
    due = DestinationCounts("snk", 10, 10, 0, 0, 0, Interval(0, 0), 1.0, Lags(1, 1, 1, 1))
    return replace(made, facts=facts, result=structs.replace(made.result, destinations=(due,)), **changes)


def stale(found: Closing, connection: Answers) -> Mapping[str, float]:
    (added,) = add_staleness(cast("Connection", connection), [found], {found.window: GRAPH})
    return added.result.staleness_ms


def seen(checkpoint: str, **lowest_ms: float) -> list[Any]:
    """Rows of minutes (`m3`: three minutes before the first window) with the lowest lag of each."""
    return [
        SimpleNamespace(
            pipeline="chain",
            checkpoint=checkpoint,
            window_start=START_S - 60 * int(name[1:]),
            lowest=int(bin_keys(np.array([lag_ms]))[0]),
        )
        for name, lag_ms in lowest_ms.items()
    ]


def test_what_was_seen_within_its_minute_needs_no_other_window() -> None:
    connection = Answers()
    found = stale(closing(0, dict.fromkeys(ALL, 2_000.0)), connection)
    assert found == dict.fromkeys(ALL, pytest.approx(2_000, rel=0.01))
    assert connection.asked == []


def test_a_checkpoint_that_messages_wait_for_is_stale_since_its_newest_minute() -> None:
    connection = Answers([*seen("snk.in", m3=900), *seen("snk.out", m4=900), *seen("src.in", m4=1, m3=1, m2=1, m1=1)])
    found = stale(closing(0, dict.fromkeys(BEFORE, 2_000.0)), connection)
    assert (found["snk.in"], found["snk.out"], found["mid.out"]) == (180_000, 240_000, pytest.approx(2_000, rel=0.01))
    (asked,) = connection.asked
    assert set(asked["checkpoints"]) == {"src.in", "snk.in", "snk.out"}


def test_what_comes_later_than_its_minute_is_asked_for_too() -> None:
    connection = Answers(seen("snk.out", m2=130_000.0))
    found = stale(closing(0, {**dict.fromkeys(ALL, 10.0), "snk.out": 130_000.0}), connection)
    assert found["snk.out"] == pytest.approx(130_000, rel=0.01)
    assert set(connection.asked[0]["checkpoints"]) == {"src.in", "snk.out"}


def test_only_what_the_last_minutes_do_not_say_is_looked_for_further_back() -> None:
    connection = Answers([*seen("snk.out", m90=900), *seen("src.in", m90=1, m1=1)])
    found = stale(closing(0, {name: 10.0 for name in ALL if name != "snk.out"}), connection)
    assert found["snk.out"] == 120_000, "since messages came in again"
    assert [asked["firsts"] for asked in connection.asked] == [
        [START_S - back_s] * 2 for back_s in (600, 3_600, 86_400)
    ], "since when messages came in is asked as far back"


@pytest.mark.parametrize("changes", [{"history": True}, {"result": structs.replace(closing(0, {}).result, messages=0)}])
def test_history_and_windows_without_messages_have_none(changes: dict[str, Any]) -> None:
    connection = Answers()
    assert stale(replace(closing(0, dict.fromkeys(ALL, 10.0)), **changes), connection) == {}
    assert connection.asked == []


def known(at: int, staleness_ms: dict[str, float]) -> Any:
    result = structs.replace(closing(0, {}).result, staleness_ms=staleness_ms)
    return SimpleNamespace(pipeline="chain", window_start=START_S + 60 * at, basis=3, document=result.pack())


def test_windows_that_are_less_stale_by_a_closing_are_judged_again() -> None:
    rows = [known(1, {"snk.in": 120_000}), known(2, {"snk.in": 120_000}), known(3, {"mid.in": 600_000})]
    connection = Answers(rows)
    again = restate_later(cast("Connection", connection), [closing(0, {"snk.in": 900.0})])
    assert again == [("chain", START_S + 60, 3)]
    assert [asked.get("starts") for asked in connection.asked] == [None, [START_S + 60]]
    late = restate_later(cast("Connection", Answers(rows)), [closing(0, {"snk.in": 125_000.0})])
    assert late == []


def test_a_window_to_restate_is_judged_again_though_it_was_done_with() -> None:
    schedule = WindowSchedule(60_000)
    schedule.resume(START_S, START_S + 600)
    schedule.restate(START_S + 60, 3, 1_000)
    assert list(schedule.to_judge(1_000)) == [START_S + 60]
    schedule.closed(START_S + 60, 4, None)
    assert list(schedule.to_judge(2_000)) == []
