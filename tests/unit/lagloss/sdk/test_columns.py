"""Many messages recorded at once, against the calls for single ones."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lagloss import Emitter, MemoryOutlet
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.sdk.emitter import BeaconKind
from lagloss.wire.format import decode_block, decode_report, hash_id

NOW_MS = time.time_ns() // 1_000_000
DAY_MS = 86_400_000
IDS = st.one_of(st.text(max_size=4), st.sampled_from(["x" * 255, "x" * 256, "é" * 128, "\ud800", None, 5]))
TIMES = st.one_of(
    st.integers(NOW_MS - 200_000, NOW_MS),
    st.floats(NOW_MS - 100_000, NOW_MS),
    st.sampled_from(
        [
            datetime(2023, 11, 14, tzinfo=UTC),
            datetime.now(UTC),
            datetime.now(),  # noqa: DTZ005
            None,
            "now",
            True,
            float("nan"),
            10**400,
            NOW_MS - 8 * DAY_MS,
            NOW_MS + 120_000,
            NOW_MS + 2 * DAY_MS,
        ]
    ),
)


def sent(log: MemoryOutlet) -> Counter[tuple[Any, ...]]:
    """What each beacon says, without its lag."""
    return Counter(
        (block.checkpoint, block.window_start, block.replay, block.reason, int(id_hash))
        for block in map(decode_block, log.values(BEACONS))
        for id_hash in block.id_hash
    )


def dropped(log: MemoryOutlet) -> Counter[tuple[str, int]]:
    """Of the newest tallies."""
    found = {
        (tally.checkpoint, tally.window_start): tally.dropped
        for value in log.values(REPORTS)
        for tally in decode_report(value).tallies
    }
    return Counter({key: count for key, count in found.items() if count})


def counted(observe: Callable[[Emitter], object], **options: Any) -> tuple[Any, ...]:
    log = MemoryOutlet()
    with Emitter("orders", "mid", outlet=lambda: log, **options) as emitter:
        observe(emitter)
        emitter.flush()
        stats = emitter.stats()
    return sent(log), dropped(log), stats.refused, stats.unplaced, stats.errors


@settings(max_examples=60)
@given(
    st.lists(st.tuples(IDS, TIMES), max_size=12),
    st.booleans(),
    st.sampled_from([None, "again"]),
    st.sampled_from([("received", {}), ("sent", {"to": "snk"}), ("dead_lettered", {"reason": "bad"})]),
)
def test_columns_say_what_single_calls_say(
    rows: list[tuple[Any, Any]], first: bool, replay: str | None, how: tuple[BeaconKind, dict[str, str]]
) -> None:
    kind, more = how

    def one_by_one(emitter: Emitter) -> None:
        for message_id, event_time in rows:
            getattr(emitter, kind)(message_id, event_time, replay=replay, **more)

    def at_once(emitter: Emitter) -> None:
        emitter.observe_all(kind, [row[0] for row in rows], [row[1] for row in rows], replay=replay, **more)

    expected, found = counted(one_by_one, first=first), counted(at_once, first=first)
    assert found[:2] == expected[:2]
    assert sum(found[2:4]) == sum(expected[2:4])  # a time that is none is refused here, and unplaced there
    assert found[4] == expected[4] == 0


@pytest.mark.parametrize(
    "times",
    [
        np.array([NOW_MS, NOW_MS + 1]),
        np.array([NOW_MS, NOW_MS + 1], "datetime64[ms]"),
        np.array([NOW_MS * 1_000_000, (NOW_MS + 1) * 1_000_000], "datetime64[ns]"),
        pd.Series(pd.to_datetime([NOW_MS, NOW_MS + 1], unit="ms", utc=True)),
        pd.Series(pd.to_datetime([NOW_MS, NOW_MS + 1], unit="ms")),
        pa.array([NOW_MS, NOW_MS + 1], pa.timestamp("ms")),
        pa.chunked_array([[NOW_MS], [NOW_MS + 1]], pa.timestamp("ms", "UTC")),
        pa.array([NOW_MS, NOW_MS + 1]),
        range(NOW_MS, NOW_MS + 2),
        [datetime.fromtimestamp(NOW_MS // 1000, UTC) + timedelta(milliseconds=NOW_MS % 1000 + at) for at in range(2)],
    ],
)
@pytest.mark.parametrize("column", [list, np.array, pa.array, pd.Series, lambda ids: pa.chunked_array([ids])])
def test_ids_and_event_times_may_be_columns_of_any_library(times: Any, column: Callable[[list[str]], Any]) -> None:
    log = MemoryOutlet()
    with Emitter("orders", "src", outlet=lambda: log, first=True) as emitter:
        assert emitter.observe_all("received", column(["a", "b"]), times, observed_at=NOW_MS + 10) == 2
    blocks = [decode_block(value) for value in log.values(BEACONS)]
    assert all(block.message_ids for block in blocks)
    lags = {int(id_hash): lag for block in blocks for id_hash, lag in zip(block.id_hash, block.lag_ms, strict=True)}
    assert lags == {hash_id("a"): pytest.approx(10), hash_id("b"): pytest.approx(9)}


def test_a_column_is_the_callers_to_change_afterwards() -> None:
    log, times, ids = MemoryOutlet(), np.array([NOW_MS]), ["a"]
    with Emitter("orders", "mid", outlet=lambda: log) as emitter:
        emitter.observe_all("received", ids, times)
        times[0], ids[0] = 0, "b"
    assert sent(log) == Counter({("mid.in", NOW_MS // 60_000 * 60, None, None, hash_id("a")): 1})


def test_columns_of_different_lengths_are_an_error_that_is_counted() -> None:
    log = MemoryOutlet()
    with Emitter("orders", "mid", outlet=lambda: log) as emitter:
        assert emitter.observe_all("received", ["a", "b"], [NOW_MS]) == 0
        assert emitter.stats().errors == 1


def test_columns_for_which_there_is_no_room_are_dropped_and_counted_by_window() -> None:
    log = MemoryOutlet(down=True)
    emitter = Emitter("orders", "mid", outlet=lambda: log, max_buffered=10)
    assert emitter.observe_all("received", [str(at) for at in range(8)], np.full(8, NOW_MS)) == 8
    assert emitter.observe_all("received", ["x", "y", "z"], [NOW_MS, NOW_MS, NOW_MS - 60_000]) == 0
    assert emitter.stats().buffered == 8
    log.down = False
    assert emitter.close()
    window_s = NOW_MS // 60_000 * 60
    assert dropped(log) == Counter({("mid.in", window_s): 2, ("mid.in", window_s - 60): 1})
    assert sum(sent(log).values()) == 8


def test_a_closed_emitter_refuses_columns() -> None:
    log = MemoryOutlet()
    emitter = Emitter("orders", "mid", outlet=lambda: log)
    emitter.close()
    assert emitter.observe_all("received", ["a"], [NOW_MS]) == 0
    assert emitter.stats().refused == 1
