"""Records as Spark's tasks have them, in Arrow's columns, give the ids that records of Kafka's own client give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.extraction import Extraction, Extractor, Records
from lagloss_server.model.expressions import IdExpression, TimeExpression
from taps.records import SpanRecords
from taps.spark_task import span_records

AT_MS = 1_764_061_200_123
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
texts = st.none() | st.sampled_from([b"a", b"", b"orders/0/7", b"orders", b"3", b"\0\0\0\3", b"\xff"])
values = st.none() | st.sampled_from([b'{"a": "x", "b": 1}', b'{"a": ""}', b"{", b'{"a": 1.5, "b": 2}'])
rows = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**62), texts, values, texts, texts), max_size=6)


def by_client(records: list[Any]) -> Records:
    partitions, offsets, keys, bodies, origins, numbers = zip(*records, strict=True) if records else [()] * 6
    headers = [[("o", origin), ("n", number)] for origin, number in zip(origins, numbers, strict=True)]
    places = np.array(partitions, np.int64), np.array(offsets, np.int64)
    return Records(np.full(len(records), AT_MS, np.int64), list(keys), list(bodies), headers, *places)


def by_spark(records: list[Any]) -> SpanRecords:
    partitions, offsets, keys, bodies, origins, numbers = zip(*records, strict=True) if records else [()] * 6
    headers = [
        [{"key": "o", "value": origin}, {"key": "n", "value": number}]
        for origin, number in zip(origins, numbers, strict=True)
    ]
    return span_records(
        pa.RecordBatch.from_pydict(
            {
                "partition": pa.array(partitions, pa.int32()),
                "offset": pa.array(offsets, pa.int64()),
                "timestamp_ms": pa.array([AT_MS] * len(records), pa.int64()),
                "timestampType": pa.array([0] * len(records), pa.int32()),
                "key": pa.array(keys, pa.binary()),
                "value": pa.array(bodies, pa.binary()),
                "headers": pa.array(headers, HEADERS),
            }
        )
    )


@pytest.mark.parametrize(
    "written",
    [
        "partition-offset", "partition-offset(header:o)", "partition-offset(header:o, header:n, $.b)",
        "hash($.a, $.b)", "hash(key, header:o)", "hash(key)",
    ],
)  # fmt: skip
@given(rows, st.integers(0, 3))
def test_both_give_the_same_ids_and_reasons(written: str, records: list[Any], skipped: int) -> None:
    expression = IdExpression.parse(written)
    origins = ("orders",) if expression.form == "position" else ()
    extractor = Extractor(Extraction(expression, TimeExpression.parse("timestamp"), origins=origins))
    spark = by_spark(records)
    expected, observed = (extractor.extract(each) for each in (by_client(records), spark.records))
    assert (observed.ids, observed.rows.tolist()) == (expected.ids, expected.rows.tolist())
    assert observed.unreadable == expected.unreadable
    if written == "partition-offset":
        assert expected.ids == [f"orders/{row[0]}/{row[1]}".encode() for row in records]
    cut = spark.cut(min(skipped, len(records)), len(records))
    assert extractor.extract(cut.records).ids == extractor.extract(by_client(records[skipped:])).ids
