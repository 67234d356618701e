"""Which blocks count: closing and whatever reads blocks from the log have the same answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aggregator.kernel.kernel import BadBlock, Counted, Part, Totals
from aggregator.kernel.plan import ReadPlan, WindowPlan
from lagloss.wire.format import MAX_AHEAD_MS, MAX_TIME_MS, RETENTION_MS, BadReason, BeaconBlock, block_key, encode_block
from lagloss_server.model.definition import parse_definition
from lagloss_server.queries.beacon_log import LogRecord
from lagloss_server.queries.window_blocks import good_block
from tests.oracle.evidence import Record
from tests.support.in_memory import run_kernel, to_batches

START_S = 1_780_000_020
START_MS = START_S * 1000
KEY = block_key("clicks", START_S)
BLOCK = BeaconBlock("clicks", "src.in", bytes(16), 1, START_S, 8, np.ones(1, np.uint64), np.ones(1, np.float32))
ONE = "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: clicks}\nspec: {nodes: [{name: src}]}"
PLAN = WindowPlan(parse_definition(ONE).graph, START_S)
WANTED = ReadPlan({PLAN.key: PLAN}, frozenset(["clicks"]))


def closed(record: LogRecord, plan: ReadPlan) -> list[Part]:
    return run_kernel(to_batches([Record(0, 0, record.appended_ms, record.key, record.value)], 1), plan)


def closing_says(record: LogRecord) -> BadReason | None:
    """Why the closing of the window sets a record aside; None if it counts."""
    parts = closed(record, WANTED)
    bad = [part.reason for part in parts if isinstance(part, BadBlock)]
    assert any(part.facts.read for part in parts if isinstance(part, Counted)) is not bool(bad)
    return bad[0] if bad else None


@pytest.mark.parametrize("way", [{}, {"replay": "again"}, {"reason": "späm"}])
@pytest.mark.parametrize(
    ("appended_ms", "reason"),
    [
        (START_MS, None),
        (START_MS - MAX_AHEAD_MS, None),
        (START_MS - MAX_AHEAD_MS - 1, "window_ahead"),
        (START_MS + RETENTION_MS, None),
        (START_MS + RETENTION_MS + 1, "window_too_old"),
    ],
)
def test_a_block_counts_if_it_was_appended_in_reach_of_its_window(
    way: dict[str, Any], appended_ms: int, reason: BadReason | None
) -> None:
    record = LogRecord(KEY, encode_block(replace(BLOCK, **way)), appended_ms)
    assert closing_says(record) == reason
    assert (good_block(record, "clicks") is None) is (reason is not None)


@pytest.mark.parametrize(
    ("fields", "key", "reason"),
    [
        ({"window_start": START_S + 60}, KEY, "key_mismatch"),
        ({"pipeline": "clocks"}, KEY, "key_mismatch"),
        ({"pipeline": "clocks", "window_start": 60}, b"clocks/60", "unknown_pipeline"),
        ({"window_start": START_S + 30}, block_key("clicks", START_S + 30), "window_invalid"),
        ({"window_start": -60}, b"clicks/-60", "window_invalid"),
        ({"sample": 0}, KEY, "header_invalid"),
        ({"supplied_at": -1}, KEY, "header_invalid"),
        ({"supplied_at": MAX_TIME_MS + 1}, KEY, "header_invalid"),
        ({"partitions": 0}, KEY, "header_invalid"),
        ({"lag_ms": np.array([np.inf], np.float32)}, KEY, "lag_not_finite"),
        ({"lag_ms": np.ones(2, np.float32)}, KEY, "count_mismatch"),
    ],
)
def test_a_block_that_closing_sets_aside_counts_nowhere(fields: dict[str, Any], key: bytes, reason: BadReason) -> None:
    record = LogRecord(key, encode_block(replace(BLOCK, **fields)), START_MS)
    assert closing_says(record) == reason
    assert good_block(record, "clicks") is None


@pytest.mark.parametrize(
    ("appended_ms", "reason"),
    [(START_MS + RETENTION_MS + 1, "window_too_old"), (START_MS - MAX_AHEAD_MS - 1, "window_ahead")],
)
def test_a_block_out_of_reach_is_counted_once_whether_its_window_is_closed_meanwhile_or_not(
    appended_ms: int, reason: BadReason
) -> None:
    record = LogRecord(KEY, encode_block(BLOCK), appended_ms)
    unwanted, audited = replace(WANTED, windows={}), replace(WANTED, audited={0: 1})
    counted = []
    for plan in (unwanted, WANTED, audited):
        parts = closed(record, plan)
        in_windows = [part.facts.bad for part in parts if isinstance(part, Counted) and part.facts.bad]
        counted.append((in_windows, [dict(part.strays) for part in parts if isinstance(part, Totals)]))
    assert counted == [([], [{reason: 1}]), ([], [{reason: 1}]), ([], [{}])]
