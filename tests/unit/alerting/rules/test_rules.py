"""Each rule on windows made for it: when it breaches, when it is over, where it is and how it is said."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alerting.rules import rules_of
from alerting.rules.assessment import Assessment
from alerting.rules.view import WaitingMessages
from lagloss_server.model.definition import Definition
from lagloss_server.sums.error_budget import BURN_SPANS
from tests.support.alert_views import Told, defined, minute, rule_of, view_of, window
from tests.support.window_documents import clicks, window_of

Documents = dict[int, dict[str, Any]]


def minutes(starts: Any) -> set[int]:
    return {(start - minute(0)) // 60 for start in starts}


def assessed(definition: Definition, name: str, documents: Documents, **more: Any) -> Assessment:
    return rule_of(definition, name).assess(view_of(definition, documents, **more))


def breaches(definition: Definition, name: str, documents: Documents, **more: Any) -> set[int]:
    return minutes(assessed(definition, name, documents, **more).breaches)


def lossy(definition: Definition, pattern: str, messages: int = 1_000, lost: int = 20) -> Documents:
    """Windows by letters: l for loss, o, u, i for ok, unknown, idle."""
    verdicts = {"l": "loss", "o": "ok", "u": "unknown", "i": "idle"}
    return {
        at: window(definition, at, verdicts[letter], 0 if letter == "i" else messages, lost if letter == "l" else 0)
        for at, letter in enumerate(pattern)
    }


@pytest.mark.parametrize(
    ("pattern", "pages"),
    [
        ("ooloo", set()),
        ("olol", {1, 3}),
        ("oloool", set()),
        ("ll", {0, 1}),
        ("luul", set()),
        ("liulol", {3, 5}),
        ("oll", {1, 2}),
    ],
)
def test_each_lossy_window_is_a_breach_and_two_of_three_page(pattern: str, pages: set[int]) -> None:
    found = assessed(defined(), "loss", lossy(defined(), pattern))
    assert minutes(found.breaches) == {at for at, letter in enumerate(pattern) if letter == "l"}
    assert minutes(set(found.breaches) - set(found.tickets)) == pages


def paging(definition: Definition, documents: Documents) -> set[int]:
    found = assessed(definition, "loss", documents)
    return minutes(set(found.breaches) - set(found.tickets))


def test_one_window_pages_when_it_lost_more_than_a_share_or_a_number() -> None:
    assert paging(defined(), lossy(defined(), "ooloo", lost=51)) == {2}
    assert paging(defined(), lossy(defined(), "ooloo", lost=50)) == set()
    assert paging(defined(), lossy(defined(), "l", messages=499, lost=400)) == set()
    assert paging(defined(), lossy(defined(), "l", messages=40_000, lost=500)) == set()
    assert paging(defined(), lossy(defined(), "l", messages=40_000, lost=501)) == {0}
    assert paging(defined("loss: {page: {lostMessages: 20}}"), lossy(defined(), "l", lost=21)) == {0}
    assert paging(defined("loss: {page: off}"), lossy(defined(), "lll", lost=900)) == set()
    assert rule_of(defined("loss: {page: off}"), "loss").severity == "warning"


def test_ok_and_idle_are_good_after_a_loss_and_unknown_is_neither() -> None:
    found = assessed(defined(), "loss", lossy(defined(), "llouio"))
    assert minutes(found.good) == {2, 4, 5}
    assert found.resolve_after == 3


def test_what_is_lost_at_one_destination_alone_leaves_the_whole_good() -> None:
    """A verdict is `loss`, too, if one destination with a target of its own lost too much."""
    elsewhere = window(defined(), 0, "loss", lost=9)
    found = assessed(defined(), "loss", {0: elsewhere})
    assert (minutes(found.breaches), minutes(found.good)) == (set(), {0})
    elsewhere["pending"] = 2
    assert minutes(assessed(defined(), "loss", {0: elsewhere}).good) == set()


def test_a_loss_says_where_with_its_share_of_it() -> None:
    rule, definition = rule_of(defined(), "loss"), defined()
    found = window(definition, 0, "loss", lost=90)
    found["nodes"][1]["lost"]["min"] = 10
    found["lost"]["min"] = 100
    places = rule.where([window_of(found)] * 2)
    assert [(place.kind, place.name, place.share, place.lost) for place in places] == [
        ("link", "src->mid", 0.9, 180),
        ("node", "mid", 0.1, 20),
    ]
    assert places[0].text == "180 lost, 90 % of the loss"
    assert rule.text(0.032) == "3.2 % of messages lost, target 1 %"


LAGS = {"src.in": 1.0, "src.out": 100.0, "mid.in": 4_000.0, "mid.out": 4_100.0, "snk.in": 5_000.0, "snk.out": 9_000.0}


def test_lag_breaches_above_its_target_at_each_place() -> None:
    definition = defined(
        "lag:\n  - {}\n  - {at: checkpoint=snk.in, target: 5s}\n  - {at: node=snk, target: 3s}\n"
        "  - {at: link=src->mid, target: 3s}"
    )
    slow, quick = window(definition, 0, lags_ms=LAGS), window(definition, 0, lags_ms=dict.fromkeys(LAGS, 10.0))
    documents = {0: quick, 1: slow, 2: slow, 3: quick}
    found = {name: assessed(definition, name, documents) for name in ("lag", "lag/node/snk", "lag/link/src->mid")}
    assert [sorted(each.breaches.values()) for each in found.values()] == [[9_000.0] * 2, [4_000.0] * 2, [3_900.0] * 2]
    assert all(minutes(each.good) == {0, 3} for each in found.values())
    assert breaches(definition, "lag/checkpoint/snk.in", documents) == set()  # 5 s are not above 5 s
    assert [place.name for place in rule_of(definition, "lag").where([window_of(slow)])][:2] == [
        "snk",
        "src->mid",
    ]
    assert rule_of(definition, "lag").text(9_000) == "end-to-end lag p95 9 s, target 5 s"
    assert rule_of(definition, "lag/node/snk").where([window_of(slow)])[0].name == "snk"


def test_a_lag_that_is_not_known_is_good_only_where_no_message_came() -> None:
    documents = {0: window(defined(), 0, "idle", 0), 1: window(defined(), 1), 2: window(defined(), 2, "unknown", 0)}
    assert minutes(assessed(defined(), "lag", documents).good) == {0, 2}


def test_a_percentile_that_windows_do_not_hold_is_told_by_the_share_on_time() -> None:
    definition = defined(sla="{lag: {percentile: 97, target: 5s}}")
    late = {at: window(definition, at, "unknown", pending=40) for at in range(2)}
    found = assessed(definition, "lag", late)
    assert found.breaches == {minute(0): 0.96, minute(1): 0.96}
    rule = rule_of(definition, "lag")
    assert (rule.kind, rule.unit, rule.higher_is_worse, rule.target) == ("lag", "ratio", False, 0.97)


def test_a_share_on_time_below_its_target_breaches_when_there_are_messages_enough() -> None:
    late = {at: window(defined(), at, "unknown", pending=60) for at in range(3)}
    assert breaches(defined(), "on-time", late) == {0, 1, 2}
    few = {at: window(defined(), at, "unknown", 100, pending=60) for at in range(3)}
    assert breaches(defined(), "on-time", few) == set()
    assert rule_of(defined("onTime: {target: 0.5}"), "on-time").target == 0.5
    assert rule_of(defined(), "on-time").text(0.94) == "94 % of messages within 5 s, target 95 %"


SHARES = st.lists(st.tuples(st.integers(0, 9_999), st.integers(0, 400)), min_size=1, max_size=40)


@settings(max_examples=60)
@given(counts=SHARES, stretch=st.sampled_from([1, 9, 45, 200]), least=st.sampled_from([0, 500]))
def test_burn_rates_are_those_of_exact_fractions(counts: list[tuple[int, int]], stretch: int, least: int) -> None:
    """Windows lie `stretch` minutes apart, so that some fall out of each span."""
    definition = defined(f"budget: {{minMessages: {least}}}", sla="{loss: {max: 0.01}}")
    documents = {
        at * stretch: window(definition, at * stretch, "loss", messages, min(lost, messages))
        for at, (messages, lost) in enumerate(counts)
    }
    for spans in BURN_SPANS:
        found = assessed(definition, f"budget/loss/{spans.name}", documents)
        expected = {}
        for end in documents:
            rates, messages_in = [], 0
            for span_s in (spans.short_s, spans.long_s):
                within = [documents[at] for at in documents if end - span_s // 60 < at <= end]
                messages_in = sum(each["messages"] for each in within)
                lost = sum(each["lost"]["min"] for each in within)
                rates.append(Fraction(lost, max(messages_in, 1)) / Fraction("0.01"))
            is_old_enough = (end + 1) * 60 >= spans.short_s
            if is_old_enough and messages_in >= least and all(rate > Fraction(str(spans.times)) for rate in rates):
                expected[minute(end)] = float(rates[1])
        assert found.breaches == pytest.approx(expected)
        assert set(found.good) == {minute(at) for at in documents} - expected.keys()


def test_three_minutes_say_nothing_of_three_days_but_five_of_an_hour() -> None:
    definition = defined()
    documents = lossy(definition, "l" * 6, lost=200)
    assert breaches(definition, "budget/loss/1h", documents) == {4, 5}
    assert breaches(definition, "budget/loss/6h", documents) == set()
    assert breaches(definition, "budget/loss/3d", documents) == set()


def test_windows_that_are_not_known_do_not_end_a_budget_of_loss() -> None:
    documents = lossy(defined(), "l" * 6 + "u" * 60, lost=200)
    assert 50 not in minutes(assessed(defined(), "budget/loss/1h", documents).good)


def test_what_is_late_burns_the_budget_of_on_time() -> None:
    definition = defined(sla="{lag: {percentile: 99, target: 5s}}")
    documents = {at: window(definition, at, "unknown", pending=200) for at in range(8)}
    assert breaches(definition, "budget/on-time/1h", documents) == {4, 5, 6, 7}
    text = rule_of(definition, "budget/on-time/1h").text(20)
    assert text == "on-time budget burn rate 20 over 1h and the last 5 min, limit 14.4"


def test_three_of_five_windows_without_evidence_are_blind_and_what_waits_is_not() -> None:
    def unknown(at: int, *reasons: str) -> dict[str, Any]:
        return window(defined(), at, "unknown", reasons=reasons)

    blind = {at: unknown(at, "evidence:mid", "pending") for at in range(4)}
    assert breaches(defined(), "blind/evidence", blind) == {0, 1, 2, 3}
    failed = {at: unknown(at, "failed") for at in range(4)}
    assert breaches(defined(), "blind/evidence", failed) == {0, 1, 2, 3}
    assert breaches(defined(), "blind/evidence", {at: unknown(at, "pending", "overdue") for at in range(5)}) == set()
    applied = {at: unknown(at, "evidence:mid", "version") for at in range(5)}
    found = assessed(defined(), "blind/evidence", applied)
    assert (found.breaches, found.good) == ({}, [])
    places = rule_of(defined(), "blind/evidence").where(
        [window_of(each) for each in [unknown(0, "evidence:mid"), unknown(1)]]
    )
    assert [(place.kind, place.name, place.share) for place in places] == [("node", "mid", 0.5)]


def test_idle_windows_are_not_blind() -> None:
    idle = {at: window(defined(), at, "idle", 0, reasons=("evidence:snk",)) for at in range(5)}
    assert breaches(defined(), "blind/evidence", idle) == set()


def test_a_window_that_does_not_close_is_told_by_the_clock_and_over_in_the_next_minute() -> None:
    definition = defined()
    told = Told(rule_of(definition, "blind/closing"))
    for now_at, newest_at, kinds in ((4, 0, []), (4.5, 0, ["opened"]), (4.7, 4, []), (5.1, 4, ["resolved"])):
        view = view_of(definition, {}, now_at=now_at, newest_end_s=minute(newest_at))
        assert [change.kind for change in told.evaluate(view)] == kinds
    assert told.changes[-1].why == "recovered"
    assert breaches(definition, "blind/closing", {}, now_at=50, newest_end_s=None) == set()


def test_nobody_is_blind_who_has_not_looked_for_as_long() -> None:
    definition = defined()
    silent: dict[str, Any] = {
        "reported_s": {"mid": minute(0)},
        "expected": frozenset(["mid"]),
        "newest_end_s": minute(0),
    }
    for rule, limit in (("blind/closing", 4), ("blind/reports", 3)):
        for watched, count in ((limit, 0), (limit + 0.1, 1)):
            since_s = minute(60) - 60 * watched
            found = assessed(definition, rule, {}, now_at=60, watched_since_s=since_s, **silent)
            assert len(found.breaches) == count, rule


def test_a_node_that_reported_yesterday_and_is_silent_is_named() -> None:
    definition, now_s = defined(), float(minute(10))
    reported = {"src": now_s - 5, "mid": now_s - 181, "snk": now_s - 400}
    found = assessed(
        definition, "blind/reports", {}, now_at=10, reported_s=reported, expected=frozenset(["src", "mid"])
    )
    assert found.breaches == {minute(10): 181}
    assert [(place.name, place.text) for place in found.places] == [("mid", "no report for 3 min")]
    idle = assessed(definition, "blind/reports", {}, now_at=10, reported_s=reported, expected=frozenset(["src"]))
    assert minutes(idle.good) == {10}


def stale(definition: Definition, documents: Documents, now_at: float, **more: Any) -> Assessment:
    return assessed(definition, "staleness", documents, now_at=now_at, **more)


def test_a_delivery_checkpoint_is_stale_when_messages_come_in_and_none_goes_out() -> None:
    definition = defined()
    delivering = {0: window(definition, 0, counts={"src.in": 100, "snk.out": 100})}
    stuck = {at: window(definition, at, "unknown", counts={"src.in": 100}, pending=1_000) for at in range(1, 8)}
    found = stale(definition, delivering | stuck, 6.5)
    assert found.breaches == {minute(6): 330}
    assert [place.name for place in found.places] == ["snk.out"]
    assert stale(definition, delivering | stuck, 6).breaches == {}  # exactly 5 min
    tallied = stale(definition, delivering | stuck, 6.5, newest_s={"snk.out": minute(5)})
    assert (tallied.breaches, minutes(tallied.good)) == ({}, {6})


def test_an_idle_source_makes_nothing_stale_and_neither_does_the_first_message_after_an_idle_hour() -> None:
    definition = defined()
    delivering = {0: window(definition, 0, counts={"src.in": 100, "snk.out": 100})}
    idle = {at: window(definition, at, "idle", 0) for at in range(1, 60)}
    assert stale(definition, delivering | idle, 61).breaches == {}
    came = {minute(61): minute(61) + 1.0}
    assert stale(definition, delivering | idle, 62, came_from_s={"src": came}).breaches == {}
    assert stale(definition, delivering | idle, 66, came_from_s={"src": came}).breaches == {}
    assert stale(definition, delivering | idle, 67, came_from_s={"src": came}).breaches == {minute(67): 3_960}


def test_the_past_that_is_sent_today_is_waited_for_since_it_came_and_not_by_its_event_time() -> None:
    """As at the start of the demo, which sends an hour of the past: the first node's reports are ahead of others."""
    definition = defined()
    came = {minute(at): minute(60) + at / 60 for at in range(60)}
    sent = {"newest_s": {"snk.out": minute(3)}, "came_from_s": {"src": came}}
    assert stale(definition, {}, 60.2, **sent).breaches == {}
    assert stale(definition, {}, 64.9, **sent).breaches == {}
    assert stale(definition, {}, 65.2, **sent).breaches == {minute(65): 3_672}
    closed = {at: window(definition, at, "unknown", counts={"src.in": 9}, pending=9) for at in range(4, 60)}
    assert stale(definition, closed, 60.2, **sent).breaches == {}


