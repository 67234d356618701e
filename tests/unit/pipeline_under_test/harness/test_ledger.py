"""The ledger survives its writers."""

from __future__ import annotations

from pathlib import Path

from pipeline_under_test.harness.ledger import Fate, Ledger, LedgerEntry, LedgerReader

MINUTE_MS = 60_000
LINK, NODE = "link event-norm->event-router", "node conn-ga"


def facts(*pairs: tuple[Fate, str], place: str = "") -> list[LedgerEntry]:
    return [LedgerEntry(fate, message_id, MINUTE_MS, place) for fate, message_id in pairs]


def test_what_was_written_is_read_once(tmp_path: Path) -> None:
    reader = LedgerReader(tmp_path)
    assert list(reader.new_entries()) == []
    with Ledger(tmp_path, "load") as ledger:
        ledger.write(facts(("answered", "a")))
        assert list(reader.new_entries()) == facts(("answered", "a"))
        ledger.write([LedgerEntry("lost", "ü\n", 5, LINK), LedgerEntry("dead", "b", 6, NODE, "why")])
    assert list(reader.new_entries()) == [LedgerEntry("lost", "ü\n", 5, LINK), LedgerEntry("dead", "b", 6, NODE, "why")]
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
