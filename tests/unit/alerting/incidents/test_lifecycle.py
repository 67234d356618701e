"""Judging, and k of n with it: by example, and against a slow reading of what loss means, whenever anybody looks."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import example, given
from hypothesis import strategies as st

from alerting.incidents.lifecycle import REOPEN_S, KnownIncident, Transition, judge, transitions
from alerting.rules import reader_of
from alerting.rules.assessment import Assessment
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


Read = dict[int, tuple[str, int, int]]


def is_lossy(window: tuple[str, int, int]) -> bool:
    _, messages, lost = window
    return messages > 0 and lost / messages > 0.01


def slow_breaches(windows: Read) -> dict[int, float]:
    """A breach is each window that lost more than 1 %."""
    return {minute(at): found[2] / found[1] for at, found in windows.items() if is_lossy(found)}


def slow_pages(windows: Read, k: int, n: int, least: int, many: int = 500) -> set[int]:
    """The breaches that page: at a lossy window if k of the n closed windows that end with it are lossy, or it lost
    over 5 %, and the n hold so many messages together; those lossy windows, or that one. Or one that lost so many."""
    pages: set[int] = set()
    order = sorted(windows)
    for at in order:
        last = [other for other in order if other <= at][-n:]
        _, messages, lost = windows[at]
        lossy = [other for other in last if is_lossy(windows[other])]
        if not is_lossy(windows[at]):
            continue
        is_enough = sum(windows[other][1] for other in last) >= least
        if is_enough and len(lossy) >= k:
            pages |= {minute(other) for other in lossy}
        if (is_enough and lost / messages > 0.05) or lost > many:
            pages.add(minute(at))
    return pages


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
    settings = f"loss: {{page: {{breaches: {k}, of: {n}, minMessages: {least}}}}}\nresolveAfter: {after}"
    definition = defined(settings)
    told, at_once = Told(rule_of(definition, "loss")), Told(rule_of(definition, "loss"))
    documents: dict[int, Any] = {}
    windows: dict[int, tuple[str, int, int]] = {}
    ever: set[int] = set()
    for number, (closing, look) in enumerate(zip(closings, looks, strict=False)):
        windows[closing[0]], documents[closing[0]] = documented(definition, *closing)
        if look:
            told.evaluate(view_of(definition, documents, now_at=20 + number))
            ever |= slow_breaches(windows).keys()
    told.evaluate(view_of(definition, documents, now_at=60))
    at_once.evaluate(view_of(definition, documents, now_at=60))
    now = slow_breaches(windows)
    good = [
        minute(at)
        for at, found in windows.items()
        if found[0] in ("ok", "idle") or (found[0] == "loss" and not is_lossy(found))
    ]

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
    assert held == slow_breaches(windows).keys()


@given(closings=CLOSINGS, rule=RULES)
def test_a_window_that_pages_is_no_ticket_and_every_other_lossy_one_is(
    closings: list[tuple[int, str, int, int]], rule: tuple[int, int, int, int]
) -> None:
    k, n, least, _ = rule
    definition = defined(f"loss: {{page: {{breaches: {k}, of: {n}, minMessages: {least}, lostMessages: 50}}}}")
    windows: Read = {}
    documents: dict[int, Any] = {}
    for closing in closings:
        windows[closing[0]], documents[closing[0]] = documented(definition, *closing)
    found = rule_of(definition, "loss").assess(view_of(definition, documents))
    assert set(found.breaches) - set(found.tickets) == slow_pages(windows, k, n, least, 50)
    assert set(found.tickets) <= found.breaches.keys() == slow_breaches(windows).keys()


def ticket(*breaches: int, resolved_at_s: float | None = None) -> KnownIncident:
    return KnownIncident(ID, 0.5, frozenset(breaches), resolved_at_s, pages=False)


def test_a_page_takes_its_ticket_over_and_is_told_even_if_it_is_over_by_then() -> None:
    small = Assessment(range(100), {5: 0.02}, (), 3, tickets={5})
    assert judge(True, small, None, [], NOW) == Transition("opened", {5: 0.02}, 0.02, 0.02, pages=False)
    both = Assessment(range(100), {5: 0.02, 6: 0.3}, (7, 8, 9), 3, tickets={5})
    raised = judge(True, both, ticket(5), [], NOW)
    assert raised == Transition("raised", {5: 0.02, 6: 0.3}, 0.3, 0.3, incident=ID)
    over = judge(True, both, known(5, 6), [], NOW)
    assert over is not None
    assert (over.kind, over.pages) == ("resolved", True)


def test_a_page_stays_one_while_it_is_open_and_a_rule_that_may_not_page_never_does() -> None:
    small = Assessment(range(100), {5: 0.02, 6: 0.02}, (), 3, tickets={5, 6})
    change = judge(True, small, known(5), [], NOW)
    assert change is not None
    assert (change.kind, change.pages) == ("updated", True)
    never = judge(True, found({5: 0.3}), None, [], NOW, may_page=False)
    assert never is not None
    assert not never.pages


def test_a_ticket_after_a_page_is_one_of_its_own_and_a_page_reopens_a_ticket() -> None:
    small = Assessment(range(100), {8: 0.02}, (), 3, tickets={8})
    after_page = judge(True, small, None, [known(5, resolved_at_s=NOW - 60)], NOW)
    assert after_page is not None
    assert (after_page.kind, after_page.pages, after_page.incident) == ("opened", False, None)
    after_ticket = judge(True, found({8: 0.3}), None, [ticket(5, resolved_at_s=NOW - 60)], NOW)
    assert after_ticket is not None
    assert (after_ticket.kind, after_ticket.pages, after_ticket.incident) == ("reopened", True, ID)


@given(verdicts=st.lists(st.sampled_from(["ok", "loss", "unknown", "idle"]), min_size=1, max_size=12))
def test_an_incident_that_a_database_has_lost_is_opened_again_under_its_id(verdicts: list[str]) -> None:
    definition = defined()
    rule = rule_of(definition, "loss")
    documents: dict[int, Any] = {}
    opened = []
    for at, verdict in enumerate(verdicts):
        _, documents[at] = documented(definition, at, verdict, 1_000, 20)
        changes, _ = transitions("chain/1", rule, rule.assess(view_of(definition, documents)), [], NOW)
        opened += [change.incident for change in changes[:1]]
    assert len(set(opened)) <= 1


def test_another_incident_whose_first_breach_is_the_same_has_another_id() -> None:
    rule = rule_of(defined(), "loss")
    ((first, *_), _) = transitions("chain/1", rule, found({5: 0.3}), [], NOW)
    assert first.incident is not None
    revised = known(resolved_at_s=NOW - REOPEN_S - 1, id=first.incident)
    for origin, incidents in (("chain/1", [revised]), ("chain/2", []), ("orders/1", [])):
        ((other, *_), _) = transitions(origin, rule, found({5: 0.3}), incidents, NOW)
        assert other.kind == "opened"
        assert other.incident != first.incident


def test_windows_too_old_to_be_spoken_of_are_context_and_open_nothing() -> None:
    definition = defined()
    documents = {at: window(definition, at, "loss", lost=20) for at in range(2)} | {2: window(definition, 2)}
    told = Told(rule_of(definition, "loss"))
    told.evaluate(view_of(definition, documents, seen_from_s=minute(2)))
    assert told.incidents == {}
    told.evaluate(view_of(definition, documents, seen_from_s=minute(1)))
    assert {found.breaches for found in told.incidents.values()} == {frozenset([minute(1)])}


def test_measures_of_a_definition_without_lag_rules_are_none() -> None:
    assert reader_of(defined("lag: off")).windows(()).measured == ()
    assert reader_of(defined()).windows(()).measured == ("p95",)
