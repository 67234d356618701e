"""The grammar of faults of the batch pipeline, and whom they hit."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_under_test.batch.faults import NodeFaults, parse
from pipeline_under_test.harness.faults import BadFault, Injections

TEXTS = (
    "lose:notification:0.1",
    "duplicate:notification:0.1",
    "truncate:0.1",
    "corrupt:0.1",
    "schema:0.1",
    "empty:0.1",
    "enlarge:100:0.1",
    "overwrite:0.1",
    "late:3m:0.1",
    "bad:0.1",
    "kill:db-import:before:0.1",
    "kill:index-import:after:0.1",
    "double-write:db-import:0.1",
    "fail:db-import:0.1",
    "wait:db-import:250ms:0.1",
    "away:index-import",
    "drop:index-import:0.1",
)


@pytest.mark.parametrize("text", TEXTS)
def test_each_fault_has_a_kind_of_its_own_and_keeps_its_text(text: str) -> None:
    assert parse(text).text == text
    assert sum(parse(other).kind == parse(text).kind for other in TEXTS) == 1


@pytest.mark.parametrize(
    "text", ["", "truncate", "truncate:0", "truncate:2", "kill:db-import:during:0.1", "fail:landing:0.1", "late:3:0.1"]
)
def test_what_is_no_fault_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(BadFault, match=r"expected .* in "):
        parse(text)


def test_a_fault_hits_its_share_of_the_files_and_always_the_same(tmp_path: Path) -> None:
    injections = Injections(tmp_path / "faults.jsonl", parse)
    injections.begin_anew([parse("truncate:0.2"), parse("fail:db-import:1")])
    faults, again = (NodeFaults("landing", injections, seed) for seed in (0, 0))
    hit = [key for key in map(str, range(2_000)) if faults.hit(key, "truncate")]
    assert 300 < len(hit) < 500
    assert hit == [key for key in map(str, range(2_000)) if again.hit(key, "truncate")]
    assert faults.hit("0", "fail") is None
