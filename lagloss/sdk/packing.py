"""Packing: one pass that reads, groups and packs buffered beacons into blocks, pure and free of Kafka.

A buffered beacon is five consecutive values: place, message id, event time, clock (epoch ns), extras. Callers append no
more than that; all costly work is done here, by the flushing thread, in numpy if possible.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import xxhash

from lagloss.wire.format import (
    MAX_BLOCK_BEACONS,
    MAX_ID_BYTES,
    MAX_TIME_MS,
    RETENTION_MS,
    SAMPLE_ALL,
    U64,
    WINDOW_S,
    BeaconBlock,
    block_key,
    encode_block,
    pack_ids,
    partitions_of,
    replay_name,
    window_start_of,
)
from lagloss.wire.positions import pack_positions
from lagloss.wire.sketch import bin_keys
from lagloss.wire.traces import CONTEXT_BYTES, U8, pack_traces, parse_traceparent

STRIDE: Final = 5
"""Values per beacon in the buffer."""
WINDOW_MS: Final = WINDOW_S * 1000
KEPT_S: Final = RETENTION_MS // 1000
"""Age up to which windows are accepted, in seconds: the retention of the topics."""
AHEAD_S: Final = 86_400
"""Largest start of a window that is accepted, in seconds ahead of the clock. Wide, since a clock may step by hours; it
bounds memory."""
SAME_CLOCK_MS: Final = 1_000
"""A time that a caller supplies may be of the clock here if it is no further from it: rule 4 allows for that much."""
MAX_PAYLOAD_BYTES: Final = 1 << 43
"""Bytes of one message or object: more than any store takes."""
MAX_REASONS: Final = 64
"""Distinct reasons per emitter; each makes blocks of its own. Further ones are replaced by `OTHER_REASON`."""
OTHER_REASON: Final = "other"
MAX_REASON_CHARS: Final = 100
MAX_BLOCK_ID_BYTES: Final = 512 * 1024
"""Bytes of ids in one block, so that a record stays below the 1 MB that brokers and clients take by default."""

EventTime = int | float | datetime
"""Epoch milliseconds, or a datetime with a zone."""


class Extras(NamedTuple):
    """Optional values that few beacons carry. `observed_at` in epoch ms, None for the clock."""

    observed_at: EventTime | None = None
    replay: str | None = None
    reason: str | None = None
    payload_crc: int | None = None
    payload_bytes: int = 0
    traceparent: str | None = None
    out_of_order: bool = False


RawExtras = tuple[EventTime | None, str | None, str | None, int | None, int, str | None, bool]
"""`Extras` as callers append them: a plain tuple costs them a quarter."""
NO_EXTRAS: Final[RawExtras] = (None, None, None, None, 0, None, False)


@dataclass(frozen=True, slots=True)
class Columns:
    """Beacons of one checkpoint that were observed at once, as columns.

    `event_ms`: epoch ms, NaN where a caller's time is none.
    """

    place: str
    ids: list[Any]
    event_ms: npt.NDArray[np.float64]
    clock_ns: int
    extras: RawExtras | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, start: int, end: int) -> Columns:
        """Return the rows from `start` to before `end`."""
        return Columns(self.place, self.ids[start:end], self.event_ms[start:end], self.clock_ns, self.extras)

    def at(self, rows: npt.NDArray[np.bool_]) -> Columns:
        """Return the rows where `rows` is True."""
        ids = [self.ids[row] for row in np.flatnonzero(rows).tolist()]
        return Columns(self.place, ids, self.event_ms[rows], self.clock_ns, self.extras)

    def flat(self) -> list[Any]:
        """Return the beacons as a buffer holds single ones, `STRIDE` values each."""
        rows = zip(self.ids, self.event_ms.tolist(), strict=True)
        return [value for row in rows for value in (self.place, *row, self.clock_ns, self.extras)]


class TallyKey(NamedTuple):
    """A tally's key within its emitter. `place` is the checkpoint without its node: in, out, out:M, filtered, dead."""

    place: str
    replay: str | None
    window_start: int


