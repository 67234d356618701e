"""Replays through a tap: presence by the name that the record's header gives, however plans and tasks are cut."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lagloss.identity import Carrier, Identities, Identity, mapping_of
from lagloss.wire.format import SAMPLE_ALL, UNNAMED_REPLAY, BeaconBlock, decode_block, hash_id
from lagloss.wire.positions import read_positions
from lagloss_server.extraction import BROKEN_HEADERS, Extraction, Extractor, Records
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.taps import Order, Tap
from taps.kernel import MAX_REPLAYS, BlockMaker, Blocks
from taps.order import PartitionOrder
from taps.plan import Mark, OffsetSpan, TapPlan
from taps.records import SpanRecords
from taps.spark_task import span_records

SINCE_MS = 29_000_000 * 60_000
NOW_MS = SINCE_MS + 600_000
EXTRACTION = Extraction(IdExpression.parse("$.id"), TimeExpression.parse("$.at"))
Sighting = tuple[str, str, str | None]
"""Checkpoint, id and replay."""
Headers = list[tuple[str, bytes | None]]
Row = tuple[str, Headers]
"""Id and headers of a record."""

ids = st.sampled_from(["a", "b", "c", "été"])
names = st.none() | st.sampled_from([b"june", b"again", b"", b"\xff", b"\0", b"x" * 500, b"x" * 501, b"\xff" * 167])
headers = st.lists(st.tuples(st.sampled_from(["lagloss-replay", "lagloss-replay", "LAGLOSS-REPLAY", "other"]), names))
rows = st.lists(st.tuples(ids, headers.filter(lambda some: len(some) < 4)), min_size=1, max_size=12)


def replay_by_sdk(some: Headers) -> str | None:
    """Return the replay that a node of the SDK takes these headers for."""
    found = Identities(lambda _: Identity("a", SINCE_MS)).find(Carrier(mapping_of(some), b"", None))
    assert found is not None
    return found.replay


def tap_of(group: str | None = None, order: Order | None = None, extraction: Extraction = EXTRACTION) -> Tap:
    return Tap("p", "a", "", "t", group, ("in", "out"), extraction, first=group is None, order=order)


def maker_of(tap: Tap) -> BlockMaker:
    return BlockMaker(tap, bytes(16), SINCE_MS, Extractor(tap.extraction))


def by_client(records: Sequence[Row], start: int = 0, **fields: Any) -> SpanRecords:
    """Return records as Kafka's client gives them, at offsets from `start` on, one each second."""
    n = len(records)
    values = [json.dumps({"id": name, "at": SINCE_MS + 1_000 * at, **fields}).encode() for at, (name, _) in
              enumerate(records)]  # fmt: skip
    offsets = np.arange(start, start + n)
    columns = Records(
        np.full(n, NOW_MS - 1_000, np.int64), [b"k"] * n, values, [some for _, some in records],
        np.zeros(n, np.int64), offsets,
    )  # fmt: skip
    return SpanRecords(offsets, columns, np.zeros(n, np.bool_))


