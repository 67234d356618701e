"""What is usual for a pipeline in its first days, by what history there is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alerting.rules import reader_of, unusual
from alerting.rules.assessment import Assessment
from alerting.rules.early_baseline import AWAY_BY_DAYS, BELOW_BY_DAYS, RECENT_S, away_by_days
from alerting.rules.habits import DAY_S, HOUR_S, QUARTER_S, Habits, HabitSeries
from alerting.rules.view import PipelineView
from alerting.rules.windows import SEEING
from alerting.views.habit_cache import habits_of
from alerting.views.window_cache import CONTEXT_S
from tests.support.alert_views import Told, defined, minute, rule_of

Counts = Callable[[int], float]
CLEAN, BAD = 0.02, 0.9


def view(
    minutes: int, messages: Counts = lambda at: 600, filtered: Counts = lambda at: CLEAN, from_minute: int = 0
) -> PipelineView:
    """A pipeline that began at minute 0, with what is kept of its first hours; `filtered`: a share."""
    definition = defined("volume: [{}, {at: node=mid}]")
    reader = reader_of(definition)
    rows = np.zeros(minutes, reader.windows(()).rows.dtype)
    rows["start"] = minute(0) + 60 * np.arange(minutes)
    rows["evidence"] = SEEING
    rows["messages"] = [messages(at) for at in range(minutes)]
    rows["filtered"] = [messages(at) * filtered(at) for at in range(minutes)]
    rows["measures"] = rows["messages"][:, np.newaxis]
    starts, now_s = rows["start"].tolist(), minute(minutes) + 100
    quarters: dict[int, list[float]] = {}
    hours: dict[int, list[tuple[float, float]]] = {}
    for start, row in zip(starts, rows, strict=True):
        quarters.setdefault(start // QUARTER_S * QUARTER_S, []).append(float(row["messages"]))
        hours.setdefault(start // HOUR_S * HOUR_S, []).append((float(row["filtered"]), float(row["messages"])))
    read_to_s = (now_s // HOUR_S - 2) * HOUR_S
    habits = habits_of(
        {
            start: sum(values) / len(values)
            for start, values in quarters.items()
            if len(values) >= 10 and start < read_to_s
        },
        {
            "filtered / messages": {
                start: sum(part for part, _ in pairs) / total
                for start, pairs in hours.items()
                if len(pairs) >= 40 and start < read_to_s and (total := sum(number for _, number in pairs)) >= 100
            }
        },
    )
    seen_from_s = minute(from_minute)
    kept = rows[rows["start"] >= seen_from_s // HOUR_S * HOUR_S - CONTEXT_S]
    return PipelineView(definition, now_s, reader.of_rows(kept), seen_from_s, habits=habits)


def breached(name: str, seen: PipelineView) -> list[int]:
    return sorted((start - minute(0)) // 60 for start in rule_of(seen.definition, name).assess(seen).breaches)


def test_windows_are_kept_as_far_back_as_the_hours_before_are_not_read() -> None:
    assert CONTEXT_S >= RECENT_S


def test_90_percent_filtered_after_25_clean_minutes_open_nothing_until_half_an_hour_is_known() -> None:
    def filtered(at: int) -> float:
        return CLEAN if at < 25 else BAD

    for minutes in range(1, 45):
        assert breached("filtered", view(minutes, filtered=filtered)) == []
    told = Told.of(defined(), "filtered")
    told.evaluate(view(60, filtered=filtered))
    assert told.kinds == ["opened"]
    assert told.text == "90 % of messages filtered, usually 2 %, compared with 25 min before (no earlier day)"


def test_a_volume_that_drops_to_zero_after_three_steady_hours_is_found_and_stays_so() -> None:
    def messages(at: int) -> float:
        return 600.0 if at < 180 else 0.0

    told = Told.of(defined(), "volume")
    for minutes in range(170, 700, 5):
        told.evaluate(view(minutes, messages, from_minute=max(0, minutes - 200)))
    assert told.kinds[0] == "opened"
    assert set(told.kinds) == {"opened", "updated"}, "a long outage does not become usual"
    assert told.text == "0 messages in 15 min, usually 9,000, compared with 3 h before (no earlier day)"
    (incident,) = told.incidents.values()
    assert min(incident.breaches) == minute(180)


@pytest.mark.parametrize(
    ("messages", "filtered"),
    [
        pytest.param(lambda at: 600 * (0.55 + 0.45 * math.sin(at / 229 + 1)), lambda at: CLEAN, id="day"),
        pytest.param(lambda at: 600 if at // 720 % 2 == 0 else 60, lambda at: CLEAN, id="night is a tenth, at once"),
        pytest.param(lambda at: 600 if at < 2_000 else 300, lambda at: CLEAN, id="weekend"),
        pytest.param(lambda at: 5 + at, lambda at: CLEAN, id="ramp-up"),
        pytest.param(lambda at: 3_000 if at % 60 < 8 else 0, lambda at: CLEAN, id="a batch each hour"),
        pytest.param(lambda at: 3_000 if at % 60 < 31 else 0, lambda at: CLEAN, id="half of each hour"),
        pytest.param(lambda at: 600, lambda at: 0.4 if at % 60 < 10 else CLEAN, id="more is filtered at full hours"),
        pytest.param(lambda at: 600, lambda at: 0.05 + 0.3 * (at // 720 % 2), id="more is filtered at night"),
        pytest.param(lambda at: 600, lambda at: 0.0 if at else 1.0, id="a first minute of tests"),
        pytest.param(lambda at: 0, lambda at: 0.0, id="nothing"),
        pytest.param(lambda at: 1, lambda at: float(at % 2), id="hardly anything"),
    ],
)  # fmt: skip
def test_a_young_pipeline_that_is_well_opens_nothing_in_its_first_days(messages: Counts, filtered: Counts) -> None:
    for minutes in range(60, 2_880, 180):
        seen = view(minutes, messages, filtered, from_minute=max(0, minutes - 200))
        for name in ("filtered", "volume", "volume/node/mid"):
            assert breached(name, seen) == [], minutes


def test_a_deviation_that_lasts_is_left_out_of_what_it_is_compared_with() -> None:
    seen = view(900, filtered=lambda at: CLEAN if at < 60 else BAD, from_minute=700)
    assert breached("filtered", seen) == list(range(700, 900))


def test_a_place_is_compared_by_its_share_of_the_messages() -> None:
    seen = view(300)
    seen.windows.rows["measures"][200:] = 0
    told = Told.of(seen.definition, "volume/node/mid")
    told.evaluate(seen)
    assert told.text.startswith("0 % of the messages reach node mid, usually 100 %, compared with 1.5 h")


def test_a_second_day_names_both_what_was_before_and_the_day_before() -> None:
    seen = view(25 * 60 + 20, filtered=lambda at: CLEAN if at < 25 * 60 else BAD, from_minute=25 * 60 - 20)
    told = Told.of(defined(), "filtered")
    told.evaluate(seen)
    assert told.text == "90 % of messages filtered, usually 2 %, compared with 2.1 h before and this hour of 1 day"


COUNTS = st.integers(0, 3_000)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(COUNTS, st.floats(0, 1)), min_size=1, max_size=134))
def test_no_incident_is_from_less_than_half_an_hour_of_shares_or_two_of_numbers(rows: list[tuple[int, float]]) -> None:
    seen = view(len(rows), lambda at: rows[at][0], lambda at: rows[at][1])
    assert breached("volume", seen) == []
    assert breached("filtered", view(min(44, len(rows)), lambda at: rows[at][0], lambda at: rows[at][1])) == []


@settings(max_examples=20, deadline=None)
@given(st.integers(130, 300), st.integers(0, 300), st.integers(20, 60), st.sampled_from([0.0, 20.0, 200.0]))
def test_what_is_found_after_some_hours_is_found_after_more(hours: int, more: int, bad: int, messages: float) -> None:
    def found(name: str, clean: int) -> bool:
        fallen = messages if name == "volume" else 600
        seen = view(clean + bad, lambda at: 600 if at < clean else fallen, lambda at: CLEAN if at < clean else BAD)
        return bool(breached(name, seen))

    for name in ("volume", "filtered"):
        assert found(name, hours + more) >= found(name, hours)


def test_bounds_shrink_to_those_of_the_habit_with_each_day() -> None:
    days = np.arange(8)
    for target in (0.01, 0.1, 0.3, 0.8):
        away = away_by_days(target, days)
        assert (np.diff(away) <= 0).all()
        assert (away[3:] == target).all()
    assert (np.diff(BELOW_BY_DAYS) >= 0).all()
    assert len(AWAY_BY_DAYS) == len(BELOW_BY_DAYS) == 8


VALUES = st.one_of(st.just(math.nan), st.just(math.inf), st.floats(0, 1e9), st.just(0.0))


@settings(max_examples=40, deadline=None)
@given(st.lists(VALUES, max_size=40), st.lists(VALUES, max_size=12), st.integers(0, 200))
def test_unknown_and_empty_values_of_any_kind_raise_nothing(
    quarters: list[float], hours: list[float], minutes: int
) -> None:
    first_s = minute(0) // HOUR_S * HOUR_S - DAY_S - 4 * HOUR_S
    habits = Habits(
        HabitSeries(QUARTER_S, {first_s + QUARTER_S * at: value for at, value in enumerate(quarters)}),
        {"filtered / messages": HabitSeries(HOUR_S, {first_s + HOUR_S * at: value for at, value in enumerate(hours)})},
    )
    seen = replace(view(minutes, lambda at: 600 * (at % 7)), habits=habits)
    for name in ("filtered", "volume", "volume/node/mid"):
        assert isinstance(rule_of(seen.definition, name).assess(seen), Assessment)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(COUNTS, st.floats(0, 1)), min_size=20, max_size=200), st.integers(3, 8))
def test_once_a_week_is_known_only_the_habit_counts(rows: list[tuple[int, float]], days: int) -> None:
    first_s, last_s = minute(0) - days * DAY_S - HOUR_S, minute(300)
    quarters = {start: float(start // 7 % 900) for start in range(first_s // QUARTER_S * QUARTER_S, last_s, QUARTER_S)}
    hours = {start: start // 11 % 100 / 100 for start in range(first_s // HOUR_S * HOUR_S, last_s, HOUR_S)}
    habits = habits_of(quarters, {"filtered / messages": hours})
    seen = replace(view(len(rows), lambda at: rows[at][0], lambda at: rows[at][1]), habits=habits)
    for name in ("filtered", "volume") if days >= 7 else ("filtered",):
        rule = rule_of(seen.definition, name)
        found = rule.assess(seen)
        with mock.patch.object(unusual, "completed", lambda usual, *_: usual):
            assert rule.assess(seen) == found


def test_which_baseline_counts_is_said_until_a_week_is_known() -> None:
    definition = defined()
    texts = {}
    for days in (3, 7):
        first_s, last_s = minute(0) - days * DAY_S - HOUR_S, minute(60)
        hours = dict.fromkeys(range(first_s // HOUR_S * HOUR_S, last_s, HOUR_S), CLEAN)
        told = Told.of(definition, "filtered")
        told.evaluate(replace(view(40, filtered=lambda at: BAD), habits=habits_of({}, {"filtered / messages": hours})))
        texts[days] = told.text.removeprefix("90 % of messages filtered, usually 2 % ")
    assert texts == {3: "at this hour (3 days of history)", 7: "at this hour"}
