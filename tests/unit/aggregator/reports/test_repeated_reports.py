"""Reports that arrive again, late or out of order: of one emitter the highest seq counts, between emitters position."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.reports.batch import ReportBatch, ReportRecord
from lagloss.wire.format import Progress
from tests.support.report_histories import (
    KNOWN,
    LANES,
    PIPELINE,
    START_MS,
    Appended,
    Known,
    account_of,
    delayed,
    expected,
    in_order,
    log_of,
    repeated,
)


def followed(log: list[ReportRecord], batch_size: int = 3) -> Known:
    """What a batch knows once it has taken these records, some at a time."""
    batch = ReportBatch()
    for at in range(0, len(log), batch_size):
        batch.take(log[at : at + batch_size], KNOWN)
    assert not batch.bad
    return Known(
        {
            emitter: account_of(report, appended_ms, history.skew, history.inputs)
            for (_, emitter), (report, appended_ms) in batch.emitters.items()
            for history in [batch.accounts[PIPELINE, emitter]]
        },
        {key[1:]: (progress.until, reporter) for key, (progress, _, reporter) in batch.lanes.items()},
        {
            (emitter, checkpoint, window_s): (found.seq, found.tally.beacons)
            for (_, window_s, emitter, checkpoint, _), found in batch.tallies.items()
        },
    )


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 9))
def test_of_each_emitter_the_highest_seq_counts_and_between_emitters_the_position(rng: Random, size: int) -> None:
    reports = delayed(rng, in_order(rng))
    log = log_of([*reports, *repeated(rng, reports)])
    assert followed(log, size) == expected(log)


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 9))
def test_reports_that_arrive_again_change_nothing(rng: Random, size: int) -> None:
    reports = in_order(rng)
    assert followed(log_of([*reports, *repeated(rng, reports)]), size) == followed(log_of(reports))


def test_a_report_from_before_the_closing_one_opens_nothing_again() -> None:
    first = next(each.report for each in in_order(Random(1)))
    emitter = replace(first, seq=1, closed=False, progress=tuple(Progress(*lane, START_MS) for lane in LANES))
    closing = replace(emitter, seq=2, closed=True, progress=tuple(Progress(*lane, START_MS + 60_000) for lane in LANES))
    log = [Appended(START_MS, emitter), Appended(START_MS + 1_000, closing)]
    late = Appended(START_MS + 600_000, emitter)
    once, again = followed(log_of(log)), followed(log_of([*log, late]))
    assert again == once
    assert {until for until, _ in again.lanes.values()} == {START_MS + 60_000}