def by_spark(records: Sequence[Row]) -> SpanRecords:
    """Return the same records as tasks of Spark have them."""
    columns = by_client(records).records
    listed = [[{"key": key, "value": value} for key, value in some] or None for _, some in records]
    fields = {
        "partition": pa.array([0] * len(records), pa.int32()),
        "offset": pa.array(columns.offsets),
        "timestamp_ms": pa.array(columns.timestamp_ms),
        "timestampType": pa.array([0] * len(records), pa.int32()),
        "key": pa.array(columns.keys, pa.binary()),
        "value": pa.array(columns.values, pa.binary()),
        "headers": pa.array(listed, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    }
    return span_records(pa.RecordBatch.from_pydict(fields))


def plan_of(records: int, **fields: Any) -> TapPlan:
    span = OffsetSpan(0, 0, records, commits=(Mark(records, NOW_MS),))
    return replace(TapPlan(1, NOW_MS, 4, SAMPLE_ALL, (span,)), **fields)


def made(maker: BlockMaker, parts: Sequence[SpanRecords], plan: TapPlan) -> list[BeaconBlock]:
    """Return the blocks of a plan whose records come in these parts."""
    blocks = Blocks()
    order = PartitionOrder() if maker.tap.order else None
    observed = [maker.observe(plan, plan.spans[0], part, blocks, order) for part in parts]
    packed = maker.pack(plan, [beacons for beacons in observed if beacons is not None], 0, blocks)
    return [decode_block(block.value) for block in packed]


def sightings(blocks: Sequence[BeaconBlock]) -> Counter[tuple[str, int, str | None]]:
    return Counter((block.checkpoint, id_, block.replay) for block in blocks for id_ in block.id_hash.tolist())


@settings(max_examples=60)
@given(rows, st.sampled_from([None, "g"]))
@example([("a", [("lagloss-replay", None)]), ("a", [])], None)
@example([("a", [("lagloss-replay", b"june")])] * 2 + [("a", [("lagloss-replay", b"again")]), ("a", [])], "g")
def test_a_record_is_of_the_replay_that_the_sdk_takes_it_for(records: list[Row], group: str | None) -> None:
    expected = Counter(
        (f"a.{place}", hash_id(name), replay_by_sdk(some)) for name, some in records for place in ("in", "out")
    )
    maker, plan = maker_of(tap_of(group)), plan_of(len(records))
    assert sightings(made(maker, [by_client(records)], plan)) == expected
    assert sightings(made(maker, [by_spark(records)], plan)) == expected


@settings(max_examples=60)
@given(rows, st.lists(st.integers(0, 12)), st.sampled_from([(), ("june",), ("other", "x")]))
def test_blocks_are_the_same_however_the_records_of_a_span_are_split(
    records: list[Row], cuts: list[int], known: tuple[str, ...]
) -> None:
    maker, plan = maker_of(tap_of()), plan_of(len(records), replays=known)
    whole, spark = by_client(records), by_spark(records)
    edges = sorted({0, len(records), *(cut for cut in cuts if cut < len(records))})
    pieces = list(pairwise(edges))
    expected = list(map(content, made(maker, [whole], plan)))
    for of_all in (whole, spark):
        assert list(map(content, made(maker, [of_all.cut(*piece) for piece in pieces], plan))) == expected


def content(block: BeaconBlock) -> tuple[object, ...]:
    """Return all that a block holds, as values that can be compared."""
    columns = (block.id_hash.tolist(), block.lag_ms.tolist())
    return block.seq, block.checkpoint, block.replay, block.window_start, block.message_ids, *columns


@given(rows, st.sampled_from(["key", "partition"]))
def test_replays_are_neither_out_of_order_nor_overtake(records: list[Row], order: Order) -> None:
    maker, plan = maker_of(tap_of(order=order)), plan_of(len(records))
    with_times = by_client(records)
    latest = [SINCE_MS + 1_000 * at for at in range(len(records))][::-1]  # each is older than the one before
    values = [json.dumps({"id": name, "at": at_ms}).encode() for (name, _), at_ms in zip(records, latest, strict=True)]
    read = replace(with_times, records=replace(with_times.records, values=values))
    late = Counter(
        (block.checkpoint, int(block.id_hash[at]), block.replay)
        for block in made(maker, [read], plan)
        for at in (read_positions(block.out_of_order) if block.out_of_order else ())
    )
    live = [name for name, some in records if replay_by_sdk(some) is None]
    assert late == Counter((f"a.{place}", hash_id(name), None) for name in live[1:] for place in ("in", "out"))


def test_records_before_a_span_that_were_replayed_overtake_nothing() -> None:
    maker, order = maker_of(tap_of(order="key")), PartitionOrder()
    before = by_client([("a", [("lagloss-replay", b"june")])], at=SINCE_MS + 90_000)
    maker.remember(before, order)
    following = by_client([("b", [])], start=1)
    plan = plan_of(2)
    beacons = maker.observe(plan, plan.spans[0], following, Blocks(), order)
    assert beacons is not None
    assert not beacons.observed.out_of_order.any()


def test_names_beyond_the_limit_count_as_unnamed_and_those_of_earlier_plans_keep_theirs() -> None:
    many: list[Row] = [("a", [("lagloss-replay", b"r%d" % number)]) for number in range(2 * MAX_REPLAYS)]
    often: list[Row] = [("a", [("lagloss-replay", b"z")])] * 2
    known = ("r150", "r199", "r7")
    plan = plan_of(len(many) + 2, replays=known)
    blocks = made(maker_of(tap_of("g")), [by_client(many + often)], plan)
    found = Counter[str | None]()
    for block in blocks:
        found[block.replay] += block.count * (block.checkpoint == "a.in")
    assert found.total() == len(many) + 2
    assert {*known, "z", UNNAMED_REPLAY} <= found.keys()
    assert len(found) == MAX_REPLAYS + 1
    full = plan_of(len(many), replays=tuple(f"k{number}" for number in range(MAX_REPLAYS)))
    assert {block.replay for block in made(maker_of(tap_of("g")), [by_client(many)], full)} == {UNNAMED_REPLAY}


def test_a_plan_keeps_the_names_that_it_was_made_with() -> None:
    plan = plan_of(3, replays=("again", "june"))
    assert TapPlan.of(json.loads(json.dumps(plan.document()))) == plan


def test_a_replay_of_what_is_too_old_leaves_no_window_incomplete() -> None:
    plan = plan_of(1)
    old_ms = NOW_MS - 8 * 86_400_000
    old = BlockMaker(tap_of(), bytes(16), 0, Extractor(EXTRACTION))
    for some, is_complete in (([("lagloss-replay", b"june")], True), ([], False)):
        result = old.make(plan, {0: by_client([("a", some)], at=old_ms)})
        assert (result.blocks, result.counts.unreadable["time_too_old"].count) == ([], 1)
        assert (not result.dropped) == is_complete
    unset = old.make(plan, {0: by_client([("a", [("lagloss-replay", b"june")])], at=0)})
    assert unset.dropped, "an event time that was never set may be of any window"


def test_a_replay_that_cannot_be_read_may_be_any_message() -> None:
    result = maker_of(tap_of()).make(plan_of(1), {0: by_client([("", [("lagloss-replay", b"june")])])})
    assert (result.blocks, result.counts.unreadable["bad_id"].count) == ([], 1)
    assert result.dropped
    assert {key.replay for key in result.dropped} == {None}


def test_headers_that_no_client_hands_out_are_of_live_traffic_as_to_a_node() -> None:
    blocks = made(maker_of(tap_of()), [by_client([("a", BROKEN_HEADERS)])], plan_of(1))  # type: ignore[list-item]
    assert {block.replay for block in blocks} == {None}
    assert replay_by_sdk([]) is None


@pytest.mark.parametrize("written", ["$.id", "key", "header:id", "hash($.id, header:id)", ["$.id", "key"]])
def test_a_copy_has_the_id_of_its_message_whatever_the_id_is_made_of(written: str | list[str]) -> None:
    extraction = Extraction(IdExpression.parse(written), TimeExpression.parse("$.at"))
    copies: list[Row] = [("a", [("id", b"7"), *some]) for some in ([], [("lagloss-replay", b"june")])]
    blocks = made(maker_of(tap_of("g", extraction=extraction)), [by_client(copies, at=SINCE_MS)], plan_of(2))
    by_replay: Mapping[str | None, set[int]] = {
        replay: {id_ for block in blocks if block.replay == replay for id_ in block.id_hash.tolist()}
        for replay in (None, "june")
    }
    assert by_replay[None] == by_replay["june"]
    assert len(by_replay[None]) == 1


REPLAYED = ("lagloss-replay", b"june")


@pytest.mark.parametrize(
    ("written", "some", "expected"),
    [
        ("partition-offset", [REPLAYED, ("lagloss-id", b"t/3/1841")], "t/3/1841"),
        ("partition-offset", [("lagloss-id", b"t/3/1841")], "t/0/0"),
        ("partition-offset", [REPLAYED], "t/0/0"),
        ("partition-offset", [REPLAYED, ("lagloss-id", b"u/3/1841")], "t/0/0"),
        ("partition-offset", [REPLAYED, ("lagloss-id", b"order-7")], "t/0/0"),
        ("partition-offset", [REPLAYED, ("lagloss-id", None)], "t/0/0"),
        ("partition-offset(header:o)", [REPLAYED, ("lagloss-id", b"t/3/1841"), ("o", b"t/0/99")], "t/3/1841"),
        ("partition-offset(header:o)", [REPLAYED, ("lagloss-id", b"t/3/1841")], "t/3/1841"),
        ("partition-offset(header:o)", [REPLAYED, ("o", b"t/0/99")], "t/0/99"),
        ("partition-offset(header:o)", [("lagloss-id", b"t/3/1841")], None),
        ("partition-offset($.o)", [REPLAYED, ("lagloss-id", b"t/3/1841")], "t/3/1841"),
    ],
)
def test_a_copy_names_the_position_of_its_message(written: str, some: Headers, expected: str | None) -> None:
    extraction = Extraction(IdExpression.parse(written), TimeExpression.parse("$.at"), origins=("t",))
    for read in (by_client([("a", some)]), by_spark([("a", some)])):
        extracted = Extractor(extraction).extract(read.records)
        assert [raw.decode() for raw in extracted.ids] == ([] if expected is None else [expected])
    among = by_client([("x", []), ("a", some), ("y", [])], start=5)
    if written == "partition-offset":
        here = "t/0/6" if expected == "t/0/0" else expected
        assert [raw.decode() for raw in Extractor(extraction).extract(among.records).ids] == ["t/0/5", here, "t/0/7"]