def test_what_the_source_sent_last_makes_nothing_stale_for_ever() -> None:
    definition = defined()
    delivering = {0: window(definition, 0, counts={"src.in": 100, "snk.out": 100})}
    lost = {1: window(definition, 1, "loss", counts={"src.in": 100}, lost=1_000)}
    idle = {at: window(definition, at, "idle", 0) for at in range(2, 60)}
    assert stale(definition, delivering | lost | idle, 7).breaches == {minute(7): 360}
    long_after = stale(definition, delivering | lost | idle, 7.5)
    assert (long_after.breaches, minutes(long_after.good)) == ({}, {7})


def test_a_checkpoint_where_nothing_was_ever_delivered_has_no_staleness() -> None:
    stuck = {at: window(defined(), at, "unknown", counts={"src.in": 100}, pending=1_000) for at in range(8)}
    assert stale(defined(), stuck, 20) == Assessment((), {}, ())


def test_a_destination_that_is_seldom_chosen_is_not_stale_while_nothing_is_due_there() -> None:
    definition = clicks()
    everything = dict.fromkeys(("col-service.in", "conn-ga.out", "conn-fb.out"), 9)
    to_ga_alone = {name: count for name, count in everything.items() if name != "conn-fb.out"}

    def minutes_of(due_at_fb: int) -> Documents:
        later = {at: window(definition, at, counts=to_ga_alone, due={"conn-fb": due_at_fb}) for at in range(1, 20)}
        return {0: window(definition, 0, counts=everything, due={"conn-fb": 9})} | later

    fresh = {"newest_s": {"conn-ga.out": minute(19)}}
    assert stale(definition, minutes_of(0), 20, **fresh).breaches == {}
    assert [place.name for place in stale(definition, minutes_of(9), 20, **fresh).places] == ["conn-fb.out"]


