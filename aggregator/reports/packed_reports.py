"""Reports whose sketches and ranges stay packed: read ten times as fast as with `decode_report`.

A report is a few numbers and hundreds of bins that are of no use before its window is closed. Here the numbers are
decoded, and the bytes of bins and ranges, which Avro writes as varints one after another, are kept as they came. What
is not certainly good, or not written as usual, is left to `read_report`, so that both accept and refuse the same.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import fastavro
import numpy as np
import numpy.typing as npt
from fastavro import schemaless_reader

from lagloss.wire.avro import decode_long
from lagloss.wire.checks import check_numbers, check_report, read_report
from lagloss.wire.format import (
    MAX_COUNT,
    MAX_PARTITIONS,
    REPORT_SCHEMA,
    BadRecord,
    EmitterReport,
    OffsetRange,
    Progress,
    SchemaVersion,
    Tally,
    pack_ranges,
    unpack_ranges,
)
from lagloss.wire.sketch import MAX_KEY, MIN_KEY, Sketch
from lagloss_server.compiled import U8, compiled
from lagloss_server.varints import avro_long

AT_ONCE: Final = 200
"""Reports that are read together: their bytes fit into a core's cache."""


@dataclass(slots=True)
class PackedTally:
    """A `Tally`. `bins`: as `Sketch.to_bytes` writes them, `packed_ranges`: as `pack_ranges` does.

    Not frozen only because that doubles the cost of making one.
    """

    checkpoint: str
    window_start: int
    replay: str | None
    sample: int
    beacons: int
    payload_bytes: int
    id_sum: int
    dropped: int
    bins: bytes
    packed_ranges: bytes

    @classmethod
    def of(cls, tally: Tally) -> PackedTally:
        return cls(
            tally.checkpoint,
            tally.window_start,
            tally.replay,
            tally.sample,
            tally.beacons,
            tally.payload_bytes,
            tally.id_sum,
            tally.dropped,
            tally.lag_sketch.to_bytes(),
            pack_ranges(tally.ranges),
        )

    @property
    def lowest_bin(self) -> int | None:
        """Key of the first bin; None if there are no lags."""
        return decode_long(self.bins) if self.bins else None

    @property
    def lag_sketch(self) -> Sketch:
        return Sketch.from_bytes(self.bins)

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        return tuple(unpack_ranges(self.packed_ranges))


@dataclass(frozen=True, slots=True)
class PackedReport:
    """A report; `head` is all of it but its tallies."""

    head: EmitterReport
    tallies: tuple[PackedTally, ...]


def read_reports(values: Sequence[bytes | None]) -> list[PackedReport | BadRecord]:
    """Return the report of each record of the reports topic, or why the record has to be set aside.

    Both as `read_report` would say, in the order of the records.
    """
    return [report for at in range(0, len(values), AT_ONCE) for report in _read_some(values[at : at + AT_ONCE])]


def _read_some(values: Sequence[bytes | None]) -> list[PackedReport | BadRecord]:
    found = [_read_quickly(value, ends) for value, ends in zip(values, _ends(values), strict=True)]
    quick = [(at, report) for at, report in enumerate(found) if report is not None]
    if not _are_sound([report for _, report in quick]):
        for at, report in quick:
            if not _are_sound([report]):
                found[at] = None
    return [_read(value) if report is None else report for value, report in zip(values, found, strict=True)]


def _read(value: bytes | None) -> PackedReport | BadRecord:
    try:
        report = read_report(value)
    except BadRecord as bad:
        return bad
    return _packed(report)


def _packed(report: EmitterReport) -> PackedReport:
    return PackedReport(replace(report, tallies=()), tuple(map(PackedTally.of, report.tallies)))


# -- the bytes of a report ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sections:
    """Schemas of the parts of a report that lie between its arrays of integers."""

    head: Any
    """All before the tallies, and how many of these there are."""
    tally: Any
    """All of a tally before its sketch, and how many bins this has."""
    tail: Any
    """All after the tallies; None if that is nothing."""
    later: Mapping[str, Any]
    """What later versions of the schema would say after them."""

    @classmethod
    def of(cls, version: SchemaVersion) -> _Sections:
        before, after = _split(version.fields, "tallies")
        of_tally = {field["name"]: field for field in version.fields["tallies"]["type"]["items"]["fields"]}
        tail = _record("Tail", after) if after else None
        return cls(_record("Head", before), _record("Tally", _split(of_tally, "lag_sketch")[0]), tail, version.later)


def _split(fields: Mapping[str, Any], array: str) -> tuple[list[Any], list[Any]]:
    """Return the fields before an array, with the count that opens it, and those after it."""
    at, listed = list(fields).index(array), list(fields.values())
    return [*listed[:at], {"name": array, "type": "long"}], listed[at + 1 :]


def _record(name: str, fields: list[Any]) -> Any:
    return fastavro.parse_schema({"type": "record", "name": name, "fields": fields})


_SECTIONS: Final = {version.header: _Sections.of(version) for version in REPORT_SCHEMA.versions}
_HEADER_BYTES: Final = 10


