"""Records out of order, against the definition; and blocks that are the same however the records before are known."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.wire.format import SAMPLE_ALL, decode_block
from lagloss.wire.positions import read_positions
from lagloss_server.extraction import Extractor, Records
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.taps import Extraction, Order, Tap
from taps import order as module
from taps.kernel import BlockMaker, Blocks
from taps.order import KeyTimes, PartitionOrder, are_out_of_order
from taps.plan import OffsetSpan, TapPlan
from taps.records import SpanRecords

NOW_MS = 1_780_000_000_000
Row = tuple[int, int, int]
"""Offset, key and event time."""


def slowly(rows: Sequence[Row], reach: int, newest_ms: float) -> list[bool]:
    """Each record beside each before it."""
    return [
        when <= newest_ms
        and any(there == key and offset - reach <= at < offset and when < then <= newest_ms for at, there, then in rows)
        for offset, key, when in rows
    ]


def columns(rows: Sequence[Row]) -> KeyTimes:
    offsets, keys, times = zip(*rows, strict=True) if rows else ((), (), ())
    return KeyTimes(np.array(offsets, np.int64), np.array(keys, np.uint64), np.array(times, np.float64))


@st.composite
def partitions(draw: st.DrawFn) -> list[Row]:
    gaps = draw(st.lists(st.integers(1, 4), max_size=40))
    return [(at, draw(st.integers(0, 3)), draw(st.integers(0, 12))) for at in itertools.accumulate(gaps)]


@given(partitions(), st.integers(1, 30), st.integers(0, 14), st.lists(st.integers(0, 40), max_size=4))
def test_records_are_out_of_order_by_the_definition_however_they_are_cut(
    rows: list[Row], reach: int, newest_ms: int, cuts: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "REACH", reach)
        patch.setattr(module, "_mark", getattr(module._mark, "py_func", module._mark))  # compiled, REACH is a constant
        order = PartitionOrder()
        edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
        found = [order.take(columns(rows[a:b]), newest_ms) for a, b in itertools.pairwise(edges)]
    assert np.concatenate(found).tolist() == slowly(rows, reach, newest_ms)


@given(partitions(), st.sampled_from([1, 5_000, 19_999, 20_000]))
def test_compiled_loop_marks_what_the_definition_does(rows: list[Row], stretch: int) -> None:
    spaced = [(offset * stretch, key, when) for offset, key, when in rows]
    assert are_out_of_order(columns(spaced)).tolist() == slowly(spaced, module.REACH, np.inf)


def maker(order: Order | None) -> BlockMaker:
    extraction = Extraction(IdExpression.parse("$.id"), TimeExpression.parse("$.at"))
    tap = Tap("p", "a", "", "t", None, ("in", "out"), extraction, first=True, order=order)
    return BlockMaker(tap, bytes(16), 0, Extractor(extraction))


def span_records(rows: Sequence[tuple[int, bytes | None, int]]) -> SpanRecords:
    """Of offset, key and event time; the id is the offset."""
    values = [json.dumps({"id": f"m{offset}", "at": NOW_MS + when}).encode() for offset, _, when in rows]
    offsets = np.array([offset for offset, *_ in rows], np.int64)
    stamps = np.full(len(rows), NOW_MS, np.int64)
    return SpanRecords(
        offsets, Records(stamps, [key for _, key, _ in rows], values, [None] * len(rows)), np.full(len(rows), True)
    )


def named(made: Blocks, place: str) -> set[bytes]:
    """The ids of beacons that are out of order; names are in those of `in` alone, in the order of `out`."""
    blocks = [decode_block(block.value) for block in made.blocks]
    names = {
        int(id_hash): name
        for block in blocks
        if block.message_ids
        for id_hash, name in zip(block.id_hash, block.message_ids.split(b"\2")[1:], strict=True)
    }
    return {
        names[int(block.id_hash[at])]
        for block in blocks
        if block.checkpoint == f"a.{place}" and block.out_of_order
        for at in read_positions(block.out_of_order)
    }


RECORDS = [
    (1, b"x", 5),
    (2, b"y", 1),
    (3, b"x", 4),
    (4, None, 0),
    (5, b"y", 2),
    (6, b"x", 5),
    (7, b"y", 0),
    (8, b"x", 4),
]


@pytest.mark.parametrize(
    ("order", "expected"),
    [("key", {b"m3", b"m7", b"m8"}), ("partition", {b"m2", b"m3", b"m4", b"m5", b"m7", b"m8"}), (None, set())],
)
def test_a_plan_makes_the_same_blocks_whether_records_before_are_kept_or_read_again(
    order: Order | None, expected: set[bytes]
) -> None:
    def plan(start: int, end: int, number: int) -> TapPlan:
        return TapPlan(number, NOW_MS, 1, SAMPLE_ALL, (OffsetSpan(0, start, end),))

    making = maker(order)
    kept, again = PartitionOrder(), PartitionOrder()
    first = making.make(plan(0, 5, 1), {0: span_records(RECORDS[:4])}, {0: kept} if order else {})
    second = making.make(plan(5, 9, 2), {0: span_records(RECORDS[4:])}, {0: kept} if order else {})
    if order:
        making.remember(span_records(RECORDS[:4]), again)
    repeated = making.make(plan(5, 9, 2), {0: span_records(RECORDS[4:])}, {0: again} if order else {})
    assert [block.value for block in repeated.blocks] == [block.value for block in second.blocks]
    for place in ("in", "out"):
        assert named(first, place) | named(second, place) == expected


def test_a_time_ahead_of_the_plan_overtakes_none() -> None:
    making = maker("key")
    rows = [(1, b"x", 90_000_000), (2, b"x", 3), (3, b"x", 2)]
    made = making.make(
        TapPlan(1, NOW_MS, 1, SAMPLE_ALL, (OffsetSpan(0, 0, 4),)), {0: span_records(rows)}, {0: PartitionOrder()}
    )
    assert named(made, "in") == {b"m3"}
    assert made.counts.unreadable["time_ahead"].count == 1


def test_order_is_judged_by_taps_of_topics_and_makes_other_taps() -> None:
    def taps(order: str) -> list[Tap]:
        text = (
            "{apiVersion: lagloss/v1, kind: Pipeline, metadata: {name: p}, spec: {" + order + "nodes: ["
            "{name: a, to: [b], taps: {out: {topic: t, id: $.id, eventTime: $.at}}}, "
            "{name: b, taps: {in: {group: g}}}]}}"
        )
        return parse_definition(text).taps

    assert [tap.order for tap in taps("order: key, ")] == ["key", None]
    assert [tap.order for tap in taps("")] == [None, None]
    assert "order" not in taps("")[0].document()
    for order in ("", "order: partition, "):
        for tap in taps(order):
            assert Tap.of(tap.document()) == tap