def test_dead_letters_are_a_breach_by_their_share_of_five_minutes() -> None:
    definition = defined()

    def dead(counts: dict[int, int], messages: int = 1_000) -> Documents:
        return {at: window(definition, at, messages=messages) | {"dead": counts.get(at, 0)} for at in range(8)}

    trickle = dict.fromkeys(range(2, 7), 15)
    assert breaches(definition, "dead-letters", dead(trickle)) == {2, 3, 4, 5, 6}  # made of all once it is enough
    assert breaches(definition, "dead-letters", dead({3: 30})) == set()  # a minute of 3 % is not 1 % of five
    assert breaches(definition, "dead-letters", dead({3: 60})) == {3}
    assert breaches(definition, "dead-letters", dead({3: 4}, messages=10)) == set()  # fewer than atLeast
    assert breaches(definition, "dead-letters", dead({3: 5}, messages=10)) == {3}
    found = assessed(definition, "dead-letters", dead({2: 60}))
    assert minutes(found.good) == {0, 1, 7}, "what it is a share of goes on for five minutes"
    strict = defined("deadLetters: {over: 1m, breaches: 2, of: 3, minMessages: 2000}")
    assert breaches(strict, "dead-letters", dead({1: 30, 3: 30, 6: 30})) == {1, 3}


