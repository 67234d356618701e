"""A PySpark job as a node: executors send the beacons of the DataFrame rows that they compute.

orders = emit(orders, "orders", "load", "received", id_column="id", time_column="time")
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, TimestampType

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.checksums import Checksums, Payload
from lagloss.identity import replay_in
from lagloss.sdk.emitter import BeaconKind, Emitter

ObserveBatch = Callable[[pa.RecordBatch, pa.Array, pa.Array], None]
"""Sends the beacons of a batch, whose ids and event times (epoch ms) are known."""
CLOSE_S: Final = 10.0
"""Longest wait for the broker at the end of a task."""


@dataclass(frozen=True, slots=True)
class SparkObservation:
    """Settings of a task that sends the beacons of its rows."""

    pipeline: str
    node: str
    kind: BeaconKind
    id_column: str
    time_column: str
    bootstrap: Cluster | None
    to: str | None = None
    reason: str = ""
    skipped: Accumulator[int] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    trace_column: str | None = None
    payload_column: str | None = None
    replay: str | None = None
    replay_column: str | None = None


def emit(
    df: DataFrame,
    pipeline: str,
    node: str,
    kind: BeaconKind,
    *,
    id_column: str,
    time_column: str,
    to: str | None = None,
    reason: str = "",
    bootstrap: Cluster | None = None,
    skipped: Accumulator[int] | None = None,
    trace_column: str | None = None,
    payload_column: str | None = None,
    replay: str | None = None,
    replay_column: str | None = None,
    **options: Any,
) -> DataFrame:
    """Return `df` with a side effect: each row sends a beacon when it is computed, and passes through unchanged.

    Lazy, as all of Spark: rows that are computed twice (by two actions on a DataFrame that is not persisted, or by a
    task that is retried) send their beacons twice, which makes duplicates, never holes. Each task makes its own emitter
    and closes it at its end.

    Args:
        df: any DataFrame, also that of a `foreachBatch`.
        pipeline: the pipeline's name.
        node: this node's name.
        kind: "received", "sent", "filtered" or "dead_lettered", as the methods of an `Emitter`.
        id_column: message ids, text.
        time_column: event times: a timestamp, or epoch ms in a long.
        to: for `"sent"`: the next node, if there are several.
        reason: for `"filtered"` and `"dead_lettered"`.
        bootstrap: Kafka's HOST:PORT,... as executors reach it; by default LAGLOSS_KAFKA_BOOTSTRAP of the driver.
        skipped: counts rows whose id or time is null; they send no beacon.
        trace_column: for `"received"` at the first node: texts as W3C's header `traceparent`, null where there is none.
        payload_column: for `"received"` and `"sent"`: bytes or text as they came in or are sent on, whose CRC-32C is
            sent along. Needs the extra `checksum` where executors run.
        replay: name of the replay that all rows are part of, as a batch that is run again.
        replay_column: instead, the name of each row's: text, or bytes as in the header `lagloss-replay`; null for live
            rows.
        options: of the `Emitter`: `first=True` at the pipeline's first node, `kafka_config`.

    Raises:
        ValueError: for columns of other types, an unknown kind, a `trace_column` with another kind than `"received"`,
            a `payload_column` with `"filtered"` or `"dead_lettered"`, and both `replay` and `replay_column`.
    """
    if kind not in get_args(BeaconKind):
        raise ValueError(f"expected kind to be one of {', '.join(get_args(BeaconKind))}, found {kind!r}")
    _expect(df, id_column, (StringType,), "text")
    _expect(df, time_column, (TimestampType, LongType), "a timestamp or a long with epoch ms")
    if trace_column is not None:
        if kind != "received":
            raise ValueError(f'expected trace_column only with kind "received", found kind {kind!r}')
        _expect(df, trace_column, (StringType,), "text")
    if payload_column is not None:
        if kind not in ("received", "sent"):
            raise ValueError(f'expected payload_column only with kind "received" or "sent", found kind {kind!r}')
        _expect(df, payload_column, (BinaryType, StringType), "binary or text")
    if replay_column is not None:
        if replay is not None:
            raise ValueError("expected replay, for all rows, or replay_column, for each row, found both")
        _expect(df, replay_column, (BinaryType, StringType), "text or binary")
    address = KafkaConnection.of(bootstrap) if bootstrap else KafkaConnection.of_environment()
    observation = SparkObservation(
        pipeline,
        node,
        kind,
        id_column,
        time_column,
        address,
        to,
        reason,
        skipped,
        options,
        trace_column,
        payload_column,
        replay,
        replay_column,
    )
    return df.mapInArrow(partial(observe_partition, observation), df.schema)


def emit_now(df: DataFrame, pipeline: str, node: str, kind: BeaconKind, **options: Any) -> int:
    """Send the beacons of these rows now, for example after a sink has acknowledged them; return the number of rows.

    Takes the arguments of `emit`. Persist `df` first, or its rows are computed again, and so are the beacons of an
    earlier `emit`.
    """
    return emit(df, pipeline, node, kind, **options).count()


def _expect(df: DataFrame, column: str, types: tuple[type[DataType], ...], what: str) -> None:
    fields = [field for field in df.schema.fields if field.name == column]
    if [field for field in fields if isinstance(field.dataType, types)]:
        return
    kind = fields[0].dataType.simpleString() if fields else "no such column"
    raise ValueError(f"expected a column {column} with {what}, found {kind}")


def observe_partition(
    observation: SparkObservation, batches: Iterable[pa.RecordBatch]
) -> Generator[pa.RecordBatch, None, None]:
    """Send the beacons of one task's batches; yield each batch, unchanged, after its beacons are with the emitter."""
    emitter = Emitter(observation.pipeline, observation.node, observation.bootstrap, **observation.options)
    is_plain = observation.trace_column is None and observation.payload_column is None
    observe = (_columns_observer if is_plain else _rows_observer)(emitter, observation)
    try:
        for batch in batches:
            ids, times = batch.column(observation.id_column), batch.column(observation.time_column)
            is_known = pc.and_(pc.is_valid(ids), pc.is_valid(times))
            known_rows = batch.filter(is_known)
            observe(
                known_rows,
                known_rows.column(observation.id_column),
                _epoch_ms(known_rows.column(observation.time_column)),
            )
            skipped = len(batch) - (pc.sum(is_known).as_py() or 0)
            if skipped and observation.skipped is not None:
                observation.skipped.add(skipped)
            yield batch
    finally:
        emitter.close(CLOSE_S)


