"""Validation of records: which blocks and reports are good, and why the others are quarantined.

The collector, closing, `diff`, `matrix` and the search for a message all judge by these. docs/closing.md lists the
reasons.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Final, Protocol

import numpy as np

from lagloss.wire.format import (
    MAX_AHEAD_MS,
    MAX_BLOCK_BEACONS,
    MAX_COUNT,
    MAX_LABEL_CHARS,
    MAX_LABELS,
    MAX_NAME_BYTES,
    MAX_PARTITIONS,
    MAX_REPORT_PARTS,
    MAX_TIME_MS,
    RETENTION_MS,
    SAMPLE_ALL,
    WINDOW_S,
    BadReason,
    BadRecord,
    BeaconBlock,
    EmitterReport,
    FieldFault,
    Progress,
    Tally,
    block_key,
    decode_block,
    decode_report,
    name_fits,
)
from lagloss.wire.sketch import MAX_LAG_MS

_NAME: Final = f"expected up to {MAX_NAME_BYTES} bytes of UTF-8 without NUL"
_COUNT: Final = f"expected 0 to {MAX_COUNT}"
_TIME: Final = "expected epoch ms before the year 10000"
_LANE: Final = f"lane: {_NAME}"
_UNTIL: Final = f"until: {_TIME}"
_REPLAY: Final = f"replay: {_NAME}"
_SAMPLE: Final = f"sample: expected 1 to {SAMPLE_ALL}"
_COUNTS: Final = tuple(f"{field}: {_COUNT}" for field in ("beacons", "payload_bytes", "dropped"))
_SKETCH: Final = "lag_sketch: expected valid keys in ascending order, with counts of at least 1"
_LABELS: Final = f"expected up to {MAX_LABELS} labels of up to {MAX_LABEL_CHARS} characters each"
_PARTS: Final = f"expected up to {MAX_REPORT_PARTS} of them"
_RANGES: Final = f"ranges: expected up to {MAX_REPORT_PARTS} of them"
_MAX_LONG: Final = (1 << 63) - 1


def check_block(
    key: bytes | None,
    value: bytes | None,
    appended_ms: int,
    pipelines: Container[str],
    checkpoints: Container[str] | None = None,
) -> BeaconBlock:
    """Return the block of a record of the beacons topic.

    Args:
        appended_ms: when the log took the record (epoch ms).
        pipelines: names of the pipelines that can have blocks here.
        checkpoints: those of all versions of the pipeline's definition; None to accept any.

    Raises:
        BadRecord: the record has to be set aside. If only the content of its block is bad, the error names its
            checkpoint and window: the evidence of that node is incomplete (rule 7).
    """
    try:
        block = decode_block(value or b"")
    except BadRecord as bad:
        if bad.pipeline is not None and bad.window_start is not None:
            _check_place(key, appended_ms, bad.pipeline, bad.window_start, pipelines)
        raise
    _check_place(key, appended_ms, block.pipeline, block.window_start, pipelines)
    if checkpoints is not None and block.checkpoint not in checkpoints:
        raise BadRecord("unknown_checkpoint", block.pipeline, block.checkpoint, block.window_start)
    check_content(block)
    return block


def check_content(block: BeaconBlock) -> None:
    """Check every name and number of a block but its window.

    Raises:
        BadRecord: header_invalid or lag_not_finite, with whose block it is and what is wrong.
    """

    def demand(holds: bool, field: str, expected: str, reason: BadReason = "header_invalid") -> None:
        if not holds:
            fault = FieldFault(field, expected)
            raise BadRecord(reason, block.pipeline, block.checkpoint, block.window_start, fault)

    for field in ("pipeline", "checkpoint", "replay", "reason"):
        demand(name_fits(getattr(block, field) or ""), field, _NAME)
    demand(block.seq >= 0, "seq", "expected a sequence number, 0 or greater")
    demand(1 <= block.count <= MAX_BLOCK_BEACONS, "count", f"expected 1 to {MAX_BLOCK_BEACONS} beacons")
    demand(1 <= block.partitions <= MAX_PARTITIONS, "partitions", f"expected 1 to {MAX_PARTITIONS}")
    demand(1 <= block.sample <= SAMPLE_ALL, "sample", f"expected 1 to {SAMPLE_ALL}")
    demand(0 <= (block.supplied_at or 0) <= MAX_TIME_MS, "supplied_at", _TIME)
    lags_fit = bool((np.abs(block.lag_ms) < MAX_LAG_MS).all())  # NaN is not less
    demand(lags_fit, "lag_ms", f"expected finite lags below {MAX_LAG_MS:.0f} ms", "lag_not_finite")


def _check_place(
    key: bytes | None, appended_ms: int, pipeline: str, window_start_s: int, pipelines: Container[str]
) -> None:
    if key != block_key(pipeline, window_start_s):
        raise BadRecord("key_mismatch")
    if pipeline not in pipelines:
        raise BadRecord("unknown_pipeline")
    problem = window_problem(window_start_s, appended_ms)
    if problem is not None:
        raise BadRecord(problem)


def read_report(value: bytes | None) -> EmitterReport:
    """Return the report of a record of the reports topic. Windows of its tallies may still be out of reach: see
    `window_problem`.

    Raises:
        BadRecord: the record has to be set aside.
    """
    report = decode_report(value or b"")
    check_report(report)
    return report


def check_report(report: EmitterReport) -> None:
    """Check every name, number and time of a report, but the windows of its tallies. Clocks may be wrong, so a time may
    be any that a date can show.

    Raises:
        BadRecord: header_invalid, with what is wrong.
    """
    for field in ("pipeline", "node", "host"):
        _demand(name_fits(getattr(report, field)), field, _NAME)
    _demand(0 <= report.seq <= _MAX_LONG, "seq", "expected a sequence number, 0 or greater")
    for field in ("started_at", "sent_at"):
        _demand(0 <= getattr(report, field) <= MAX_TIME_MS, field, _TIME)
    _demand(
        0 <= report.final_through * 1000 <= MAX_TIME_MS, "final_through", "expected epoch seconds before the year 10000"
    )
    _demand(are_labels(report.labels), "labels", _LABELS)
    check_parts("progress", len(report.progress))
    check_parts("tallies", len(report.tallies))
    for index, progress in enumerate(report.progress):
        _check_progress(report.node, progress, index)
    for index, tally in enumerate(report.tallies):
        _check_tally(report.node, tally, index)


def check_parts(field: str, count: int) -> None:
    """Check how many tallies or lanes a report has.

    Raises:
        BadRecord: header_invalid, with what is wrong.
    """
    _demand(count <= MAX_REPORT_PARTS, field, _PARTS)


def _check_progress(node: str, progress: Progress, index: int) -> None:
    _check_checkpoint(node, progress.checkpoint, "progress", index)
    _demand(name_fits(progress.lane), "progress", _LANE, index)
    _demand(0 <= progress.until <= MAX_TIME_MS, "progress", _UNTIL, index)


class TallyNumbers(Protocol):
    """The numbers of a tally, whatever its sketch and ranges are kept as."""

    @property
    def checkpoint(self) -> str: ...
    @property
    def replay(self) -> str | None: ...
    @property
    def sample(self) -> int: ...
    @property
    def beacons(self) -> int: ...
    @property
    def payload_bytes(self) -> int: ...
    @property
    def dropped(self) -> int: ...


def check_numbers(node: str, tally: TallyNumbers, index: int) -> None:
    """Check every name and number of a report's tally but its sketch, ranges and window; `index`: its place in the
    report.

    Raises:
        BadRecord: header_invalid, with what is wrong.
    """
    _check_checkpoint(node, tally.checkpoint, "tallies", index)
    _demand(name_fits(tally.replay or ""), "tallies", _REPLAY, index)
    _demand(1 <= tally.sample <= SAMPLE_ALL, "tallies", _SAMPLE, index)
    counts = tally.beacons, tally.payload_bytes, tally.dropped
    if not 0 <= min(counts) <= max(counts) <= MAX_COUNT:
        for count, expected in zip(counts, _COUNTS, strict=True):
            _demand(0 <= count <= MAX_COUNT, "tallies", expected, index)


def _check_tally(node: str, tally: Tally, index: int) -> None:
    check_numbers(node, tally, index)
    _demand(tally.lag_sketch.is_sound(MAX_COUNT), "tallies", _SKETCH, index)
    _demand(len(tally.ranges) <= MAX_REPORT_PARTS, "tallies", _RANGES, index)
    before = (-1, -1)
    for place in tally.ranges:
        fits = 0 <= place.partition < MAX_PARTITIONS and 0 <= place.first <= place.last <= _MAX_LONG
        _demand(fits, "tallies", "ranges: expected a valid partition, and offsets with first <= last", index)
        _demand((place.partition, place.first) > before, "tallies", "ranges: expected ranges in ascending order", index)
        before = place.partition, place.first


def _check_checkpoint(node: str, checkpoint: str, field: str, index: int) -> None:
    if not (checkpoint.startswith(f"{node}.") and name_fits(checkpoint)):
        raise _invalid(field, f"checkpoint: expected a checkpoint of node {node}, found {checkpoint[:100]}", index)


def are_labels(labels: Mapping[str, str]) -> bool:
    """Return whether a report may carry these labels."""
    texts = [*labels, *labels.values()]
    return len(labels) <= MAX_LABELS and all(len(text) <= MAX_LABEL_CHARS and name_fits(text) for text in texts)


def _demand(holds: bool, field: str, expected: str, position: int | None = None) -> None:
    if not holds:
        raise _invalid(field, expected, position)


def _invalid(field: str, expected: str, position: int | None) -> BadRecord:
    return BadRecord("header_invalid", fault=FieldFault(field, expected, position))


def window_problem(window_start_s: int, appended_ms: int) -> BadReason | None:
    """Return why a record appended at this time (epoch ms) may not name this window; None if it may."""
    if window_start_s % WINDOW_S or window_start_s < 0:
        return "window_invalid"
    if is_in_reach(window_start_s * 1000, appended_ms):
        return None
    return "window_ahead" if window_start_s * 1000 > appended_ms else "window_too_old"


def is_in_reach(window_start_ms: Any, appended_ms: Any) -> Any:
    """Return True if a record appended at this time can name a window that starts then (both epoch ms).

    A window may start at most `MAX_AHEAD_MS` later, at most `RETENTION_MS` earlier. Takes numbers, numpy arrays and
    Spark columns, and returns the like.
    """
    return (window_start_ms >= appended_ms - RETENTION_MS) & (window_start_ms <= appended_ms + MAX_AHEAD_MS)
