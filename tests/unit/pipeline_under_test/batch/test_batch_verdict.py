"""Ledger and lagloss agree on the batch pipeline only where they say the same of every record."""

from __future__ import annotations

from pathlib import Path

from pipeline_under_test.batch.ledger import Fact, FactLedger, read_ledger
from pipeline_under_test.batch.topology import DB_IMPORT, INDEX_IMPORT
from pipeline_under_test.batch.truth import BatchTruth, FileFlow

MS = 1_795_250_400_000


def facts(*, index: bool = True, aggregated: bool = True, notified: bool = True) -> list[Fact]:
    """Two records in a file; `a` is bad."""
    found: list[Fact] = [
        {"kind": "landing", "attempt": "1", "key": "k", "ids": ["a", "b"], "times": [MS, MS], "notified": notified},
        {"kind": "landed", "attempt": "1", "file": "raw/k@v", "file_ms": MS},
    ]
    for node in (DB_IMPORT, *([INDEX_IMPORT] if index else [])):
        found.append({"kind": "writing", "node": node, "file": "raw/k@v", "rejected": ["a"], "dropped": ["d"]})
    if aggregated:
        found.append({"kind": "aggregated", "hour": 0, "ids": ["b"]})
    return found


def outcomes(truth: BatchTruth) -> dict[str, set[str]]:
    [window] = truth.windows.values()
    return {outcome: ids for outcome, ids in window.outcomes().items() if ids}


def test_a_record_is_delivered_once_each_of_its_ways_has_an_end() -> None:
    assert outcomes(BatchTruth.of_records(FileFlow.of(facts()))) == {"dead": {"a"}, "delivered": {"b"}}


def test_a_record_that_a_sink_drops_is_lost_at_its_importer() -> None:
    dropped = [{**fact, "dropped": ["b"]} if fact.get("node") == INDEX_IMPORT else fact for fact in facts()]
    [window] = BatchTruth.of_records(FileFlow.of(dropped)).windows.values()
    assert window.lost_at == {"node index-import": {"b"}}
    assert window.written["index-import.out"]["b"] == 0
    [files] = BatchTruth.of_files(FileFlow.of(dropped)).windows.values()
    assert files.lost == set()


def test_a_record_that_no_run_has_aggregated_waits() -> None:
    assert outcomes(BatchTruth.of_records(FileFlow.of(facts(aggregated=False)))) == {"dead": {"a"}, "pending": {"b"}}


def test_a_file_waits_for_its_other_importer() -> None:
    assert outcomes(BatchTruth.of_files(FileFlow.of(facts(index=False)))) == {"pending": {"raw/k@v"}}
    assert outcomes(BatchTruth.of_files(FileFlow.of(facts()))) == {"delivered": {"raw/k@v"}}


def test_a_file_of_which_it_is_not_known_that_s3_has_it_has_records_that_may_or_may_not_be_there() -> None:
    [window] = BatchTruth.of_records(FileFlow.of(facts()[:1])).windows.values()
    assert window.unanswered == {"a", "b"}
    assert not window.messages


def test_a_file_that_was_dead_and_is_imported_after_all_is_not_dead() -> None:
    failed = {"kind": "failed", "node": DB_IMPORT, "file": "raw/k@v", "taken_in": True, "wrote": False, "last": True}
    told = [*facts()[:2], failed]
    assert outcomes(BatchTruth.of_files(FileFlow.of(told))) == {"pending": {"raw/k@v"}}
    assert outcomes(BatchTruth.of_files(FileFlow.of([*told, *facts()[2:]]))) == {"delivered": {"raw/k@v"}}


def test_a_file_that_is_written_twice_is_a_duplicate_of_each_record_that_is_delivered() -> None:
    writes = [fact for fact in facts() if fact["kind"] == "writing"]
    twice = FileFlow.of([*facts(), *writes])
    [window] = BatchTruth.of_records(twice).windows.values()
    assert window.document(MS // 1000)["duplicates"] == 1, (
        "b in the index; a is dead, and nothing is delivered by db-import"
    )
    [window] = BatchTruth.of_files(twice).windows.values()
    assert window.document(MS // 1000)["duplicates"] == 2


def test_a_torn_line_of_the_ledger_is_left_out_and_the_rest_is_in_the_order_of_time(tmp_path: Path) -> None:
    with FactLedger(tmp_path / "b.jsonl") as later, FactLedger(tmp_path / "a.jsonl") as ledger:
        later.write("redriven", node=DB_IMPORT)
        ledger.write("buried", node=DB_IMPORT, file="f")
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write('{"kind":"bur')
    assert {fact["kind"] for fact in read_ledger(tmp_path)} == {"redriven", "buried"}
    times = [fact["at_ms"] for fact in read_ledger(tmp_path)]
    assert times == sorted(times)