def test_duplicates_and_dead_letters_say_where() -> None:
    definition = defined("deadLetters: [{}, {at: node=mid, max: 0.05}]\nduplicates: [{at: 'checkpoint=~.*[.]in'}]")
    bad = window(definition, 0, counts={"src.in": 1_000, "mid.in": 1_000, "mid.dead": 100, "snk.dead": 20})
    bad["checkpoints"][1]["duplicates"] = 20
    bad["dead"] = 120
    names = [rule.name for rule in rules_of(definition) if rule.kind == "duplicates"]
    assert names == [f"duplicates/checkpoint/{node}.in" for node in ("src", "mid", "snk")]
    assert breaches(definition, "duplicates/checkpoint/mid.in", {0: bad}) == {0}
    assert breaches(definition, "duplicates/checkpoint/src.in", {0: bad}) == set()
    (place,) = rule_of(definition, "duplicates/checkpoint/mid.in").where([window_of(bad)])
    assert (place.kind, place.name, place.share) == ("checkpoint", "mid.in", 1.0)
    assert breaches(definition, "dead-letters/node/mid", {0: bad}) == {0}
    assert rule_of(definition, "dead-letters").where([window_of(bad)])[0].text == "100 dead letters, 83.3 % of all"
    assert [place.name for place in rule_of(definition, "dead-letters/node/mid").where([window_of(bad)])] == [
        "mid.dead"
    ]
    assert rule_of(definition, "dead-letters").text(0.12) == "share of dead letters 12 % over 5 min, limit 1 %"


