"""What is far from a pipeline's habit, and all that looks like it and is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alerting.rules.habits import DAY_S, HOUR_S, QUARTER_S, SIGMA_OF_MAD, Habits, HabitSeries
from alerting.rules.windows import Ints
from lagloss_server.model.definition import Definition
from tests.support.alert_views import Told, defined, minute, rule_of, view_of, window
from tests.support.window_documents import clicks

Documents = dict[int, dict[str, Any]]
HOUR = minute(0) // HOUR_S * HOUR_S


def series(value: Callable[[int, int], float | None], step_s: int = QUARTER_S, days: int = 8) -> HabitSeries:
    """A series by what each stretch of a day had: of how many days before minute 0, and how many seconds after it."""
    first = minute(0) // step_s * step_s
    found = {}
    for day in range(1, days + 1):
        for after in range(-2 * HOUR_S // step_s * step_s, 4 * HOUR_S, step_s):
            known = value(day, after)
            if known is not None:
                found[first - day * DAY_S + after] = known
    return HabitSeries(step_s, found)


def volume(value: Callable[[int, int], float | None]) -> Habits:
    return Habits(series(value))


def shares(**by_name: float) -> Habits:
    names = {name.replace("__", " / ").replace("_AT_", " "): value for name, value in by_name.items()}
    return Habits(shares={name: series(lambda day, after, v=value: v, HOUR_S) for name, value in names.items()})


def breached(definition: Definition, name: str, documents: Documents, habits: Habits) -> set[int]:
    found = rule_of(definition, name).assess(view_of(definition, documents, habits=habits))
    return {(start - minute(0)) // 60 for start in found.breaches}


def flow(messages: Callable[[int], int], until: int = 60, **more: Any) -> Documents:
    return {at: window(defined(), at, "ok", messages(at), **more) for at in range(until)}


DAYS = st.lists(st.none() | st.integers(0, 1_000), min_size=7, max_size=7)


@settings(max_examples=60)
@given(DAYS)
def test_usual_is_the_median_of_the_days_that_are_known_and_their_median_distance_from_it(days: list[Any]) -> None:
    known = sorted(value for value in days if value is not None)
    found = series(lambda day, after: days[day - 1] if day <= 7 else None).usual_at(np.array([minute(0)]))
    if len(known) < 3:
        assert np.isnan([found.median[0], found.spread[0]]).all()
        return

    def middle(values: list[float]) -> float:
        values = sorted(values)
        return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2

    assert found.median[0] == middle(known)
    assert found.spread[0] == pytest.approx(SIGMA_OF_MAD * middle([abs(value - middle(known)) for value in known]))
    assert found.week_ago[0] == days[6] or (days[6] is None and np.isnan(found.week_ago[0]))


def test_each_moment_is_judged_by_its_own_quarter_and_at_the_least_by_those_around() -> None:
    steps = series(lambda day, after: 100.0 * (after // QUARTER_S + 10))
    at: Ints = np.array([minute(0), minute(0) + 2 * QUARTER_S])
    assert steps.usual_at(at).median.tolist() == [1_000.0, 1_200.0]
    assert steps.lowest_around(at).median.tolist() == [900.0, 1_100.0]


def test_traffic_that_falls_to_less_than_half_is_found_within_the_span_and_named_by_numbers() -> None:
    definition, usual = defined(), volume(lambda day, after: 1_000.0 + 10 * day)
    fallen = flow(lambda at: 1_000 if at < 20 else 50)
    told = Told.of(definition, "volume")
    told.evaluate(view_of(definition, {at: fallen[at] for at in range(27)}, habits=usual))
    assert told.kinds == [], "seven minutes of 15 are not half of them"
    told.evaluate(view_of(definition, {at: fallen[at] for at in range(28)}, habits=usual))
    assert told.kinds == ["opened"]
    assert told.text == "7,400 messages in 15 min, usually 15,600 at this time"
    (incident,) = told.incidents.values()
    assert min(incident.breaches) == minute(20), "it began with the first window that was short"
    back = fallen | {at: window(definition, at, "ok", 1_000) for at in range(60, 75)}
    told.evaluate(view_of(definition, back, habits=usual))
    assert told.kinds[-1] == "resolved"


@pytest.mark.parametrize(
    ("messages", "usual"),
    [
        pytest.param(lambda at: 400, lambda day, after: 400.0 if day % 7 == 0 else 1_000.0, id="as last Saturday"),
        pytest.param(lambda at: 300, lambda day, after: [100.0, 900.0, 1_500.0][day % 3], id="days differ so much"),
        pytest.param(lambda at: 100 if at < 30 else 1_000, lambda day, after: 100.0 if after < 1_800 else 1_000.0,
                     id="a morning begins"),
        pytest.param(lambda at: 100 if at < 33 else 1_000, lambda day, after: 100.0 if after < 1_800 else 1_000.0,
                     id="and today ten minutes late"),
        pytest.param(lambda at: 0, lambda day, after: 1.0, id="one a minute may be none by chance"),
        pytest.param(lambda at: 600, lambda day, after: 1_000.0, id="not half"),
        pytest.param(lambda at: 9_000, lambda day, after: 1_000.0, id="more than usual"),
        pytest.param(lambda at: 160, lambda day, after: 1_000.0 if day < 3 else None, id="a third of it, by two days"),
    ],
)  # fmt: skip
def test_traffic_that_is_not_unusual_opens_nothing(messages: Callable[[int], int], usual: Any) -> None:
    assert breached(defined(), "volume", flow(messages), volume(usual)) == set()


def test_windows_without_evidence_say_nothing_of_how_many_messages_there_are() -> None:
    usual = volume(lambda day, after: 1_000.0)
    blind = flow(lambda at: 10)
    for document in blind.values():
        document |= {"verdict": "unknown", "reasons": ["evidence:src"]}
    found = rule_of(defined(), "volume").assess(view_of(defined(), blind, habits=usual))
    assert (found.breaches, list(found.good)) == ({}, [])


def test_a_sample_needs_more_messages_to_be_sure() -> None:
    whole = defined()
    document = whole.model_dump(mode="json", by_alias=True)
    document["spec"]["sample"] = 0.001
    sampled = Definition.model_validate(document)
    usual, fallen = volume(lambda day, after: 1_000.0), flow(lambda at: 300)
    assert breached(whole, "volume", fallen, usual)
    assert breached(sampled, "volume", fallen, usual) == set()


def test_a_share_of_filtered_messages_is_unusual_ten_points_above_or_below_its_habit() -> None:
    usual = shares(filtered__messages=0.3)

    def filtered(count: int) -> Documents:
        return {at: document | {"filtered": count} for at, document in flow(lambda at: 1_000).items()}

    assert breached(defined(), "filtered", filtered(390), usual) == set()
    assert breached(defined(), "filtered", filtered(410), usual) == set(range(60))
    assert breached(defined(), "filtered", filtered(0), usual) == set(range(60))
    assert breached(defined("filtered: {away: 0.3}"), "filtered", filtered(410), usual) == set()
    told = Told.of(defined(), "filtered")
    told.evaluate(view_of(defined(), filtered(900), habits=usual))
    assert told.text == "90 % of messages filtered, usually 30 % at this hour"
    assert told.changes[-1].worst == pytest.approx(0.6)


def test_a_share_of_few_messages_has_to_be_further_away() -> None:
    usual = shares(filtered__messages=0.0)
    few = {at: document | {"filtered": 1} for at, document in flow(lambda at: 3, until=13).items()}
    assert breached(defined(), "filtered", few, usual) == set(range(13)), "13 of 39 are far enough"
    assert breached(defined(), "filtered", {at: few[at] for at in range(12)}, usual) == set(), "12 of 36 are not"
    most = {at: document | {"filtered": 3} for at, document in flow(lambda at: 3, until=5).items()}
    assert breached(defined(), "filtered", most, usual) == {0, 1, 2, 3, 4}


def test_a_share_that_differs_from_day_to_day_has_to_be_further_away() -> None:
    swinging = Habits(shares={"filtered / messages": series(lambda day, after: 0.1 * (day % 4), HOUR_S)})
    for count, is_far in ((450, False), (900, True)):
        documents = {at: document | {"filtered": count} for at, document in flow(lambda at: 1_000).items()}
        assert bool(breached(defined(), "filtered", documents, swinging)) is is_far


def test_a_destination_that_gets_less_than_half_of_its_share_of_the_traffic_is_named() -> None:
    document = clicks().model_dump(mode="json", by_alias=True)
    document["spec"]["alerts"]["volume"] = [{"at": "destination=~conn-.*"}]
    definition = Definition.model_validate(document)
    usual = Habits(
        shares={
            f"messages destination {name} / messages": series(lambda day, after, s=share: s, HOUR_S)
            for name, share in (("conn-ga", 0.7), ("conn-fb", 0.5))
        }
    )
    odd = {at: window(definition, at, due={"conn-ga": 700, "conn-fb": 20}) for at in range(30)}
    assert breached(definition, "volume/destination/conn-ga", odd, usual) == set()
    assert breached(definition, "volume/destination/conn-fb", odd, usual) == set(range(30))
    told = Told.of(definition, "volume/destination/conn-fb")
    told.evaluate(view_of(definition, odd, habits=usual))
    assert told.text == "2 % of the messages reach destination conn-fb, usually 50 % at this hour"
