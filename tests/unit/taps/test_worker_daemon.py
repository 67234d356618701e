"""Warming up: afterwards nothing is compiled, whatever the records."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pyarrow as pa
from numba.core.registry import CPUDispatcher

from lagloss_server.extraction import Extractor, Records
from lagloss_server.net.schema_registry import RegisteredSchema
from taps.worker_daemon import warm_up
from tests.unit.lagloss_server.extraction.test_avro import ORDER, order, sized, zigzag
from tests.unit.lagloss_server.extraction.test_extractor import AVRO, FakeRegistry, document, extraction, records, wired
from tests.unit.lagloss_server.extraction.test_protobuf import PROTO


def compilations() -> dict[str, int]:
    """How many kinds of arguments each loop of the extraction is compiled for, where Python calls it."""
    modules = [module for name, module in sys.modules.items() if name.startswith("lagloss_server.extraction")]
    loops = {
        f"{module.__name__}.{name}": loop
        for module in modules
        for name, loop in vars(module).items()
        if isinstance(loop, CPUDispatcher)
    }
    return {name: len(loop.signatures) for name, loop in loops.items()}


def test_nothing_is_compiled_after_warming_up() -> None:
    warm_up()
    before = compilations()
    assert sum(before.values()) >= 4
    registry = FakeRegistry({1: RegisteredSchema("AVRO", AVRO)})
    values: list[Any] = [
        document(id="a", x='q"'), None, wired(1, sized(b"a") + zigzag(1)), b"text",
        b'{"id":"a\\n","at":"2026-11-25T09:00Z"}',
        json.dumps({"id": 2**70, "at": 1.5}).encode(), b"\xff",
    ]  # fmt: skip
    headers = [[("h", b"a")]] * len(values)
    times = np.arange(len(values))
    times.flags.writeable = False
    keys = [b"k", b"\xff", None, b"", b"x", b"y", b"{}"]
    for column in (values, pa.array(values, pa.binary()), pa.array(values, pa.large_binary())):
        for id_, at in (("$.id", "$.at"), (["key", "header:h", "$.id"], "timestamp"), ("key:$", "header:h in s")):
            spec = extraction(id_, at, where='not ($.id == 17.5 or header:h == "x") and exists $.at')
            Extractor(spec, registry).extract(Records(times, keys, column, headers))
    orders = [order(b"\0"), b"", None]
    for id_ in ("$.id", "$.state", "$.tags.a"):
        spec = extraction(id_, "timestamp", format="avro", schema=json.dumps(ORDER))
        Extractor(spec).extract(Records(times[:3], keys[:3], orders, headers[:3]))
    spec = extraction("$.order_id", "$.created_at", format="protobuf", schema=PROTO, message="Order")
    Extractor(spec).extract(records([b"\x0a\1a", b"", b"\0", None]))
    assert compilations() == before