class Kind(NamedTuple):
    """The properties that all beacons of a block share, apart from window and partition."""

    place: str
    replay: str | None
    reason: str | None
    has_crc: bool


def epoch_ms(when: object) -> float:
    """Convert a caller's time to epoch milliseconds.

    Raises:
        ValueError: for anything but a number within bounds or a datetime with a zone (one without would be a guess).
    """
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError("expected a datetime with a time zone")
        return when.timestamp() * 1000
    if isinstance(when, (int, float, np.integer, np.floating)) and not isinstance(when, bool):
        value = float(when)
        if abs(value) <= MAX_TIME_MS:
            return value
    raise ValueError(f"expected epoch milliseconds or a datetime, found {type(when).__name__}")


def list_of(column: Iterable[Any]) -> list[Any]:
    """Return a caller's column as a list of its own, with Python's types where it is an array."""
    for method in ("tolist", "to_pylist"):  # numpy's and pandas', Arrow's
        if hasattr(column, method):
            values: list[Any] = getattr(column, method)()
            return values
    return list(column)


def epoch_ms_column(times: Iterable[Any] | npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Convert a caller's column of times to epoch milliseconds, in an array of its own; NaN where one cannot be.

    Args:
        times: an array of numpy, pandas or Arrow that holds numbers (epoch ms) or datetimes (UTC unless they name
            a zone), or an iterable of what `epoch_ms` takes.
    """
    column = np.asarray(times) if hasattr(times, "__array__") else np.array(list(times), object)
    if column.dtype.kind == "M":
        micros = column.astype("datetime64[us]")
        return np.where(np.isnat(micros), np.nan, micros.astype(np.int64) / 1000)
    if column.dtype.kind in "iuf":
        return np.array(column, np.float64)
    if set(map(type, column.tolist())) <= {int, float}:
        with contextlib.suppress(OverflowError):
            return column.astype(np.float64)
    return np.array([_epoch_ms_or_nan(time) for time in column.tolist()], np.float64)


def _epoch_ms_or_nan(when: object) -> float:
    try:
        return epoch_ms(when)
    except (ValueError, OverflowError):
        return float("nan")


def is_placeable(event_ms: float, now_ms: float) -> bool:
    """Return True if an account takes the window of this event time. Both in epoch ms."""
    return now_ms - KEPT_S * 1000 <= event_ms <= now_ms + AHEAD_S * 1000


def are_placeable(event_ms: npt.NDArray[np.float64], now_ms: float) -> npt.NDArray[np.bool_]:
    """Return `is_placeable` of a column; False for NaN."""
    return (event_ms >= now_ms - KEPT_S * 1000) & (event_ms <= now_ms + AHEAD_S * 1000)


_NONE_OUT_OF_ORDER: Final = np.empty(0, np.bool_)
_NONE_SUPPLIED: Final = np.empty(0, np.float64)
_NO_TRACES: Final[U8] = np.empty((0, CONTEXT_BYTES), np.uint8)


@dataclass(slots=True)
class Observed:
    """Columns of beacons, row by row; `raw_ids` is empty unless names are kept. `traces`: shape (beacons, 24), zeros
    where a beacon has none; empty if no beacon has one. `out_of_order`: empty if no beacon is. `supplied_ms`: when a
    beacon was handed over whose time a caller supplied (epoch ms; 0 for the clock's); empty if none was."""

    code: npt.NDArray[np.int64]
    id_hash: U64
    event_ms: npt.NDArray[np.float64]
    lag_ms: npt.NDArray[np.float64]
    crc: npt.NDArray[np.uint32]
    payload_bytes: npt.NDArray[np.int64]
    raw_ids: list[bytes]
    traces: U8
    out_of_order: npt.NDArray[np.bool_]
    supplied_ms: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return int(self.code.size)

    def at(self, rows: npt.NDArray[np.intp]) -> Observed:
        """Return these rows alone."""
        return Observed(
            self.code[rows],
            self.id_hash[rows],
            self.event_ms[rows],
            self.lag_ms[rows],
            self.crc[rows],
            self.payload_bytes[rows],
            [self.raw_ids[row] for row in rows.tolist()] if self.raw_ids else [],
            self.traces[rows] if self.traces.size else self.traces,
            self.out_of_order[rows] if self.out_of_order.size else self.out_of_order,
            self.supplied_ms[rows] if self.supplied_ms.size else self.supplied_ms,
        )

    @classmethod
    def joined(cls, parts: Sequence[Observed]) -> Observed:
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.code for part in parts]),
            np.concatenate([part.id_hash for part in parts]),
            np.concatenate([part.event_ms for part in parts]),
            np.concatenate([part.lag_ms for part in parts]),
            np.concatenate([part.crc for part in parts]),
            np.concatenate([part.payload_bytes for part in parts]),
            [raw for part in parts for raw in part.raw_ids],
            _joined([part.traces for part in parts], parts),
            _joined([part.out_of_order for part in parts], parts),
            _joined([part.supplied_ms for part in parts], parts),
        )


