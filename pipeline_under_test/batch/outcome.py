"""Runs scenarios of the batch pipeline, each on a lagloss, an S3 and an Airflow of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lagloss.errors import LaglossError
from lagloss_server.base.settings import Settings
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.supervisor import Say
from pipeline_under_test.batch.run import BatchResult, batch_run
from pipeline_under_test.batch.scenario import BatchExpectations, BatchScenario
from pipeline_under_test.batch.stack import BatchStack, Sizes
from pipeline_under_test.harness.scenario import Bounds


@dataclass(frozen=True)
class BatchOutcome:
    """One scenario's result, None if it did not get to its end; `problems` are empty where all was as expected."""

    scenario: str
    problems: tuple[str, ...]
    result: BatchResult | None = None

    def document(self) -> dict[str, Any]:
        document_ = self.result.document() if self.result else None
        return {
            "scenario": self.scenario,
            "ok": not self.problems,
            "problems": list(self.problems),
            "result": document_,
        }


def run_batch_scenarios(scenarios: Iterable[BatchScenario], say: Say) -> Iterator[BatchOutcome]:
    """Run them all, one after the other; what keeps one from getting to its end is a problem of its own."""
    for scenario in scenarios:
        say(f"{scenario.name}: {scenario.description}")
        try:
            result = _result(scenario, say)
        except LaglossError as problem:
            yield BatchOutcome(scenario.name, (str(problem),))
            continue
        problems = tuple(problems_of(result, scenario.expect))
        say(f"{scenario.name}: {problems[0] if problems else 'as expected'}")
        yield BatchOutcome(scenario.name, problems, result)


def _result(scenario: BatchScenario, say: Say) -> BatchResult:
    with (
        _own_settings() as lagloss,
        BatchStack(lagloss, scenario.settings(), Sizes(importers=scenario.run.importers), say) as stack,
        batch_run(stack, scenario, say) as running,
    ):
        return running.go()


@contextmanager
def _own_settings() -> Iterator[Settings]:
    """Yield settings with a data directory that is removed afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="lagloss-batch-"))
    directory.chmod(0o711)  # PostgreSQL's own user has to pass where we are root
    try:
        yield Settings(data_dir=directory)
    finally:
        EmbeddedPostgres.remove(directory / "postgres")
        shutil.rmtree(directory, ignore_errors=True)


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
            yield f"expected all windows of {verdict.pipeline} to be settled, found {len(verdict.waiting)} pending"
    yield from result.run_differences
    for wrong in result.false_losses[:1]:
        yield f"expected only injected losses, found {len(result.false_losses)} moments with others, the first: {wrong}"


def _unexpected(result: BatchResult, expect: BatchExpectations) -> Iterator[str]:
    if not result.verdicts:
        return
    records, files = (verdict.document() for verdict in result.verdicts)
    lost: Counter[str] = Counter(records["injected"]["lost_at"])
    for place in sorted({*expect.lost, *lost}):
        bounds = expect.lost.get(place, Bounds(max=0))
        yield from bounds.problems(f"lost at {place}", lost[place])
    counts = (
        ("dead", expect.dead, records["injected"]["dead"]),
        ("duplicates of files", expect.duplicates, files["measured"]["duplicates"]),
        ("failed attempts", expect.failed_tries, result.failed_tries),
        ("rerun hours", expect.restated, result.restated),
    )
    for what, bounds, count in counts:
        yield from bounds.problems(what, count)
