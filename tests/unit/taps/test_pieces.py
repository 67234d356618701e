"""A plan is read in pieces of bounded size, and makes the blocks that it makes of all its records at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise

import numpy as np
import pytest
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st

from lagloss.wire.format import SAMPLE_ALL
from lagloss_server.extraction import Extraction, Extractor, Records
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.taps import Order, Tap
from taps import topic_reader
from taps.consumers import SharedConsumers
from taps.kernel import BlockMaker, Blocks
from taps.local_engine import LocalEngine
from taps.order import PartitionOrder
from taps.plan import EndMark, Mark, OffsetSpan, TapPlan
from taps.records import SpanRecords
from taps.topic_reader import TopicReader
from tests.support.mock_kafka import mock_kafka

MINUTE_MS = 60_000
SINCE_MS = 29_000_000 * MINUTE_MS
NOW_MS = SINCE_MS + 30 * MINUTE_MS
EXTRACTION = Extraction(IdExpression.parse("$.id"), TimeExpression.parse("$.at"))
RECORDS = 60
PADDING = "x" * 1_000
Row = tuple[str, int, bytes | None]
"""Id (unreadable if it is empty), minute of the event time, and replay."""

rows = st.lists(
    st.tuples(st.sampled_from(["a", "b", "été", ""]), st.integers(-2, 40), st.sampled_from([None, b"june", b"july"])),
    max_size=12,
)


def maker_of(topic: str, group: str | None = None, order: Order | None = None) -> BlockMaker:
    tap = Tap("p", "a", "", topic, group, ("in", "out"), EXTRACTION, first=group is None, order=order)
    return BlockMaker(tap, bytes(16), SINCE_MS, Extractor(EXTRACTION))


def records_of(partition: int, records: Sequence[Row]) -> SpanRecords:
    n = len(records)
    values = [json.dumps({"id": name, "at": SINCE_MS + minute * MINUTE_MS}).encode() for name, minute, _ in records]
    headers = [[("lagloss-replay", replay)] if replay else None for *_, replay in records]
    stamps, offsets = np.arange(n) * MINUTE_MS + SINCE_MS, np.arange(n)
    columns = Records(stamps, [b"k"] * n, values, headers, np.full(n, partition), offsets)
    return SpanRecords(offsets, columns, np.arange(n) % 2 == 0)


def facts(blocks: Blocks) -> object:
    return [block.value for block in blocks.blocks], blocks.dropped, blocks.thinned, blocks.counts


@settings(max_examples=150)
@given(st.data(), st.booleans(), st.sampled_from([(None, None), ("g", None), (None, "key"), (None, "partition")]))
def test_a_plan_comes_to_the_same_however_its_records_are_cut_into_pieces(
    data: st.DataObject, is_spread: bool, kind: tuple[str | None, Order | None]
) -> None:
    group, order = kind
    read = {partition: records_of(partition, data.draw(rows)) for partition in range(3)}
    ends = tuple(EndMark(offset, NOW_MS - (12 - offset) * MINUTE_MS, NOW_MS) for offset in (0, 5, 9))
    commits = () if group is None else (Mark(4, NOW_MS - 20 * MINUTE_MS), Mark(12, NOW_MS))
    spans = tuple(OffsetSpan(partition, 0, some.offsets.size, ends, commits) for partition, some in read.items())
    plan = TapPlan(3, NOW_MS, 4, SAMPLE_ALL, spans, gone={1: 2}, is_spread=is_spread)
    maker = maker_of("t", group, order)
    cut = {}
    for partition, some in read.items():
        size = some.offsets.size
        edges = [0, *sorted(data.draw(st.lists(st.integers(0, size), max_size=4))), size]
        cut[partition] = [some.cut(start, end) for start, end in pairwise(edges)]
    turns = data.draw(st.permutations([partition for partition, some in cut.items() for _ in some]))
    pieces = [(partition, cut[partition].pop(0)) for partition in turns]
    by_pieces, at_once = (
        maker.make_of_pieces(plan, some, {at: PartitionOrder() for at in read} if order else None)
        for some in (pieces, read.items())
    )
    assert facts(by_pieces) == facts(at_once)


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    with mock_kafka() as bootstrap:
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        for number in range(RECORDS):
            for partition in range(2):
                message = {"id": f"{partition}-{number}", "at": SINCE_MS + number * 1_000, "padding": PADDING}
                producer.produce("t", json.dumps(message), partition=partition)
        producer.flush()
        yield bootstrap


@pytest.fixture
def reader(kafka: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TopicReader]:
    monkeypatch.setattr(topic_reader, "BATCH", 3)
    monkeypatch.setattr(topic_reader, "PIECE_BYTES", 5_000)
    with closing(TopicReader(kafka, "t")) as opened:
        yield opened


def spans_of(start: int, end: int) -> tuple[OffsetSpan, ...]:
    return tuple(OffsetSpan(partition, start, end) for partition in range(2))


def test_no_more_than_a_piece_is_held_at_a_time(reader: TopicReader) -> None:
    offsets: dict[int, list[int]] = {0: [], 1: []}
    pieces = 0
    for start in range(0, RECORDS, 20):
        for partition, read in reader.pieces(spans_of(start, start + 20), 5_000):
            assert read.records.value_sizes().sum() <= 5_000 + 3 * 1_300
            early = [record for some in reader._early.values() for record in some]
            assert reader._early_bytes == sum(record.bytes for record in early) <= 5_000 + 3 * 1_300
            offsets[partition] += read.offsets.tolist()
            pieces += 1
    assert offsets == {0: list(range(RECORDS)), 1: list(range(RECORDS))}
    assert pieces > 2 * RECORDS * 1_100 // (5_000 + 3 * 1_300)


def test_keys_and_headers_count_as_much_as_values(kafka: str) -> None:
    producer = Producer({"bootstrap.servers": kafka, "log_level": 0})
    for number in range(10):
        producer.produce("h", None, b"k" * 400, headers=[(f"h{number}", b"v" * 600), ("n", None)], partition=0)
    producer.flush()
    with closing(TopicReader(kafka, "h")) as opened, closing(opened.pieces([OffsetSpan(0, 0, 10)], 1)) as pieces:
        _, read = next(pieces)
        assert len(read.records) == read.records.headers.count([("h0", b"v" * 600), ("n", None)]) * len(read.records)
    record = topic_reader.Delivered.of(
        topic_reader.Message(key=b"k" * 400, value=None, headers=[("h0", b"v" * 600), ("n", None)])
    )
    assert record.bytes == topic_reader.RECORD_BYTES + 400 + 603


def test_a_read_that_was_given_up_leaves_nothing_for_the_next_one(reader: TopicReader) -> None:
    with closing(reader.pieces(spans_of(0, 30), 2_000)) as pieces:
        next(pieces)
    following = reader.read(spans_of(30, 40))
    assert [read.offsets.tolist() for read in following.values()] == [list(range(30, 40))] * 2
    again = reader.read(spans_of(0, 30))
    assert [read.offsets.tolist() for read in again.values()] == [list(range(30))] * 2


def test_who_begins_anew_gets_partitions_that_an_earlier_read_had_paused(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "BATCH", 3)
    monkeypatch.setattr(topic_reader, "PIECE_BYTES", 1)
    monkeypatch.setattr(topic_reader, "STALLED_S", 5.0)
    consumers = SharedConsumers(kafka, kept=1)
    first, second = (TopicReader(kafka, "t", consumers=consumers, peeks=consumers) for _ in range(2))
    for reader in (first, first, second, first):
        read = reader.read([OffsetSpan(0, 0, 7)])
        assert read[0].offsets.tolist() == list(range(7))
        assert reader._paused == {0}
    consumers.close()


@pytest.mark.parametrize("order", [None, "partition"])
def test_the_engine_of_one_process_makes_the_blocks_of_a_plan_in_pieces(
    reader: TopicReader, monkeypatch: pytest.MonkeyPatch, order: Order | None
) -> None:
    plans = [TapPlan(at, NOW_MS, 4, SAMPLE_ALL, spans_of(20 * at, 20 * at + 20), topic_id="1") for at in range(3)]
    maker, orders = maker_of("t", order=order), {0: PartitionOrder(), 1: PartitionOrder()} if order else None
    at_once = [facts(maker.make(plan, reader.read(plan.spans), orders)) for plan in plans]
    pieces: list[int] = []

    def in_small_pieces(self: TopicReader, spans: Sequence[OffsetSpan]) -> Iterator[tuple[int, SpanRecords]]:
        for piece in by_size(self, spans, 2_000):
            pieces.append(piece[0])
            yield piece

    by_size = TopicReader.pieces
    monkeypatch.setattr(TopicReader, "pieces", in_small_pieces)
    engine = LocalEngine(reader, maker)
    assert [facts(engine.blocks(plan)) for plan in plans] == at_once
    assert len(pieces) > 10 * len(plans)
    another = LocalEngine(reader, maker)
    assert facts(another.blocks(plans[2])) == at_once[2], "with the order of the records before, which it reads"
