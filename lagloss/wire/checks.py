"""Checks of a block, a tally and their window: the rules by which records of the log count.

Closing, `diff`, `matrix` and the search for a message all use them. docs/closing.md lists the reasons.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np

from lagloss.wire.format import (
    MAX_AHEAD_MS,
    RETENTION_MS,
    SAMPLE_ALL,
    WINDOW_S,
    BadReason,
    BadRecord,
    BeaconBlock,
    Tally,
    block_key,
    decode_block,
)


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
        problem: BadReason = "unknown_checkpoint"
    elif not 1 <= block.sample <= SAMPLE_ALL or block.partitions < 1:
        problem = "header_invalid"
    elif not np.isfinite(block.lag_ms).all():
        problem = "lag_not_finite"
    else:
        return block
    raise BadRecord(problem, block.pipeline, block.checkpoint, block.window_start)


def _check_place(
    key: bytes | None, appended_ms: int, pipeline: str, window_start_s: int, pipelines: Container[str]
) -> None:
    if key != block_key(pipeline, window_start_s):
        raise BadRecord("key_mismatch")
    if pipeline not in pipelines:
        raise BadRecord("unknown_pipeline")
    problem = _window_problem(window_start_s, appended_ms)
    if problem is not None:
        raise BadRecord(problem)


def tally_problem(tally: Tally, appended_ms: int) -> BadReason | None:
    """Return why a tally of a report appended at this time (epoch ms) has to be set aside; None if it counts."""
    problem = _window_problem(tally.window_start, appended_ms)
    return problem or (None if 1 <= tally.sample <= SAMPLE_ALL else "header_invalid")


def _window_problem(window_start_s: int, appended_ms: int) -> BadReason | None:
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
