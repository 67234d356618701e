"""What the rules that are on by default find of faults that were once told to nobody, with nothing but a definition."""

from __future__ import annotations

from typing import Any

import pytest

from alerting.rules.habits import DAY_S, HOUR_S, QUARTER_S, Habits, HabitSeries
from lagloss_server.model.definition import Definition
from tests.support.alert_views import Told, defined, minute, view_of, window
from tests.support.window_documents import window_of

Documents = dict[int, dict[str, Any]]


def opened(definition: Definition, documents: Documents, **more: Any) -> dict[str, str]:
    """The incidents that are open or were, by rule, with their severity, once everything is known."""
    view = view_of(definition, documents, **more)
    found = {}
    for told in Told.all_of(definition):
        told.evaluate(view)
        if told.changes:
            found[told.rule.name] = told.severity
    return found


def habits(per_minute: float = 1_000, filtered: float = 0.02, days: int = 7) -> Habits:
    """What is usual all day long: of so many days before minute 0."""
    first, last = minute(0) - days * DAY_S - HOUR_S, minute(0) + 3 * HOUR_S
    quarters = dict.fromkeys(range(first // QUARTER_S * QUARTER_S, last, QUARTER_S), per_minute)
    hours = dict.fromkeys(range(first // HOUR_S * HOUR_S, last, HOUR_S), filtered)
    return Habits(HabitSeries(QUARTER_S, quarters), {"filtered / messages": HabitSeries(HOUR_S, hours)})


def lossy(definition: Definition, lost_at: dict[int, int], messages: int, until: int) -> Documents:
    return {
        at: window(definition, at, "loss" if at in lost_at else "ok", messages, lost_at.get(at, 0))
        for at in range(until)
    }


def test_a_minute_that_lost_4_percent_of_10_000_is_a_ticket_at_once() -> None:
    assert opened(defined(), lossy(defined(), {5: 400}, 10_000, until=6)) == {"loss": "warning"}


def test_three_such_minutes_in_half_an_hour_are_one_ticket() -> None:
    definition, lost_at = defined(), {5: 400, 15: 400, 25: 400}
    told = Told.of(definition, "loss")
    documents = lossy(definition, lost_at, 10_000, until=30)
    for at in range(1, 31):
        told.evaluate(view_of(definition, {each: documents[each] for each in range(at)}))
    (incident,) = told.incidents.values()
    assert incident.breaches == {minute(at) for at in lost_at}
    assert told.severity == "warning"


def test_thin_traffic_that_loses_half_is_a_ticket_in_its_first_minute() -> None:
    assert opened(defined(), lossy(defined(), {0: 50}, 100, until=1)) == {"loss": "warning"}


@pytest.mark.parametrize(
    ("lost_at", "messages"),
    [({5: 501}, 100_000), ({5: 501}, 50_000), ({5: 60}, 1_000), ({4: 15, 5: 15}, 1_000)],
    ids=["501 of 100,000 are no loss", "501 messages", "6 percent", "two of three"],
)
def test_a_loss_pages_by_its_number_its_share_or_its_duration(lost_at: dict[int, int], messages: int) -> None:
    found = opened(defined(), lossy(defined(), lost_at, messages, until=6)).get("loss")
    assert found == (None if messages == 100_000 else "critical")


def overdue(definition: Definition, at: int, share: float = 0.03) -> dict[str, Any]:
    found = window(definition, at, "unknown", 1_000, reasons=("overdue",))
    count = int(1_000 * share)
    found["lost"]["max"] = found["links"][0]["lost"]["max"] = count
    return found


def test_3_percent_that_are_overdue_in_each_of_70_minutes_are_a_ticket_that_says_what_is_missing() -> None:
    definition = defined()
    documents = {at: overdue(definition, at) for at in range(70)}
    assert opened(definition, documents) == {"uncertain-loss": "warning"}
    told = Told.of(definition, "uncertain-loss")
    told.evaluate(view_of(definition, documents))
    assert told.text == "3 % of messages overdue or possibly lost over 15 min, target 1 %"
    (place,) = told.rule.where([window_of(each) for each in list(documents.values())[-15:]])
    assert (place.kind, place.name, place.share) == ("link", "src->mid", 1.0)
    assert place.text.endswith("the evidence of node mid is complete, but mid.in has not progressed past them")


def test_99_percent_that_are_dead_for_an_hour_are_a_ticket() -> None:
    definition = defined()
    dead = {at: window(definition, at, counts={"mid.in": 1_000, "mid.dead": 990}) | {"dead": 990} for at in range(60)}
    assert opened(definition, dead)["dead-letters"] == "warning"


def test_90_percent_that_are_filtered_for_an_hour_are_a_ticket() -> None:
    definition = defined()
    filtered = {at: window(definition, at) | {"filtered": 900} for at in range(60)}
    assert opened(definition, filtered, habits=habits()) == {"filtered": "warning"}


@pytest.mark.parametrize("messages", [10, 0])
def test_traffic_that_falls_by_99_percent_or_ends_is_a_ticket(messages: int) -> None:
    definition = defined()
    fallen = {at: window(definition, at, "ok" if messages else "idle", messages) for at in range(60)}
    assert opened(definition, fallen, habits=habits()) == {"volume": "warning"}


def test_one_corrupted_message_is_a_ticket() -> None:
    definition = defined()
    documents = {at: window(definition, at) for at in range(3)}
    documents[1]["links"][1]["corrupted"] = 1
    assert opened(definition, documents) == {"corruption": "warning"}


def test_duplicates_of_2_percent_are_a_ticket() -> None:
    definition = defined()
    documents = {at: window(definition, at, counts={"mid.in": 1_020}) for at in range(5)}
    for document in documents.values():
        document["checkpoints"][0]["duplicates"] = 20
    assert opened(definition, documents) == {"duplicates": "warning"}


def test_a_checkpoint_in_the_middle_that_is_given_a_target_is_a_ticket_when_it_is_stale() -> None:
    definition = defined(sla="{staleness: {checkpoints: {mid.out: 2m}}}")
    everywhere = {"src.in": 9, "mid.out": 9, "snk.out": 9}
    counts = {at: everywhere if at < 2 else {"src.in": 9} for at in range(5)}
    documents = {at: window(definition, at, "unknown", counts=counts[at]) for at in counts}
    assert opened(definition, documents, now_at=5) == {"staleness/checkpoint/mid.out": "warning"}


def test_a_day_on_which_all_is_well_opens_nothing() -> None:
    definition = defined()
    fine = {at: window(definition, at, "ok", 1_000) | {"filtered": 20, "dead": 2} for at in range(180)}
    assert opened(definition, fine, habits=habits()) == {}


def test_a_young_pipeline_is_compared_with_the_days_there_are_and_without_any_with_the_hours_before() -> None:
    definition = defined()
    odd = {at: window(definition, at, "ok", 10) | {"filtered": 9} for at in range(60)}
    assert opened(definition, odd) == {}, "it was never otherwise"
    for days in (1, 2, 3):
        assert opened(definition, odd, habits=habits(days=days)) == {"filtered": "warning", "volume": "warning"}
    less = {at: window(definition, at, "ok", 120) for at in range(60)}
    assert opened(definition, less, habits=habits(filtered=0, days=1)) == {}
    assert opened(definition, less, habits=habits(filtered=0, days=2)) == {"volume": "warning"}