class _Ends(NamedTuple):
    """Bytes at which an integer may end, of records that lie one after another.

    `place`: their positions. `before`: of each position, how many of them come before it. `first`: the position at
    which this record begins.
    """

    place: npt.NDArray[np.int64]
    before: npt.NDArray[np.int32]
    first: int

    def end(self, at: int, count: int) -> int:
        """Return the position in the record after so many integers that begin at `at`."""
        first = self.first
        return self.place.item(self.before.item(first + at) + count - 1) - first + 1


def _ends(values: Sequence[bytes | None]) -> Iterator[_Ends]:
    """Find the ends in many records at once: that costs the same for one as for hundreds."""
    records = [value or b"" for value in values]
    is_end = np.frombuffer(b"".join(records), np.uint8) < 0x80
    before = is_end.cumsum(dtype=np.int32) - is_end
    place = np.flatnonzero(is_end)
    firsts = itertools.accumulate(map(len, records), initial=0)
    return (_Ends(place, before, first) for first, _ in zip(firsts, records, strict=False))


def _read_quickly(value: bytes | None, ends: _Ends) -> PackedReport | None:
    """Return the report, whose sketches and ranges are not validated yet; None if it has to be read in full."""
    try:
        return None if value is None else _read_sections(value, ends, _SECTIONS[value[:_HEADER_BYTES]])
    except Exception:  # whatever the bytes lead fastavro to; reading in full says what is wrong
        return None


def _read_sections(value: bytes, ends: _Ends, sections: _Sections) -> PackedReport:
    """Return the report in a record's value, whose arrays are written in one piece.

    Raises:
        Exception: it is no good report, or is not written as usual.
    """
    body = io.BytesIO(value)
    body.seek(_HEADER_BYTES)
    head: Any = schemaless_reader(body, sections.head, None)
    tallies = []
    count = head.pop("tallies")
    for _ in range(count):
        tally: Any = schemaless_reader(body, sections.tally, None)
        bins, at = _array(value, ends, body.tell(), tally.pop("lag_sketch"), 2)
        places, at = _array(value, ends, at + 1, _short(value[at]), 3)
        tallies.append(PackedTally(**tally, bins=bins, packed_ranges=places))
        body.seek(at)
    if count:
        _demand(body.read(1) == _END)
    later: Any = sections.later if sections.tail is None else schemaless_reader(body, sections.tail, None)
    _demand(count >= 0 and body.tell() == len(value))
    progress = tuple(Progress(**each) for each in head.pop("progress"))
    report = EmitterReport(**head, progress=progress, **later)
    check_report(report)
    for at, found in enumerate(tallies):
        check_numbers(report.node, found, at)
    return PackedReport(report, tuple(tallies))


_END: Final = b"\0"
"""The count that ends an array."""


def _short(byte: int) -> int:
    """Return the count that is written in this one byte."""
    _demand(byte < 0x80 and byte % 2 == 0)
    return byte // 2


def _array(value: bytes, ends: _Ends, at: int, count: int, width: int) -> tuple[bytes, int]:
    """Return the bytes of an array of `count` records of so many integers, from `at` on, and the position after it."""
    if count == 0:
        return b"", at
    _demand(count > 0)
    end = ends.end(at, width * count)
    _demand(value[end : end + 1] == _END)
    return value[at:end], end + 1


def _demand(holds: bool) -> None:
    if not holds:
        raise ValueError("expected a report as the SDK writes it")


def _are_sound(reports: Sequence[PackedReport]) -> bool:
    """Return whether all bins and ranges are certainly in range, and in the order in which a sketch has its bins."""
    tallies = [tally for report in reports for tally in report.tallies]
    return bool(
        _are_bins(*_joined([tally.bins for tally in tallies]))
        and _are_ranges(*_joined([tally.packed_ranges for tally in tallies]))
    )


def _joined(packed: Sequence[bytes]) -> tuple[U8, npt.NDArray[np.int64]]:
    """Return the bytes one after another, and where each ends."""
    return np.frombuffer(b"".join(packed), np.uint8), np.cumsum([len(one) for one in packed], dtype=np.int64)


@compiled
def _are_bins(data: U8, ends: npt.NDArray[np.int64]) -> bool:
    """Return whether the bytes up to each end are whole bins, whose keys ascend."""
    at = 0
    for end in ends:
        before = -MAX_KEY - 1
        while at < end:
            key, at = avro_long(data, at, end)
            if at < 0:
                return False
            count, at = avro_long(data, at, end)
            size = abs(key)
            if at < 0 or key <= before or not (size == 0 or MIN_KEY <= size <= MAX_KEY):
                return False
            if not 0 <= count <= MAX_COUNT:
                return False
            before = key
    return True


@compiled
def _are_ranges(data: U8, ends: npt.NDArray[np.int64]) -> bool:
    """Return whether the bytes up to each end are whole ranges of offsets."""
    at = 0
    for end in ends:
        while at < end:
            partition, at = avro_long(data, at, end)
            if at < 0 or not 0 <= partition < MAX_PARTITIONS:
                return False
            first, at = avro_long(data, at, end)
            if at < 0 or first < 0:
                return False
            last, at = avro_long(data, at, end)
            if at < 0 or last < first:
                return False
    return True
