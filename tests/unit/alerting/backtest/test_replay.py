"""Replaying the past: the same incidents as of an alerter that looked at everything whenever something closed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from alerting.backtest.replay import UNTRIED, Past, Replay, Replayed, ReplayedClosing, is_by_the_clock
from alerting.rules import reader_of, rules_of
from alerting.rules.view import PipelineView
from lagloss_server.model.definition import Definition
from tests.support.alert_views import Told, defined, minute, window
from tests.support.window_documents import window_of

RULES = """loss: {page: {breaches: 2, of: 4, minMessages: 900}}
uncertainLoss: {over: 4m}
lag: [{breaches: 2, of: 2}]
blind: {breaches: 2, of: 3}
budget: {minMessages: 0}
resolveAfter: 2"""
Outcome = tuple[str, float, float | None, frozenset[int], float]

# minutes from one first closing to the next, when its result is revised (minutes later), and what the results are
RESULTS = st.sampled_from(["ok", "ok", "loss", "thin loss", "blind", "slow", "idle"])
PASTS = st.lists(st.tuples(st.integers(1, 9), st.none() | st.integers(1, 90), RESULTS, RESULTS), max_size=14)


def result(definition: Definition, at: int, kind: str) -> dict[str, Any]:
    if kind == "blind":
        return window(definition, at, "unknown", reasons=("evidence:mid",))
    if kind == "slow":
        return window(definition, at, lags_ms={"snk.out": 9_000.0, "src.in": 1.0})
    verdict = kind.split()[-1]
    messages = {"idle": 0, "thin loss": 100}.get(kind, 1_000)
    return window(
        definition, at, verdict, messages, messages // 4 if verdict == "loss" else 0, lags_ms={"snk.out": 5.0}
    )


def closings_of(definition: Definition, past: Sequence[tuple[int, int | None, str, str]]) -> list[ReplayedClosing]:
    reader, at, closings = reader_of(definition), 0, []
    for apart, revised_after, first, then in past:
        at += apart
        results = [(at + 2, first)] + ([] if revised_after is None else [(at + 2 + revised_after, then)])
        for closed_at, kind in results:
            row = reader.row(minute(at), window_of(result(definition, at, kind)))
            closings.append(ReplayedClosing(minute(closed_at), minute(at), row))
    return closings


def looked_at_everything(definition: Definition, closings: Sequence[ReplayedClosing], from_s: int) -> list[Outcome]:
    reader = reader_of(definition)
    rows: dict[int, Any] = {}
    told = [Told(rule) for rule in rules_of(definition) if not is_by_the_clock(rule) and rule.name not in UNTRIED]
    opened: dict[tuple[str, int], float] = {}
    for now_s, together in groupby(sorted(closings, key=lambda closing: closing.at_s), lambda closing: closing.at_s):
        rows |= {closing.start_s: closing.row for closing in together}
        windows = reader.windows([rows[start] for start in sorted(rows)])
        for each in told:
            each.evaluate(PipelineView(definition, now_s, windows, from_s))
            for number in each.incidents:
                opened.setdefault((each.rule.name, number), now_s)
    return [
        (each.rule.name, opened[each.rule.name, number], found.resolved_at_s, found.breaches, found.worst)
        for each in told
        for number, found in each.incidents.items()
    ]


def outcome(incident: Replayed) -> Outcome:
    known = incident.known
    return (incident.rule.name, incident.opened_at_s, known.resolved_at_s, known.breaches, known.worst)


@settings(max_examples=25)
@given(past=PASTS, context=st.integers(0, 10))
def test_what_it_opens_is_what_an_alerter_opens_that_looks_at_everything(
    past: list[tuple[int, int | None, str, str]], context: int
) -> None:
    definition, from_s = defined(RULES), minute(context)
    closings = closings_of(definition, past)
    replay = Replay(definition, from_s, minute(300), Past())
    replay.run(closings, minute(300))
    found = [outcome(incident) for incident in replay.incidents if not is_by_the_clock(incident.rule)]
    assert sorted(found, key=repr) == sorted(looked_at_everything(definition, closings, from_s), key=repr)


def test_an_incident_of_long_ago_that_is_reopened_has_lost_what_was_revised_since() -> None:
    definition = defined(RULES)
    reader = reader_of(definition)
    kinds = {at: "loss" if at in (0, 1, 75, 76) else "ok" if at in (70, 71) else "blind" for at in range(77)}
    closings = [
        ReplayedClosing(minute(at + 2), minute(at), reader.row(minute(at), window_of(result(definition, at, kind))))
        for at, kind in kinds.items()
    ]
    closings += [
        ReplayedClosing(minute(74) + 30, minute(at), reader.row(minute(at), window_of(result(definition, at, "ok"))))
        for at in (0, 1)
    ]
    replay = Replay(definition, minute(0), minute(300), Past())
    replay.run(closings, minute(78))
    (loss,) = [incident for incident in replay.incidents if incident.rule.name == "loss"]
    assert (loss.opened_at_s, loss.resolved_at_s) == (minute(2), None)
    assert loss.known.breaches == {minute(75), minute(76)}


def test_a_closer_that_stands_still_is_found_by_the_clock() -> None:
    definition = defined()
    reader = reader_of(definition)
    rows = {at: reader.row(minute(at), window_of(window(definition, at))) for at in range(33)}
    closings = [ReplayedClosing(minute(at + 2 if at < 10 else 35), minute(at), row) for at, row in rows.items()]
    replay = Replay(definition, minute(0), minute(40), Past())
    replay.run(closings, minute(36))
    assert [incident.rule.name for incident in replay.incidents] == ["blind/closing"]
    # the tenth window ended with minute 10, and its grace is a minute: three more have passed at minute 14
    assert (replay.incidents[0].opened_at_s, replay.incidents[0].resolved_at_s) == (minute(15), minute(35))


def test_staleness_is_told_from_when_messages_are_known_to_have_come() -> None:
    definition = defined("loss: off\nlag: off\nonTime: off\nbudget: off\nblind: off")
    reader = reader_of(definition)
    documents = {
        at: window(definition, at, counts={"src.in": 9, **({"snk.out": 9} if at < 10 or at > 19 else {})})
        for at in range(30)
    }
    closings = [
        ReplayedClosing(minute(at + 2), minute(at), reader.row(minute(at), window_of(each)))
        for at, each in documents.items()
    ]
    delivered = [minute(at) for at in documents if at < 10 or at > 19]
    past = Past({"snk.out": delivered}, [minute(at) for at in documents])
    replay = Replay(definition, minute(0), minute(30), past)
    replay.run(closings, minute(30))
    (incident,) = replay.incidents
    assert (incident.opened_at_s, incident.resolved_at_s) == (minute(16), minute(20))
    assert [place.name for place in incident.places] == ["snk.out"]


def test_an_incident_says_which_open_one_would_have_kept_it_silent() -> None:
    definition = defined()
    reader = reader_of(definition)
    closings = [
        ReplayedClosing(
            minute(at + 2), minute(at), reader.row(minute(at), window_of(window(definition, at, "loss", lost=800)))
        )
        for at in range(8)
    ]
    replay = Replay(definition, minute(0), minute(10), Past(), without=["on-time"])
    replay.run(closings, minute(10))
    assert {incident.rule.name: incident.inhibited_by for incident in replay.incidents} == {
        "loss": (),
        "budget/loss/1h": ("loss",),
        "budget/on-time/1h": ("loss",),
    }
