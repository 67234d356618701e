"""Judging, and k of n with it: by example, and against a slow reading of what loss means, whenever anybody looks."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import example, given
from hypothesis import strategies as st

from alerting.incidents.lifecycle import REOPEN_S, KnownIncident, Transition, judge
from alerting.rules.assessment import Assessment
from alerting.rules.windows import WindowReader
from tests.support.alert_views import Told, defined, minute, rule_of, view_of, window

ID, OTHER = UUID(int=1), UUID(int=2)
NOW = 100_000.0


def found(
    breaches: dict[int, float], seen: range = range(100), good: tuple[int, ...] = (), after: int = 3
) -> Assessment:
    return Assessment(seen, breaches, good, after)


def known(*breaches: int, worst: float = 0.5, resolved_at_s: float | None = None, id: UUID = ID) -> KnownIncident:
    return KnownIncident(id, worst, frozenset(breaches), resolved_at_s)


def test_a_breach_opens_an_incident_with_its_worst_and_its_last_value() -> None:
    assert judge(True, found({5: 0.3, 6: 0.2}), None, [], NOW) == Transition("opened", {5: 0.3, 6: 0.2}, 0.3, 0.2)
    assert judge(False, found({5: 0.3, 6: 0.2}), None, [], NOW) == Transition("opened", {5: 0.3, 6: 0.2}, 0.2, 0.2)


def test_nothing_is_opened_without_a_breach_and_nothing_told_of_one_that_is_up_to_date() -> None:
    assert judge(True, found({}, good=(1, 2, 3)), None, [], NOW) is None
    assert judge(True, found({5: 0.3}), known(5), [], NOW) is None


def test_a_breach_more_updates_and_one_that_was_revised_away_is_named() -> None:
    assert judge(True, found({5: 0.3, 6: 0.6}), known(5), [], NOW) == Transition(
        "updated", {5: 0.3, 6: 0.6}, 0.6, 0.6, incident=ID
    )
    assert judge(True, found({5: 0.3}), known(5, 6), [], NOW) == Transition(
        "updated", {5: 0.3}, 0.3, 0.3, revised=(6,), incident=ID
    )


def test_it_takes_so_many_good_windows_after_the_last_breach() -> None:
    assert judge(True, found({5: 0.3}, good=(1, 2, 3, 4, 6, 7)), known(5), [], NOW) is None
    assert judge(True, found({5: 0.3}, good=(6, 7, 9)), known(5), [], NOW) == Transition(
        "resolved", {5: 0.3}, 0.3, 0.3, "recovered", incident=ID
    )


def test_an_incident_whose_last_breach_was_revised_away_is_resolved_as_that_and_holds_none() -> None:
    change = judge(True, found({}), known(5, 6), [], NOW)
    assert change == Transition("resolved", {}, 0.5, 0.5, "revised", (5, 6), ID)


def test_a_breach_that_is_not_among_what_is_seen_stays_and_its_value_is_not_known() -> None:
    assert judge(True, found({}, seen=range(50, 100)), known(5), [], NOW) is None
    change = judge(True, found({60: 0.2}, seen=range(50, 100)), known(5), [], NOW)
    assert change == Transition("updated", {5: None, 60: 0.2}, 0.5, 0.2, incident=ID)


def test_breaches_of_resolved_incidents_open_nothing_again_unless_it_was_resolved_as_revised() -> None:
    assert judge(True, found({5: 0.3}), None, [known(5, resolved_at_s=0.0)], NOW) is None
    again = judge(True, found({5: 0.3}), None, [known(resolved_at_s=0.0)], NOW)
    assert again is not None
    assert again.kind == "opened"


def test_a_new_breach_soon_after_the_end_reopens_the_incident_that_was_resolved_last() -> None:
    older, last = known(1, resolved_at_s=NOW - REOPEN_S, id=OTHER), known(5, 6, resolved_at_s=NOW - REOPEN_S + 1)
    change = judge(True, found({1: 0.9, 5: 0.3, 8: 0.2}), None, [last, older], NOW)
    assert change == Transition("reopened", {5: 0.3, 8: 0.2}, 0.3, 0.2, "", (6,), ID)
    assert judge(True, found({5: 0.3, 6: 0.2, 8: 0.2}), None, [last], NOW + REOPEN_S) == Transition(
        "opened", {8: 0.2}, 0.2, 0.2
    )


def test_a_breach_that_is_over_before_anybody_looked_opens_and_then_resolves() -> None:
    definition = defined()
    told = Told(rule_of(definition, "loss"))
    documents = {at: window(definition, at, "loss", lost=20) for at in range(2)}
    documents |= {at: window(definition, at) for at in range(2, 5)}
    told.evaluate(view_of(definition, documents))
    assert told.kinds == ["opened", "resolved"]


# A window's closing: its minute, verdict, messages and lost, of which a later one of the same minute is a revision.
CLOSINGS = st.lists(
    st.tuples(
        st.integers(0, 14),
        st.sampled_from(["ok", "loss", "loss", "unknown", "idle"]),
        st.sampled_from([100, 200, 400, 1_000]),
        st.sampled_from([5, 20, 60]),
    ),
    max_size=30,
)
RULES = st.tuples(st.integers(1, 3), st.integers(3, 5), st.sampled_from([0, 500, 1_000]), st.integers(1, 3))


def slow_breaches(windows: dict[int, tuple[str, int, int]], k: int, n: int, least: int) -> dict[int, float]:
    """A breach is at a lossy window if k of the n closed windows that end with it are lossy, or it lost over 5 %, and
    the n hold so many messages together. It is made up of those lossy windows, or of that one."""
    breaches: dict[int, float] = {}
    order = sorted(windows)
    for at in order:
        last = [other for other in order if other <= at][-n:]
        verdict, messages, lost = windows[at]
        lossy = [other for other in last if windows[other][0] == "loss"]
        if verdict != "loss" or sum(windows[other][1] for other in last) < least:
            continue
        if len(lossy) >= k:
            breaches |= {minute(other): windows[other][2] / windows[other][1] for other in lossy}
        if lost / messages > 0.05:
            breaches[minute(at)] = lost / messages
    return breaches


def documented(definition: Any, at: int, verdict: str, messages: int, lost: int) -> tuple[tuple[str, int, int], Any]:
    """What the slow reading and what the rule sees of a closing."""
    messages, lost = (0 if verdict == "idle" else messages), (lost if verdict == "loss" else 0)
    return (verdict, messages, lost), window(definition, at, verdict, messages, lost)


@given(closings=CLOSINGS, rule=RULES, looks=st.lists(st.booleans(), min_size=30, max_size=30))
@example(
    closings=[(0, "loss", 1_000, 20), (1, "loss", 1_000, 20), (0, "ok", 1_000, 5)], rule=(2, 3, 0, 1), looks=[True] * 30
)
def test_whenever_anybody_looks_every_breach_is_told_once_and_ends_after_enough_good_windows(
    closings: list[tuple[int, str, int, int]], rule: tuple[int, int, int, int], looks: list[bool]
) -> None:
    k, n, least, after = rule
    settings = f"loss: {{breaches: {k}, of: {n}, minMessages: {least}}}\nresolveAfter: {after}"
    definition = defined(settings)
    told, at_once = Told(rule_of(definition, "loss")), Told(rule_of(definition, "loss"))
    documents: dict[int, Any] = {}
    windows: dict[int, tuple[str, int, int]] = {}
    ever: set[int] = set()
    for number, (closing, look) in enumerate(zip(closings, looks, strict=False)):
        windows[closing[0]], documents[closing[0]] = documented(definition, *closing)
        if look:
            told.evaluate(view_of(definition, documents, now_at=20 + number))
            ever |= slow_breaches(windows, k, n, least).keys()
    told.evaluate(view_of(definition, documents, now_at=60))
    at_once.evaluate(view_of(definition, documents, now_at=60))
    now = slow_breaches(windows, k, n, least)
    good = [minute(at) for at, (verdict, _, _) in windows.items() if verdict in ("ok", "idle")]

    held = [start for incident in told.incidents.values() for start in incident.breaches]
    assert len(held) == len(set(held)), "a window is in one incident"
    assert now.keys() <= set(held) <= now.keys() | ever, "all breaches are told, and nothing that never was one"
    assert {start for incident in at_once.incidents.values() for start in incident.breaches} == now.keys()
    if told.open is not None:
        assert told.open.breaches <= now.keys(), "an open incident has no breach that was revised away"
        assert sum(start > max(told.open.breaches) for start in good) < after
    for change in told.changes:
        assert change.kind != "resolved" or change.why == ("recovered" if change.breaches else "revised")
    assert told.evaluate(view_of(definition, documents, now_at=61)) == []


@given(
    verdicts=st.lists(st.sampled_from(["ok", "loss", "unknown", "idle"]), max_size=12),
    looks=st.sets(st.integers(0, 11)),
)
def test_windows_that_close_in_order_are_told_alike_whenever_anybody_looks(
    verdicts: list[str], looks: set[int]
) -> None:
    definition = defined()
    documents: dict[int, Any] = {}
    windows: dict[int, tuple[str, int, int]] = {}
    told = Told(rule_of(definition, "loss"))
    for at, verdict in enumerate(verdicts):
        windows[at], documents[at] = documented(definition, at, verdict, 1_000, 20)
        if at in looks:
            told.evaluate(view_of(definition, documents))
    told.evaluate(view_of(definition, documents))
    held = {start for incident in told.incidents.values() for start in incident.breaches}
    assert held == slow_breaches(windows, 2, 3, 500).keys()


def test_windows_too_old_to_be_spoken_of_are_context_and_open_nothing() -> None:
    definition = defined()
    documents = {at: window(definition, at, "loss", lost=20) for at in range(2)} | {2: window(definition, 2)}
    told = Told(rule_of(definition, "loss"))
    told.evaluate(view_of(definition, documents, seen_from_s=minute(2)))
    assert told.incidents == {}
    told.evaluate(view_of(definition, documents, seen_from_s=minute(1)))
    assert {found.breaches for found in told.incidents.values()} == {frozenset([minute(1)])}


def test_measures_of_a_definition_without_lag_rules_are_none() -> None:
    assert WindowReader.of(defined("lag: off")).windows(()).measured == ()
