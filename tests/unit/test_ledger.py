"""The ledger survives its writers, and adds up to what lagloss ought to measure."""

from __future__ import annotations

from pathlib import Path

from pipeline_under_test.ledger import Entry, Fate, Ledger, LedgerReader
from pipeline_under_test.truth import Truth

MINUTE_MS = 60_000
LINK, NODE = "link event-norm->event-router", "node conn-ga"


def facts(*pairs: tuple[Fate, str], place: str = "") -> list[Entry]:
    return [Entry(fate, message_id, MINUTE_MS, place) for fate, message_id in pairs]


def test_what_was_written_is_read_once(tmp_path: Path) -> None:
    reader = LedgerReader(tmp_path)
    assert list(reader.new_entries()) == []
    with Ledger(tmp_path, "load") as ledger:
        ledger.write(facts(("answered", "a")))
        assert list(reader.new_entries()) == facts(("answered", "a"))
        ledger.write([Entry("lost", "ü\n", 5, LINK), Entry("dead", "b", 6, NODE, "why")])
    assert list(reader.new_entries()) == [Entry("lost", "ü\n", 5, LINK), Entry("dead", "b", 6, NODE, "why")]
    assert list(reader.new_entries()) == []


def test_a_line_torn_by_a_killed_writer_waits_for_its_end(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "load")
    ledger.write(facts(("answered", "a"), ("answered", "b")))
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[:-5])
    reader = LedgerReader(tmp_path)
    assert [entry.id for entry in reader.new_entries()] == ["a"]
    ledger.path.write_bytes(whole)
    assert [entry.id for entry in reader.new_entries()] == ["b"]
    ledger.close()


def test_two_processes_of_a_name_have_a_file_each(tmp_path: Path) -> None:
    with Ledger(tmp_path, "event-norm") as one, Ledger(tmp_path, "event-norm") as other:
        assert one.path != other.path


def test_each_message_counts_once_as_the_first_that_fits() -> None:
    truth = Truth()
    truth.add(facts(*(("answered", message_id) for message_id in "abcdefg")))
    truth.add(facts(("lost", "a"), ("lost", "b"), place=LINK))
    truth.add(facts(("lost", "b"), place=NODE))
    truth.add(facts(("delivered", "b"), ("delivered", "c"), ("delivered", "c"), ("delivered", "d")))
    truth.add(facts(("dead", "d"), ("dead", "e"), ("filtered", "e"), ("filtered", "f"), place=NODE))
    assert truth.documents() == [
        {
            "window_start_s": 60,
            "messages": 7,
            "lost": 2,
            "delivered": 2,
            "dead": 1,
            "filtered": 1,
            "lost_at": {LINK: ["a", "b"], NODE: ["b"]},
            "duplicated": 0,
            "unanswered": 0,
            "unaccounted": ["g"],
        }
    ]


def test_saying_a_thing_twice_changes_nothing() -> None:
    once, twice = Truth(), Truth()
    entries = [*facts(("answered", "a"), ("delivered", "a"), ("answered", "b")), *facts(("lost", "b"), place=LINK)]
    once.add(entries)
    twice.add([*entries, *entries])
    assert once.documents() == twice.documents()


def test_an_event_nobody_answered_for_counts_only_if_it_was_seen() -> None:
    truth = Truth()
    truth.add(facts(("generated", "a"), ("unanswered", "a"), ("unanswered", "b"), ("delivered", "b")))
    window = truth.document(60)
    assert (window["messages"], window["delivered"], window["unanswered"]) == (1, 1, 1)


def test_windows_are_minutes_of_event_time() -> None:
    truth = Truth()
    touched = truth.add([Entry("answered", "a", 119_999), Entry("answered", "b", 120_000)])
    assert touched == {60, 120}


def test_what_was_lost_and_replayed_counts_as_what_became_of_it_in_the_end() -> None:
    truth = Truth()
    truth.add(facts(*(("answered", message_id) for message_id in "abc")))
    truth.add(facts(*(("lost", message_id) for message_id in "abc"), place=LINK))
    truth.add(facts(("replayed", "a"), ("delivered", "a"), ("replayed", "b")))
    (window,) = truth.documents()
    assert (window["lost"], window["lost_at"]) == (1, {LINK: ["c"]})
    assert (window["delivered"], window["unaccounted"]) == (1, ["b"])
