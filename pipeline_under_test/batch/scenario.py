"""A scenario of the batch pipeline as people write it: load, faults and acts, and what must come of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from lagloss_server.base.fields import DurationMs, Name, PositiveMs, Strict, refuse
from lagloss_server.base.yaml_files import load_yaml
from pipeline_under_test.batch.faults import parse
from pipeline_under_test.batch.hourly.faults import TaskFault
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.topology import IMPORTERS, LANDING
from pipeline_under_test.harness.ledger import place_of_link, place_of_node
from pipeline_under_test.harness.scenario import DIRECTORY, Bounds, one_of

BATCH_FILES: Final = "batch-*.yaml"
PLACES: Final = (
    *(place_of_link(LANDING, importer) for importer in IMPORTERS),
    *(place_of_node(importer) for importer in IMPORTERS),
)


def _of_pipeline(text: str) -> str:
    parse(text)
    return text


def _of_task(text: str) -> str:
    TaskFault.parse(text)
    return text


class BatchLoad(Strict):
    """Events a second, and for how long; it begins with an hour."""

    rate: Annotated[float, Field(gt=0)] = 50
    minutes: Annotated[float, Field(gt=0)]


class BatchOptions(Strict):
    """Settings of the run. `span`: of an "hour". `backfill`: the first so many hours have no scheduled run, and are
    back-filled when the load has ended."""

    span: PositiveMs = 120_000
    importers: Annotated[int, Field(ge=1)] = 2
    visibility: PositiveMs = 20_000
    notified_within: PositiveMs = Field(default=20_000, alias="notifiedWithin")
    backfill: Annotated[int, Field(ge=0)] = 0


class FlowFault(Strict):
    """A fault of landing or of an importer, when it begins (counted from the first event), and for how long."""

    at: DurationMs
    for_: PositiveMs = Field(alias="for")
    fault: Annotated[str, AfterValidator(_of_pipeline)]


class JobFault(Strict):
    """A fault of a task, in the run of one hour, counted from 1. One for good is repaired `repair` after the run has
    failed."""

    hour: Annotated[int, Field(ge=1)]
    task: Annotated[str, AfterValidator(_of_task)]
    repair: DurationMs = 10_000


class Redrive(Strict):
    """The dead letters of an importer are moved back into its queue."""

    at: DurationMs
    redrive: Annotated[str, one_of(IMPORTERS)]


def _kind_of(value: Any) -> str:
    """Return which of the three an entry is, by the key that only it has."""
    keys = value if isinstance(value, dict) else type(value).model_fields
    return next((key for key in ("task", "redrive") if key in keys), "fault")


Act = Annotated[
    Annotated[FlowFault, Tag("fault")] | Annotated[JobFault, Tag("task")] | Annotated[Redrive, Tag("redrive")],
    Discriminator(_kind_of),
]


class BatchExpectations(Strict):
    """Expectation, besides that of every scenario: ledger and lagloss agree on records, files and task runs, no window
    is ever wrong about a loss, all hours are published, and nothing waits at the end. Counts are of records."""

    lost: dict[Annotated[str, one_of(PLACES, "the places ")], Bounds] = Field(default_factory=dict)
    """By place; nothing is lost anywhere else."""
    dead: Bounds = Bounds()
    duplicates: Bounds = Bounds()
    """Of files, as lagloss measures them where they are done."""
    failed_tries: Bounds = Field(default=Bounds(), alias="failedTries")
    """Of tasks."""
    restated: Bounds = Bounds()
    """Hours that were computed again, for late data."""


class BatchScenario(Strict):
    """One scenario."""

    name: Name
    kind: Literal["batch"]
    description: str
    load: BatchLoad
    run: BatchOptions = BatchOptions()
    faults: tuple[Act, ...] = ()
    expect: BatchExpectations = BatchExpectations()

    @model_validator(mode="after")
    def _can_be_carried_out(self) -> BatchScenario:
        hours = -(-self.load.minutes * 60_000 // self.run.span)
        problems = []
        for number, injected in enumerate(self.faults):
            if isinstance(injected, JobFault) and injected.hour > hours:
                problems.append((("faults", number, "hour"), f"expected one of {hours:g} hours, found {injected.hour}"))
            elif not isinstance(injected, JobFault) and injected.at >= self.load.minutes * 60_000:
                wrong = f"expected a time before the end of the load, found {injected.at / 1000:g}s"
                problems.append((("faults", number, "at"), wrong))
        refuse(problems)
        return self

    def settings(self) -> BatchSettings:
        """Return the settings of the pipeline's processes, as far as the scenario says them."""
        return BatchSettings(
            span_s=self.run.span // 1000,
            visibility_s=self.run.visibility // 1000,
            notified_within_s=self.run.notified_within / 1000,
            poll_s=2,
            dead_letters_s=5,
            rate=self.load.rate,
        )


def batch_scenarios() -> list[Path]:
    """Return the scenarios of the batch pipeline that come with it."""
    return sorted(DIRECTORY.glob(BATCH_FILES))


def load_batch_scenario(path: Path) -> BatchScenario:
    """Return the scenario in this file.

    Raises:
        BadDefinition: with file, line and what was expected.
    """
    return load_yaml(BatchScenario, path)