def test_pending_is_as_old_as_the_message_that_was_seen_last_the_longest_ago() -> None:
    definition = defined("pendingAge: {max: 5m}")
    waiting = [
        WaitingMessages(("link src->mid",), 3, minute(1)),
        WaitingMessages(("node snk", "link mid->snk"), 1, minute(0)),
    ]
    found = assessed(definition, "pending-age", {}, now_at=5.5, waiting=waiting)
    assert found.breaches == {minute(5): 330}
    assert [(place.name, place.share) for place in found.places] == [
        ("src->mid", 0.75),
        ("snk", 0.25),
        ("mid->snk", 0.25),
    ]
    assert minutes(assessed(definition, "pending-age", {}, now_at=5.5).good) == {5}


def test_a_median_lag_far_below_zero_is_a_clock_that_is_wrong() -> None:
    definition = defined("negativeLag: on")
    wrong = {at: window(definition, at, lags_ms={"mid.in": -1_500.0, "snk.out": 3.0}) for at in range(2)}
    found = assessed(definition, "negative-lag", wrong)
    assert found.breaches == {minute(0): -1_500.0, minute(1): -1_500.0}
    rule = rule_of(definition, "negative-lag")
    assert [(place.name, place.text) for place in rule.where([window_of(wrong[0])])] == [
        ("mid.in", "median lag -1.5 s")
    ]
    skewed = {at: window(definition, at, lags_ms={"mid.in": -1_000.0}) for at in range(2)}
    assert breaches(definition, "negative-lag", skewed) == set()


def test_no_rule_breaches_where_there_is_no_window_at_all() -> None:
    definition = defined("duplicates: on\ndeadLetters: on\npendingAge: on\nnegativeLag: on")
    for rule in rules_of(definition):
        assert rule.assess(view_of(definition, {}, now_at=9)).breaches == {}
        assert rule.where([]) == [] or rule.name.startswith(("lag/", "volume/"))
        assert rule.text(rule.target)
