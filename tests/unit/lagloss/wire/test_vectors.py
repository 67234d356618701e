"""The test vectors in docs/wire-format.md are what lagloss writes and reads."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from lagloss.wire.avro import encode_bytes, encode_long
from lagloss.wire.format import (
    BLOCK_SCHEMA,
    REPORT_SCHEMA,
    OffsetRange,
    Progress,
    decode_block,
    decode_report,
    encode_block,
    encode_report,
    hash_id,
    pack_ranges,
    partition_of,
    signed64,
    unpack_ids,
)
from lagloss.wire.sketch import Sketch, bin_keys
from lagloss.wire.traces import TraceContext, find_traces

PAGE = (Path(__file__).parents[4] / "docs" / "wire-format.md").read_text("utf-8")
EMITTER = bytes(range(16))
WINDOW_START = 1_795_250_400


def vector(name: str) -> bytes:
    found = re.findall(rf"^```hex {name}\n([0-9a-f\n]+)```$", PAGE, re.MULTILINE)
    assert len(found) == 1
    return bytes.fromhex(found[0])


def test_block_vector_decodes_to_what_the_page_says() -> None:
    block = decode_block(vector("block"))
    assert (block.pipeline, block.checkpoint, block.emitter, block.seq) == ("clicks", "src.in", EMITTER, 1)
    assert (block.window_start, block.partitions, block.sample) == (WINDOW_START, 8, 1 << 32)
    assert (block.replay, block.reason, block.payload_crc, block.count) == (None, None, None, 2)
    assert block.message_ids is not None
    assert block.event_offset_ms is not None
    assert unpack_ids(block.message_ids, range(2)) == [b"m-4", b"m-9"]
    assert block.id_hash.tolist() == [hash_id("m-4"), hash_id("m-9")] == [0xADBFAB92931FE7DE, 0xB46894AD58B2847E]
    assert {partition_of(id_hash, 8) for id_hash in block.id_hash.tolist()} == {5}
    assert block.lag_ms.tolist() == [12.5, -0.25]
    assert block.event_offset_ms.tolist() == [0, 59_999]


def test_report_vector_decodes_to_what_the_page_says() -> None:
    report = decode_report(vector("report"))
    assert (report.pipeline, report.node, report.emitter, report.host) == ("clicks", "src", EMITTER, "host:42")
    assert (report.seq, report.started_at, report.sent_at) == (1, 1_795_250_395_000, 1_795_250_461_000)
    assert (report.closed, report.final_through) == (False, 1_795_250_460)
    until = 1_795_250_460_000
    assert report.progress == (Progress("src.in", "orders/0", until), Progress("src.out", "", until))
    (tally,) = report.tallies
    assert (tally.checkpoint, tally.window_start, tally.replay, tally.sample) == ("src.in", WINDOW_START, None, 1 << 32)
    assert (tally.beacons, tally.payload_bytes, tally.dropped) == (2, 0, 0)
    assert tally.ranges == (OffsetRange(5, 41, 41),)


def test_report_vector_counts_the_block_vector() -> None:
    block, (tally,) = decode_block(vector("block")), decode_report(vector("report")).tallies
    assert tally.beacons == block.count
    assert tally.id_sum == int(np.add.reduce(block.id_hash)) == 7_072_973_858_068_917_340
    assert tally.lag_sketch.bins() == Sketch.of(block.lag_ms).bins() == {-9931: 1, 10127: 1}


def test_vectors_encode_to_the_same_bytes() -> None:
    for block in ("block", "full-block", "traced-block", "ordered-block", "supplied-block"):
        assert encode_block(decode_block(vector(block))) == vector(block)
    for report in ("report", "closing-report"):
        assert encode_report(decode_report(vector(report))) == vector(report)


@pytest.mark.parametrize("header", [BLOCK_SCHEMA.header, REPORT_SCHEMA.header])
def test_page_names_the_bytes_that_each_value_begins_with(header: bytes) -> None:
    assert f"`{header.hex()}`" in PAGE


def test_full_block_vector_decodes_to_what_the_page_says() -> None:
    block = decode_block(vector("full-block"))
    assert (block.checkpoint, block.emitter, block.seq, block.window_start) == (
        "mid.filtered",
        EMITTER,
        7,
        WINDOW_START,
    )
    assert (block.partitions, block.sample, block.replay, block.reason) == (1, 1 << 31, "again", "robot")
    assert (block.event_offset_ms, block.message_ids) == (None, None)
    assert block.payload_crc is not None
    assert block.payload_crc.tolist() == [0xE3069283, 0]
    assert block.id_hash.tolist() == [hash_id("o-1"), hash_id("o-4")]
    assert all(id_hash % (1 << 32) < block.sample for id_hash in block.id_hash.tolist())
    assert block.lag_ms.tolist() == [1000.0, -3.5]


def test_traced_block_vector_is_the_block_vector_with_one_trace() -> None:
    block, traced = decode_block(vector("block")), decode_block(vector("traced-block"))
    assert traced.traces is not None
    (found,) = find_traces(traced.traces, np.arange(2)).items()
    assert found == (1, TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"))
    assert f"`traceparent: 00-{'-'.join(found[1])}-01`" in PAGE
    traced.seq, traced.traces = block.seq, None
    assert encode_block(traced) == vector("block")


def test_ordered_block_vector_is_the_block_vector_with_one_beacon_out_of_order() -> None:
    block, ordered = decode_block(vector("block")), decode_block(vector("ordered-block"))
    assert ordered.out_of_order == b"\1\0"
    ordered.seq, ordered.out_of_order = block.seq, None
    assert encode_block(ordered) == vector("block")


def test_supplied_block_vector_is_the_block_vector_with_supplied_times() -> None:
    block, supplied = decode_block(vector("block")), decode_block(vector("supplied-block"))
    assert supplied.supplied_at == 1_795_250_461_000
    supplied.seq, supplied.supplied_at = block.seq, None
    assert encode_block(supplied) == vector("block")


def test_closing_report_vector_decodes_to_what_the_page_says() -> None:
    report, block = decode_report(vector("closing-report")), decode_block(vector("full-block"))
    assert (report.node, report.host, report.seq, report.closed) == ("mid", "", 9, True)
    assert (report.sent_at, report.final_through, report.progress) == (1_795_250_470_000, 1_795_250_469, ())
    (tally,) = report.tallies
    assert (tally.checkpoint, tally.replay, tally.sample, tally.beacons) == ("mid.filtered", "again", 1 << 31, 2)
    assert (tally.payload_bytes, tally.dropped, tally.ranges) == (512, 1, (OffsetRange(0, 3, 3),))
    total = sum(block.id_hash.tolist()) % (1 << 64)
    assert f"`id_sum` {tally.id_sum} (the sum {total}" in PAGE
    assert tally.id_sum == signed64(total)
    assert tally.lag_sketch.bins() == {-10063: 1, 10346: 1}


def rows(title: str) -> list[list[str]]:
    """The cells of the table below this title, without its head."""
    lines = PAGE.partition(f"### {title}\n")[2].partition("\n### ")[0].splitlines()
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]


def test_bins_and_ranges_are_the_bytes_that_the_page_says() -> None:
    tables = [row for row in rows("Bins and ranges") if row[0].lstrip("-").isdigit()]
    bins = {int(key): int(count) for key, count, *_ in (row for row in tables if len(row) == 4)}
    ranges = [OffsetRange(*map(int, row[:3])) for row in tables if len(row) == 5]
    assert Sketch.from_bins(bins).to_bytes() == vector("bins")
    assert pack_ranges(ranges) == vector("ranges")
    for numbers, encoded in (row[-2:] for row in tables):
        parts = [part.strip("` ") for part in encoded.split()]
        assert parts == [encode_long(int(number)).hex() for number in numbers.split(", ")]
    for name, length in (("bins", "14"), ("ranges", "18")):
        assert f"`{length}` ({len(vector(name))} bytes)" in PAGE
        assert encode_bytes(vector(name)).hex() == length + vector(name).hex()


def test_ids_partitions_and_samples_are_what_the_page_says() -> None:
    for message_id, id_hash, of_8, of_1000, taken in rows("Ids, partitions, samples"):
        found = hash_id(message_id)
        assert (f"{found:016x}", partition_of(found, 8), partition_of(found, 1000)) == (
            id_hash,
            int(of_8),
            int(of_1000),
        )
        assert (found % (1 << 32) < 429_496_729) is (taken == "yes")


def test_bins_are_what_the_page_says() -> None:
    table = {float(lag): int(key) for lag, key in rows("Lags and bins")}
    assert len(table) == 9
    assert bin_keys(np.array(list(table))).tolist() == list(table.values())


def test_lengths_over_http_are_what_the_page_says() -> None:
    for name in ("block", "full-block"):
        length = len(vector(name))
        assert f"({length} bytes)" in PAGE
        assert f"`{length.to_bytes(4, 'little').hex()}`" in PAGE
