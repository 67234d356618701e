"""Batches and Spark tasks: what they tell of many messages at once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lagloss import Emitter, MemoryOutlet
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.identity import Identity
from lagloss.sink import batch
from lagloss.spark import SparkObservation, observe_partition
from lagloss.wire.format import decode_block, decode_report, hash_id
from lagloss.wire.traces import find_traces

NOW_MS = time.time_ns() // 1_000_000


def counts(log: MemoryOutlet) -> Counter[str]:
    blocks = [decode_block(value) for value in log.values(BEACONS)]
    return sum((Counter({block.checkpoint: block.count}) for block in blocks), Counter())


TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def traced(log: MemoryOutlet) -> set[int]:
    """The ids whose traces were sent."""
    blocks = [decode_block(value) for value in log.values(BEACONS)]
    return {int(one.id_hash[row]) for one in blocks for row in find_traces(one.traces or b"", np.arange(one.count))}


def test_all_messages_of_a_batch_are_out_at_its_end_and_in_hand_until_then() -> None:
    log = MemoryOutlet()
    with Emitter("orders", "warehouse", outlet=lambda: log) as emitter:
        emitter.received("a", NOW_MS)
        with batch(emitter, [("a", NOW_MS)], to="mail") as messages:
            messages.received("b", NOW_MS)
            assert emitter._beacons.in_flight_since() is not None
        assert emitter._beacons.in_flight_since() is None
    assert counts(log) == {"warehouse.in": 2, "warehouse.out:mail": 2}


def test_messages_of_a_replay_leave_a_batch_as_part_of_it() -> None:
    log = MemoryOutlet()
    with Emitter("orders", "warehouse", outlet=lambda: log) as emitter:
        again = Identity("a", NOW_MS, "again")
        again.report(emitter.received)
        with batch(emitter, [again]) as messages:
            messages.received("b", NOW_MS, "again")
            messages.received("c", NOW_MS)
    replays = Counter[tuple[str, str | None]]()
    for block in map(decode_block, log.values(BEACONS)):
        replays[block.checkpoint, block.replay] += block.count
    assert replays == {(at, why): n for at in ("warehouse.in", "warehouse.out") for why, n in (("again", 2), (None, 1))}


def test_a_batch_takes_in_with_the_trace_of_each_message() -> None:
    log = MemoryOutlet()
    with Emitter("orders", "shop", first=True, outlet=lambda: log) as emitter, batch(emitter) as messages:
        messages.received(*Identity("a", NOW_MS, None, TRACEPARENT))
        messages.received("b", NOW_MS)
    assert counts(log) == {"shop.in": 2, "shop.out": 2}
    assert traced(log) == {hash_id("a")}


def test_none_of_a_batch_that_raises_is_out() -> None:
    log = MemoryOutlet()
    with Emitter("orders", "warehouse", outlet=lambda: log) as emitter:
        with suppress(OSError), batch(emitter) as messages:
            messages.received("a", NOW_MS)
            raise OSError("refused")
        assert emitter._beacons.in_flight_since() is None
    assert counts(log) == {"warehouse.in": 1}


@pytest.mark.parametrize("as_given", [int, lambda ms: datetime.fromtimestamp(ms / 1000, UTC)])
def test_a_spark_task_passes_its_rows_on_unchanged_and_closes_its_emitter(as_given: Callable[[int], Any]) -> None:
    log, when = MemoryOutlet(), as_given(time.time_ns() // 1_000_000)
    rows = [
        pa.RecordBatch.from_pydict({"id": ["a", None, "b"], "time": [when] * 3}),
        pa.RecordBatch.from_pydict({"id": ["c"], "time": [when]}),
    ]
    observation = SparkObservation(
        "orders", "load", "filtered", "id", "time", None, reason="old", options={"outlet": lambda: log}
    )
    assert list(observe_partition(observation, rows)) == rows
    assert counts(log) == {"load.filtered": 3}
    assert decode_report(log.values(REPORTS)[-1]).closed
    lags = [lag for value in log.values(BEACONS) for lag in decode_block(value).lag_ms.tolist()]
    assert max(map(abs, lags)) < 60_000


def test_a_spark_task_counts_rows_without_id_or_time_and_sends_the_others_on_their_way() -> None:
    log, skipped = MemoryOutlet(), Counter[str]()
    rows = [pa.RecordBatch.from_pydict({"id": ["a", None, "b"], "time": [NOW_MS, NOW_MS, None]})]
    counted = SimpleNamespace(add=lambda number: skipped.update(rows=number))
    observation = SparkObservation(
        "orders", "load", "sent", "id", "time", None, "ga", skipped=counted, options={"outlet": lambda: log}
    )
    assert list(observe_partition(observation, rows)) == rows
    assert counts(log) == {"load.out:ga": 1}
    assert skipped == {"rows": 2}


def test_a_spark_task_that_is_stopped_in_between_closes_its_emitter() -> None:
    log = MemoryOutlet()
    rows = [pa.RecordBatch.from_pydict({"id": ["a"], "time": [NOW_MS]})] * 2
    task = observe_partition(
        SparkObservation("orders", "load", "sent", "id", "time", None, options={"outlet": lambda: log}), rows
    )
    next(task)
    task.close()
    assert counts(log) == {"load.out": 1}
    assert decode_report(log.values(REPORTS)[-1]).closed


def test_importing_lagloss_imports_neither_fastapi_nor_pyspark() -> None:
    code = (
        "import sys, lagloss, lagloss.kafka, lagloss.asgi; print({'fastapi', 'starlette', 'pyspark'} & {*sys.modules})"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_beacons_over_http_without_their_extra_say_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['httpx2'] = None; from lagloss import Emitter; Emitter('a', 'b', collector='http://c')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "sending beacons over HTTP needs httpx2: run `pip install 'lagloss[http]'`" in done.stderr


def test_a_spark_task_of_the_first_node_sends_the_traces_of_its_column() -> None:
    log, now_ms = MemoryOutlet(), time.time_ns() // 1_000_000
    columns = {"id": ["a", "b", None], "time": [now_ms] * 3, "parent": [TRACEPARENT, None, TRACEPARENT]}
    rows = [pa.RecordBatch.from_pydict(columns)]
    options = {"outlet": lambda: log, "first": True}
    observation = SparkObservation(
        "orders", "load", "received", "id", "time", None, options=options, trace_column="parent"
    )
    assert list(observe_partition(observation, rows)) == rows
    assert counts(log) == {"load.in": 2}
    assert traced(log) == {hash_id("a")}


@pytest.mark.parametrize("payloads", [["123456789", None, ""], [b"123456789", None, b""]])
def test_a_spark_task_sends_checksums_of_its_column(payloads: list[Any]) -> None:
    log, now_ms = MemoryOutlet(), time.time_ns() // 1_000_000
    columns = {"id": ["a", "b", "c"], "time": [now_ms] * 3, "value": payloads}
    rows = [pa.RecordBatch.from_pydict(columns)]
    options = {"outlet": lambda: log}
    observation = SparkObservation(
        "orders", "load", "sent", "id", "time", None, options=options, payload_column="value"
    )
    assert list(observe_partition(observation, rows)) == rows
    assert counts(log) == {"load.out": 3}
    crcs = [
        block.payload_crc for value in log.values(BEACONS) if (block := decode_block(value)).payload_crc is not None
    ]
    assert sorted(crc for some in crcs for crc in some.tolist()) == [0, 0xE3069283]


def replays(log: MemoryOutlet) -> dict[tuple[str, str | None], set[int]]:
    """Return the hashes of ids by checkpoint and replay."""
    seen: dict[tuple[str, str | None], set[int]] = {}
    for block in map(decode_block, log.values(BEACONS)):
        seen.setdefault((block.checkpoint, block.replay), set()).update(block.id_hash.tolist())
    return seen


@pytest.mark.parametrize("payload_column", [None, "id"])
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()], ids=lambda kind: str(kind)
)
def test_a_spark_task_names_the_replay_of_each_row(kind: pa.DataType, payload_column: str | None) -> None:
    log, names = MemoryOutlet(), [None, "june", "", "june", "again", "x" * 501, None]
    texts = [None if name is None else name.encode() for name in names]
    columns = {"id": list("abcdefg"), "time": [NOW_MS] * 7, "replay": pa.array(texts, pa.binary()).cast(kind)}
    rows = [pa.RecordBatch.from_pydict(columns)]
    observation = SparkObservation(
        "orders", "load", "sent", "id", "time", None, options={"outlet": lambda: log}, payload_column=payload_column,
        replay_column="replay",
    )  # fmt: skip
    assert list(observe_partition(observation, [*rows, rows[0].slice(7)])) == [*rows, rows[0].slice(7)]
    assert replays(log) == {
        ("load.out", replay): {hash_id(name) for name in some}
        for replay, some in {None: "ag", "june": "bd", "again": "e", "unnamed": "cf"}.items()
    }


def test_text_of_spark_that_is_not_utf8_names_a_replay_and_breaks_no_task() -> None:
    log = MemoryOutlet()
    broken = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    rows = [pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array([NOW_MS]), broken], ["id", "time", "replay"])]
    observation = SparkObservation(
        "orders", "load", "received", "id", "time", None, options={"outlet": lambda: log}, replay_column="replay"
    )
    list(observe_partition(observation, rows))
    assert replays(log) == {("load.in", "\ufffd"): {hash_id("a")}}


def test_all_rows_of_a_batch_that_is_run_again_are_of_its_replay() -> None:
    log = MemoryOutlet()
    rows = [pa.RecordBatch.from_pydict({"id": ["a", "b"], "time": [NOW_MS] * 2})]
    observation = SparkObservation(
        "orders", "load", "dead_lettered", "id", "time", None, reason="old", options={"outlet": lambda: log},
        replay="rerun",
    )  # fmt: skip
    list(observe_partition(observation, rows))
    assert replays(log) == {("load.dead", "rerun"): {hash_id("a"), hash_id("b")}}
