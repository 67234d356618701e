"""Outcome of a scenario of the batch pipeline, beside its expectation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pipeline_under_test.batch.run import BatchResult
from pipeline_under_test.batch.scenario import BatchExpectations
from pipeline_under_test.stream.scenario import Bounds


def problems_of(result: BatchResult, expect: BatchExpectations) -> list[str]:
    """Return all that is not as expected, a sentence each."""
    return [*_differences(result), *_unexpected(result, expect)]


def _differences(result: BatchResult) -> Iterator[str]:
    """Yield what is wrong whatever the scenario is."""
    for verdict in result.verdicts:
        for first in verdict.differences[:1]:
            yield (
                f"expected ledger = windows of {verdict.pipeline}, found {len(verdict.differences)} differences, the "
                f"first: {first.what}, injected {first.injected}, measured {first.measured}, window "
                f"{first.window_start_s}, {', '.join(first.ids)}"
            )
        if verdict.waiting:
            yield f"expected all windows of {verdict.pipeline} to be settled, found {len(verdict.waiting)} waiting"
    yield from result.run_differences
    for wrong in result.false_losses[:1]:
        yield f"expected no loss but those injected, found {len(result.false_losses)} moments, the first: {wrong}"


def _unexpected(result: BatchResult, expect: BatchExpectations) -> Iterator[str]:
    if not result.verdicts:
        return
    records, files = (verdict.document() for verdict in result.verdicts)
    lost: Counter[str] = Counter(records["injected"]["lost_at"])
    for place in sorted({*expect.lost, *lost}):
        bounds = expect.lost.get(place, Bounds(max=0))
        if not bounds.hold(lost[place]):
            yield f"expected lost at {place}: {bounds}, found {lost[place]}"
    counts = (
        ("dead", expect.dead, records["injected"]["dead"]),
        ("duplicates of files", expect.duplicates, files["measured"]["duplicates"]),
        ("failed tries", expect.failed_tries, result.failed_tries),
        ("restated hours", expect.restated, result.restated),
    )
    for what, bounds, found in counts:
        if not bounds.hold(found):
            yield f"expected {what}: {bounds}, found {found}"
