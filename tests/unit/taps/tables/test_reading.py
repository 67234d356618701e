"""A plan of a table holds its rows, and comes back from the database as it went in."""

from __future__ import annotations

import json

from lagloss.wire.format import decode_block, hash_id
from lagloss_server.extraction import Extractor
from lagloss_server.model.tables import TableSpec, TableTap
from taps.kernel import BlockMaker
from taps.tables.reading import TablePlan, TableRow, pack_rows, span_of, unpack_rows

MINUTE_MS = 60_000
NOW_MS = 30_000_000 * MINUTE_MS
TAP = TableTap("p", "sink", TableSpec(database="shop", table="a.t", id="id", event_time="at"), ("out",), first=False)


def row(place: int, message_id: object, at: object) -> TableRow:
    return TableRow(place, json.dumps({"id": message_id, "eventTime": at}))


def plan(*rows: TableRow) -> TablePlan:
    span = span_of(rows, NOW_MS - 1_000, NOW_MS)
    return TablePlan(7, NOW_MS, 1, 1 << 32, (span,), through_ms=NOW_MS, rows=pack_rows(rows), position={"passed": 3})


def test_a_stored_plan_makes_the_same_blocks() -> None:
    rows = [row(1, "a", "2027-01-15T07:59:59.5+00:00"), row(2, 17, (NOW_MS - 2_000) / 1_000)]
    first = plan(*rows)
    again = TablePlan.of(json.loads(json.dumps(first.document())))
    assert again == first
    assert unpack_rows(again.rows) == rows
    maker = BlockMaker(TAP, bytes(16), NOW_MS - 10 * MINUTE_MS, Extractor(TAP.extraction))
    blocks = [maker.make(of, of.read()) for of in (first, again)]
    assert [block.value for block in blocks[0].blocks] == [block.value for block in blocks[1].blocks]
    assert sum(block.increment.beacons for block in blocks[0].blocks) == 2
    ids = {id_ for block in blocks[0].blocks for id_ in decode_block(block.value).id_hash.tolist()}
    assert ids == {hash_id("a"), hash_id("17")}


def test_rows_without_an_id_or_a_time_leave_their_windows_incomplete() -> None:
    maker = BlockMaker(TAP, bytes(16), NOW_MS - 10 * MINUTE_MS, Extractor(TAP.extraction))
    rows = [row(1, None, NOW_MS), row(2, "b", None), row(3, 1.5, NOW_MS), row(4, "c", "infinity")]
    made = maker.make(plan(*rows), plan(*rows).read())
    assert {reason: count.count for reason, count in made.counts.unreadable.items()} == {
        "no_id": 1,
        "no_time": 1,
        "bad_id": 1,
        "bad_time": 1,
    }
    assert made.counts.unreadable["bad_id"].offset == 3
    assert made.dropped
    assert not made.blocks


def test_a_plan_without_rows_reads_nothing() -> None:
    assert TablePlan(1, NOW_MS, 1, 1).read() == {}
    assert TableTap.of(json.loads(json.dumps(TAP.document()))) == TAP