def _joined(columns: Sequence[npt.NDArray[Any]], parts: Sequence[Observed]) -> npt.NDArray[Any]:
    """Return a column that may be empty of all parts, zeros where a part has none."""
    if not any(column.size for column in columns):
        return columns[0]
    return np.concatenate(
        [
            column if column.size else np.zeros((len(part), *column.shape[1:]), column.dtype)
            for column, part in zip(columns, parts, strict=True)
        ]
    )


@dataclass(slots=True)
class RefusedBeacons:
    """Beacons that make no block: `dropped` by the tally they belong to, `unplaced` for those of no window."""

    dropped: dict[TallyKey, int] = field(default_factory=dict)
    unplaced: int = 0

    def drop(self, place: str, replay: str | None, event_ms: float, beacons: int = 1) -> None:
        key = TallyKey(place, replay, window_start_of(event_ms))
        self.dropped[key] = self.dropped.get(key, 0) + beacons


class BeaconReader:
    """Reads buffered beacons into columns; numbers the kinds it has met. `times_are_own`: False if the times that come
    with beacons are of clocks that no report measures."""

    def __init__(self, *, keep_ids: bool, keep_traces: bool = False, times_are_own: bool = True) -> None:
        self.kinds: list[Kind] = []
        self._codes: dict[Kind, int] = {}
        self._plain: dict[str, int] = {}
        self._unlabelled: dict[tuple[str, bool], int] = {}
        """Codes of beacons with neither replay nor reason, by place and presence of a checksum."""
        self._reasons: set[str | None] = set()
        self._keep_ids = keep_ids
        self._keep_traces = keep_traces
        self._same_clock_ms = math.inf if times_are_own else SAME_CLOCK_MS

    def read(self, flat: Sequence[Any], now_ms: float, refused: RefusedBeacons) -> Observed | None:
        """Return the beacons of `flat` in their order, None if none is good; count those that cannot be sent in
        `refused`.

        A beacon whose window is older than the topics' retention, or further ahead than any clock error, is unplaced.
        """
        oldest_ms, newest_ms = now_ms - KEPT_S * 1000, now_ms + AHEAD_S * 1000
        observed = self._columns(flat)
        if observed is None or not are_placeable(observed.event_ms, now_ms).all():
            clean = list(self._sifted(flat, oldest_ms, newest_ms, refused))
            observed = self._columns(clean)
            if observed is None and clean:
                raise AssertionError("valid beacons must be readable")
        return observed

    def read_columns(self, columns: Columns, now_ms: float, refused: RefusedBeacons) -> Observed | None:
        """Return the beacons of `columns`, as `read` does."""
        raws = _encoded(columns.ids) if are_placeable(columns.event_ms, now_ms).all() else None
        code, observed_ms = self._code_of_columns(columns)
        if raws is None or code is None:
            return self.read(columns.flat(), now_ms, refused)  # which sifts them
        n = len(columns)
        clock_ns = np.full(n, columns.clock_ns, np.int64)
        observed = self._observed(np.full(n, code, np.int64), raws, columns.event_ms, clock_ns)
        if observed_ms is not None:
            self._supply(observed, np.arange(n), np.full(n, observed_ms))
        return observed

    def _code_of_columns(self, columns: Columns) -> tuple[int | None, float | None]:
        """Return the code of these beacons, None if a block cannot carry their extras, and when they were observed
        (epoch ms), None for the clock."""
        if columns.extras is None:
            return self._code_of(columns.place, None, None, has_crc=False), None
        observed_at, replay, reason, *_ = columns.extras
        try:
            observed_ms = None if observed_at is None else epoch_ms(observed_at)
        except (ValueError, OverflowError):
            return None, None
        return self._code_of(columns.place, replay, reason, has_crc=False), observed_ms

    def _columns(self, flat: Sequence[Any]) -> Observed | None:
        """Return columns of beacons that are all well-formed, else None."""
        n = len(flat) // STRIDE
        if n == 0:
            return None
        places, ids, times, clocks, extras = (flat[index::STRIDE] for index in range(STRIDE))
        raws = _encoded(ids)
        if raws is None or not set(map(type, times)) <= {int, float}:
            return None
        try:
            event_ms = np.array(times, np.float64)
        except OverflowError:
            return None
        if not np.isfinite(event_ms).all():
            return None
        plain = extras.count(None)
        codes = self._plain_codes(places) if plain else np.empty(n, np.int64)
        observed = self._observed(codes, raws, event_ms, np.fromiter(clocks, np.int64, n))
        return observed if plain == n or self._take_extras(observed, places, extras) else None

    def _observed(
        self,
        codes: npt.NDArray[np.int64],
        raws: list[bytes],
        event_ms: npt.NDArray[np.float64],
        clock_ns: npt.NDArray[np.int64],
    ) -> Observed:
        """Return columns of beacons without extras."""
        n = len(raws)
        # Whole milliseconds and their fraction apart: epoch nanoseconds do not fit a float64.
        lag_ms = (clock_ns // 1_000_000).astype(np.float64) - event_ms + (clock_ns % 1_000_000) / 1e6
        return Observed(
            codes,
            np.fromiter(map(xxhash.xxh3_64_intdigest, raws), np.uint64, n),
            event_ms,
            lag_ms,
            np.zeros(n, np.uint32),
            np.zeros(n, np.int64),
            raws if self._keep_ids else [],
            _NO_TRACES,
            _NONE_OUT_OF_ORDER,
            _NONE_SUPPLIED,
        )

    def _take_extras(self, observed: Observed, places: Sequence[str], extras: Sequence[RawExtras | None]) -> bool:
        """Put extras into their columns, and codes of the kinds that they make; False if a block cannot carry them."""
        contexts: dict[int, bytes] = {}
        supplied: dict[int, float] = {}
        late: list[int] = []
        for row, extra in enumerate(extras):
            if extra is None:
                continue
            observed_at, replay, reason, payload_crc, size, traceparent, is_out_of_order = extra
            try:
                if observed_at is not None:
                    supplied[row] = epoch_ms(observed_at)
                if payload_crc is not None:
                    observed.crc[row] = payload_crc
                if size != 0:
                    observed.payload_bytes[row] = _payload_bytes(size)
                observed.code[row] = self._code_of(places[row], replay, reason, has_crc=payload_crc is not None)
            except (ValueError, TypeError, OverflowError):
                return False
            if traceparent is not None and self._keep_traces and (context := parse_traceparent(traceparent)):
                contexts[row] = context
            if is_out_of_order:
                late.append(row)
        if supplied:
            self._supply(observed, np.array(list(supplied)), np.array(list(supplied.values())))
        if late:
            observed.out_of_order = np.zeros(len(observed), np.bool_)
            observed.out_of_order[late] = True
        if contexts:
            observed.traces = np.zeros((len(observed), CONTEXT_BYTES), np.uint8)
            packed = np.frombuffer(b"".join(contexts.values()), np.uint8)
            observed.traces[list(contexts)] = packed.reshape(-1, CONTEXT_BYTES)
        return True

    def _supply(self, observed: Observed, rows: npt.NDArray[np.intp], supplied_ms: npt.NDArray[np.float64]) -> None:
        """Put the times of these rows (epoch ms), which a caller supplied, in place of the clock's. That is kept where
        they are further from it than what rule 4 allows for: they may be of another clock."""
        clock_ms = observed.event_ms[rows] + observed.lag_ms[rows]
        observed.lag_ms[rows] = supplied_ms - observed.event_ms[rows]
        is_other = np.abs(clock_ms - supplied_ms) > self._same_clock_ms
        if is_other.any():
            observed.supplied_ms = np.zeros(len(observed))
            observed.supplied_ms[rows[is_other]] = clock_ms[is_other]

    def _plain_codes(self, places: Sequence[str]) -> npt.NDArray[np.int64]:
        try:
            return np.fromiter(map(self._plain.__getitem__, places), np.int64, len(places))
        except KeyError:
            for place in set(places):
                self._plain[place] = self._code(Kind(place, None, None, has_crc=False))
            return np.fromiter(map(self._plain.__getitem__, places), np.int64, len(places))

    def _code_of(self, place: str, replay: object, reason: object, *, has_crc: bool) -> int:
        if replay is not None or reason is not None:
            return self._code(Kind(place, replay_label(replay), self._reason(reason), has_crc))
        code = self._unlabelled.get((place, has_crc))
        if code is None:
            code = self._unlabelled[place, has_crc] = self._code(Kind(place, None, None, has_crc))
        return code

    def _code(self, kind: Kind) -> int:
        code = self._codes.setdefault(kind, len(self.kinds))
        if code == len(self.kinds):
            self.kinds.append(kind)
        return code

    def _reason(self, reason: object) -> str | None:
        text = _text(reason)
        if text is None:
            return None
        text = text[:MAX_REASON_CHARS].replace("\0", "\ufffd")
        if text not in self._reasons:
            if len(self._reasons) >= MAX_REASONS:
                return OTHER_REASON
            self._reasons.add(text)
        return text

    @staticmethod
    def _sifted(flat: Sequence[Any], oldest_ms: float, newest_ms: float, refused: RefusedBeacons) -> Iterator[Any]:
        """Yield the good beacons of `flat`, made uniform; slow, used only if a slice holds a bad or odd one."""
        for index in range(0, len(flat), STRIDE):
            place, message_id, event_time, clock, raw = flat[index : index + STRIDE]
            extras = None if raw is None else Extras(*raw)
            try:
                event_ms = epoch_ms(event_time)
            except (ValueError, OverflowError):
                refused.unplaced += 1
                continue
            if not oldest_ms <= event_ms <= newest_ms:
                refused.unplaced += 1
                continue
            try:
                extras = None if extras is None else _checked(extras)
                good = isinstance(message_id, str) and 1 <= len(message_id.encode()) <= MAX_ID_BYTES
            except (ValueError, TypeError, OverflowError):
                good = False
            if not good:
                refused.drop(place, replay_label(extras.replay) if extras else None, event_ms)
                continue
            yield from (place, str(message_id), event_ms, clock, extras)


def _encoded(ids: Sequence[Any]) -> list[bytes] | None:
    """Return these ids as bytes, None unless each is a message's."""
    if set(map(type, ids)) != {str}:
        return None
    try:
        raws = [message_id.encode() for message_id in ids]
    except UnicodeEncodeError:
        return None
    lengths = np.fromiter(map(len, raws), np.int64, len(raws))
    return raws if lengths.min() >= 1 and lengths.max() <= MAX_ID_BYTES else None


def _checked(extras: Extras) -> Extras:
    """Return these extras if a block can carry them.

    Raises:
        ValueError, TypeError, OverflowError: if not.
    """
    if extras.observed_at is not None:
        epoch_ms(extras.observed_at)
    if extras.payload_crc is not None:
        np.uint32(extras.payload_crc)
    _payload_bytes(extras.payload_bytes)
    return extras


def _payload_bytes(size: int) -> int:
    total = int(np.int64(size))
    if 0 <= total <= MAX_PAYLOAD_BYTES:
        return total
    raise ValueError(f"expected a size of 0 to {MAX_PAYLOAD_BYTES} bytes, found {total}")


def replay_label(value: object) -> str | None:
    """Return a caller's name of a replay as one that a block and a tally can carry; None for live traffic."""
    name = _text(value)
    return None if name is None else replay_name(name)


def _text(value: object) -> str | None:
    """Return a caller's label, of any type, as text that UTF-8 can hold."""
    if value is None:
        return None
    try:
        text = str(value)
    except Exception:
        return type(value).__name__
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


@dataclass(frozen=True, slots=True)
class Increment:
    """The amounts that one block adds to its tally. `id_sum` modulo 2^64; `lag_keys`: the bin of each lag (see
    `bin_keys`), which a tally counts for all of its blocks at once; `sample` as in the block."""

    key: TallyKey
    beacons: int
    id_sum: int
    lag_keys: npt.NDArray[np.int32]
    payload_bytes: int
    sample: int = SAMPLE_ALL

    @classmethod
    def of(cls, block: BeaconBlock, payload_bytes: int) -> Self:
        """Return the increment of this block. `payload_bytes`: the sum of its payloads' sizes."""
        return cls(
            TallyKey(block.checkpoint.partition(".")[2], block.replay, block.window_start),
            block.count,
            int(np.add.reduce(block.id_hash)),
            bin_keys(block.lag_ms),
            payload_bytes,
            block.sample,
        )


@dataclass(frozen=True, slots=True)
class PackedBlock:
    """A block ready to send, and its increment of a tally once the broker has it."""

    partition: int
    key: bytes
    value: bytes
    increment: Increment
    seq: int


def _supplied_at(observed: Observed, rows: slice) -> int | None:
    """Return by when all beacons of these rows had been observed (epoch ms), if the time of any was supplied."""
    supplied_ms = observed.supplied_ms[rows]
    if not supplied_ms.any():
        return None
    by_ms = np.where(supplied_ms > 0, supplied_ms, observed.event_ms[rows] + observed.lag_ms[rows])
    return math.ceil(float(by_ms.max()))


def apply_sample(observed: Observed, kinds: Sequence[Kind], sample: int) -> tuple[Observed, list[TallyKey]]:
    """Return the beacons that a sample takes, and the tallies of those that it leaves out."""
    if sample >= SAMPLE_ALL:
        return observed, []
    is_taken = (observed.id_hash & np.uint64(SAMPLE_ALL - 1)) < np.uint64(sample)
    rows = np.flatnonzero(~is_taken)
    minute = np.floor(observed.event_ms[rows] / WINDOW_MS).astype(np.int64)
    code_and_minute = np.unique(np.stack((observed.code[rows], minute)), axis=1).T.tolist()
    keys = {TallyKey(kinds[code].place, kinds[code].replay, minute * WINDOW_S) for code, minute in code_and_minute}
    return observed.at(np.flatnonzero(is_taken)), list(keys)


def _block_numbers(
    code: npt.NDArray[np.int64], minute: npt.NDArray[np.int64], partition: npt.NDArray[np.int64], partitions: int
) -> npt.NDArray[np.unsignedinteger]:
    """Return a number of each row that is its block's alone: it ascends by code, minute and partition. Of 16 bits if
    possible, which numpy sorts by radix."""
    first = minute.min()
    number: npt.NDArray[np.int64] = (code * (minute.max() - first + 1) + minute - first) * partitions + partition
    return number.astype(np.uint16 if number.max() <= np.iinfo(np.uint16).max else np.uint64)


@dataclass(slots=True)
class Packer:
    """Cuts columns into blocks of one kind, window and partition, numbered on from `seq`.

    At the first node, `in` has ids by name, unless they are private, and traces where they are known.
    """

    pipeline: str
    node: str
    emitter: bytes
    first: bool
    names_ids: bool = True
    seq: int = 0

    def pack(
        self, observed: Observed, kinds: Sequence[Kind], partitions: int, sample: int = SAMPLE_ALL
    ) -> Iterator[PackedBlock]:
        """Yield blocks that hold every row of `observed` once, each block's rows in the order they were observed.

        `sample`: the one that left these rows in (see `apply_sample`).
        """
        if not len(observed):
            return
        minute = np.floor(observed.event_ms / WINDOW_MS).astype(np.int64)
        partition = partitions_of(observed.id_hash, partitions)
        number = _block_numbers(observed.code, minute, partition, partitions)
        order = number.argsort(kind="stable")
        ordered, number, minute = observed.at(order), number[order], minute[order]
        lag_ms = ordered.lag_ms.astype(np.float32)
        lag_keys = bin_keys(lag_ms)
        starts = list(self._starts(ordered, kinds, np.flatnonzero(number[1:] != number[:-1]) + 1))
        blocks = zip(
            starts,
            [*starts[1:], len(ordered)],
            ordered.code[starts].tolist(),
            (minute[starts] * WINDOW_S).tolist(),
            partition[order[starts]].tolist(),
            np.add.reduceat(ordered.id_hash, starts).tolist(),
            np.add.reduceat(ordered.payload_bytes, starts).tolist(),
            strict=True,
        )
        for start, end, code, window_start, at_partition, id_sum, payload_bytes in blocks:
            kind, rows = kinds[code], slice(start, end)
            tally = TallyKey(kind.place, kind.replay, window_start)
            block = self._block(ordered, lag_ms, rows, kind, window_start, partitions, sample)
            yield PackedBlock(
                at_partition,
                block_key(self.pipeline, window_start),
                encode_block(block),
                Increment(tally, end - start, id_sum, lag_keys[rows], payload_bytes, sample),
                block.seq,
            )

    def _starts(self, ordered: Observed, kinds: Sequence[Kind], edges: npt.NDArray[np.intp]) -> Iterator[int]:
        """Yield the first row of each block: where another kind, window or partition begins (at 0 and at `edges`), and
        where a block would hold too much."""
        for start, end in itertools.pairwise((0, *edges.tolist(), len(ordered))):
            step = MAX_BLOCK_BEACONS
            if self._is_named(kinds[ordered.code[start]]):
                step = min(step, MAX_BLOCK_ID_BYTES // (max(map(len, ordered.raw_ids[start:end])) + 1))
            yield from range(start, end, step)

    def _is_named(self, kind: Kind) -> bool:
        return self.first and self.names_ids and kind.place == "in"

    def _block(
        self,
        ordered: Observed,
        lag_ms: npt.NDArray[np.float32],
        rows: slice,
        kind: Kind,
        window_start: int,
        partitions: int,
        sample: int,
    ) -> BeaconBlock:
        is_first = self.first and kind.place == "in"
        self.seq += 1
        return BeaconBlock(
            pipeline=self.pipeline,
            checkpoint=f"{self.node}.{kind.place}",
            emitter=self.emitter,
            seq=self.seq,
            window_start=window_start,
            partitions=partitions,
            id_hash=ordered.id_hash[rows],
            lag_ms=lag_ms[rows],
            sample=sample,
            replay=kind.replay,
            reason=kind.reason,
            event_offset_ms=(ordered.event_ms[rows] - window_start * 1000).astype(np.uint16) if is_first else None,
            message_ids=pack_ids(ordered.raw_ids[rows]) if self._is_named(kind) else None,
            payload_crc=ordered.crc[rows] if kind.has_crc else None,
            traces=pack_traces(ordered.traces[rows]) if is_first and ordered.traces.size else None,
            out_of_order=pack_positions(ordered.out_of_order[rows]) if ordered.out_of_order.size else None,
            supplied_at=_supplied_at(ordered, rows),
        )
