"""The ledger adds up to what lagloss ought to measure: every message once, and none that nobody knows of."""

from __future__ import annotations

from pipeline_under_test.harness.ledger import Fate, LedgerEntry
from pipeline_under_test.stream.truth import StreamTruth

MINUTE_MS = 60_000
LINK, NODE = "link event-norm->event-router", "node conn-ga"
TO_GA, TO_FB = "link event-router->conn-ga", "link event-router->conn-fb"


def facts(*pairs: tuple[Fate, str], place: str = "") -> list[LedgerEntry]:
    return [LedgerEntry(fate, message_id, MINUTE_MS, place) for fate, message_id in pairs]


def outcome_of(*facts: tuple[Fate, str]) -> str:
    """What has become of a message of which the ledger says this besides that it was answered."""
    truth = StreamTruth()
    truth.add(LedgerEntry(fate, "m", MINUTE_MS, place) for fate, place in [("answered", ""), *facts])
    (found,) = (outcome for outcome, ids in truth.windows[60].outcomes().items() if ids)
    return found


def test_each_message_counts_once_as_the_first_that_fits() -> None:
    truth = StreamTruth()
    truth.add(facts(*(("answered", message_id) for message_id in "abcdefg")))
    truth.add(facts(("lost", "a"), ("lost", "b"), place=LINK))
    truth.add(facts(("lost", "b"), place=NODE))
    truth.add(facts(("delivered", "b"), ("delivered", "c"), ("delivered", "c"), ("delivered", "d"), place="vendor ga"))
    truth.add(facts(("dead", "d"), ("dead", "e"), ("filtered", "e"), ("filtered", "f"), place=NODE))
    assert truth.documents() == [
        {
            "window_start_s": 60,
            "messages": 7,
            "lost": 2,
            "pending": 1,
            "delivered": 2,
            "dead": 1,
            "filtered": 1,
            "lost_at": {LINK: ["a", "b"], NODE: ["b"]},
            "corrupted_at": {},
            "duplicated": 0,
            "duplicates": 1,
            "unanswered": 0,
            "unaccounted": ["g"],
        }
    ]


def test_saying_a_thing_twice_changes_nothing_unless_it_is_a_delivery() -> None:
    once, twice = StreamTruth(), StreamTruth()
    entries = [*facts(("answered", "a"), ("filtered", "a"), ("answered", "b")), *facts(("lost", "b"), place=LINK)]
    once.add(entries)
    twice.add([*entries, *entries])
    assert once.documents() == twice.documents()
    twice.add(facts(("delivered", "c"), ("delivered", "c"), ("delivered", "c"), place="vendor fb"))
    assert twice.windows[60].duplicates("conn-fb.out") == {"c": 2}
    assert twice.windows[60].duplicates("conn-ga.out") == {}


def test_a_message_for_two_vendors_is_pending_until_both_have_it_or_never_will() -> None:
    both: list[tuple[Fate, str]] = [("routed", TO_GA), ("routed", TO_FB), ("delivered", "vendor fb")]
    assert outcome_of() == "pending"
    assert outcome_of(*both) == "pending"
    assert outcome_of(*both, ("delivered", "vendor ga")) == "delivered"
    assert outcome_of(*both, ("dead", NODE)) == "delivered"
    assert outcome_of(*both, ("filtered", NODE)) == "delivered"
    assert outcome_of(*both, ("dead", "node global-retrier")) == "delivered"
    assert outcome_of(*both, ("lost", TO_GA)) == "lost"


def test_a_loss_that_is_replayed_is_what_becomes_of_it_now() -> None:
    lost: list[tuple[Fate, str]] = [("lost", LINK), ("replayed", "")]
    assert outcome_of(*lost) == "pending"
    assert outcome_of(*lost, ("routed", TO_GA), ("routed", TO_FB), ("delivered", "vendor ga")) == "pending"
    assert outcome_of(*lost, ("routed", TO_GA), ("delivered", "vendor ga")) == "delivered"
    assert outcome_of(("lost", LINK), ("routed", TO_GA), ("delivered", "vendor ga")) == "lost"


def test_an_event_nobody_answered_for_counts_only_if_it_was_seen() -> None:
    truth = StreamTruth()
    truth.add(facts(("generated", "a"), ("unanswered", "a"), ("unanswered", "b"), ("delivered", "b")))
    window = truth.document(60)
    assert (window["messages"], window["delivered"], window["unanswered"]) == (1, 1, 1)


def test_windows_are_minutes_of_event_time() -> None:
    truth = StreamTruth()
    touched = truth.add([LedgerEntry("answered", "a", 119_999), LedgerEntry("answered", "b", 120_000)])
    assert touched == {60, 120}