def _columns_observer(emitter: Emitter, observation: SparkObservation) -> ObserveBatch:
    reason = observation.reason if observation.kind in ("filtered", "dead_lettered") else None
    to = observation.to if observation.kind == "sent" else None

    def observe(batch: pa.RecordBatch, ids: pa.Array, times: pa.Array) -> None:
        if observation.replay_column is None:
            emitter.observe_all(observation.kind, ids, times, to=to, reason=reason, replay=observation.replay)
            return
        for replay, rows in _by_name(batch.column(observation.replay_column)):
            some = ids.take(rows), times.take(rows)
            emitter.observe_all(observation.kind, *some, to=to, reason=reason, replay=replay)

    return observe


def _by_name(names: pa.Array) -> Iterator[tuple[str | None, pa.Array]]:
    """Yield the replay that each name of a column is, None for its nulls, with its rows, ascending."""
    encoded = names.cast(pa.binary()).dictionary_encode()  # Spark's text can hold bytes that are not UTF-8
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    ordered = np.argsort(codes, kind="stable")
    for rows in np.split(ordered, np.flatnonzero(np.diff(codes[ordered])) + 1):
        if rows.size:
            code = int(codes[rows[0]])
            yield None if code < 0 else replay_in(encoded.dictionary[code].as_py()), pa.array(rows)


def _rows_observer(emitter: Emitter, observation: SparkObservation) -> ObserveBatch:
    """Send beacons with traces or checksums, which each row has of its own."""
    observe_one, payload_of = _observer(emitter, observation), _payloads(observation.payload_column)

    def observe(batch: pa.RecordBatch, ids: pa.Array, times: pa.Array) -> None:
        traces, payloads, replays = (
            batch.column(name) if name else pa.nulls(len(batch))
            for name in (observation.trace_column, observation.payload_column, observation.replay_column)
        )
        columns = (ids, times, traces, payloads, replays.cast(pa.binary()))
        for message_id, event_time, traceparent, payload, name in zip(*(c.to_pylist() for c in columns), strict=True):
            replay = observation.replay if name is None else replay_in(name)
            more: dict[str, Any] = {"replay": replay} if payload is None else {"replay": replay, **payload_of(payload)}
            if traceparent is not None:
                more["traceparent"] = traceparent
            observe_one(message_id, event_time, **more)

    return observe


def _payloads(column: str | None) -> Callable[[str | bytes | None], Payload]:
    return Checksums().of if column is not None else lambda _: Payload()


def _observer(emitter: Emitter, observation: SparkObservation) -> Callable[..., bool]:
    """Return what sends the beacon of a row with a trace or a checksum: kinds without either are sent as columns."""
    return emitter.received if observation.kind == "received" else partial(emitter.sent, to=observation.to)


def _epoch_ms(times: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(times.type):
        times = times.cast(pa.timestamp("ms", tz="UTC"), safe=False)
    return times.cast(pa.int64())
