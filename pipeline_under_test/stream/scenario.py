"""A scenario as people write it: load, options, faults and expectations, in a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from lagloss_server.base.fields import DurationMs, Name, PositiveMs, Strict, refuse
from lagloss_server.base.yaml_files import load_yaml, parse_yaml
from lagloss_server.model.definition import Definition, as_document
from lagloss_server.model.taps import Order
from lagloss_server.model.window import Verdict
from pipeline_under_test.harness.faults import LEAD_S, Fault, Injection, Injections
from pipeline_under_test.harness.ledger import place_of_link, place_of_node
from pipeline_under_test.harness.scenario import DIRECTORY, Bounds, one_of
from pipeline_under_test.stream.faults import parse
from pipeline_under_test.stream.settings import Retry
from pipeline_under_test.stream.topology import ALL_NEXT, DEFINITION, PIPELINE, TAPPED_DEFINITION, WAREHOUSE
from pipeline_under_test.stream.truth import tapped_place

BROKER_FAULTS: Final = frozenset({"broker-kill", "broker-restart"})
PLACES: Final = (
    *map(place_of_node, ALL_NEXT),
    *(place_of_link(node, to) for node, nexts in ALL_NEXT.items() for to in nexts),
)


class ScenarioLoad(Strict):
    """Events a second, and for how long."""

    rate: Annotated[float, Field(gt=0)]
    minutes: Annotated[float, Field(gt=0)]


class Options(Strict):
    """Settings of the pipeline's run, and of its definition for lagloss."""

    brokers: Literal[1, 3] = 1
    tiers: tuple[PositiveMs, ...] = (10_000, 60_000, 300_000)
    retry: Retry = "global"
    batch: Annotated[int, Field(ge=1)] = 100
    parallel: Annotated[int, Field(ge=1)] = 4
    exactly_once: bool = Field(default=False, alias="exactlyOnce")
    at_most_once: bool = Field(default=False, alias="atMostOnce")
    taps: bool = False
    """The nodes send no beacons: lagloss reads their topics and commits."""
    warehouse: bool = False
    """Clicks are stored in a table, in lagloss's own database."""
    commit_first: bool = Field(default=False, alias="commitFirst")
    """The warehouse commits what it reads before it stores it."""
    order: Order | None = None
    """As in the definition, with taps."""
    grace: DurationMs = 10_000
    max_wait: DurationMs = Field(default=60_000, alias="maxWait")


class Injected(Strict):
    """A fault, when it begins (counted from the first event), and for how long; without `for`, to the end."""

    at: DurationMs
    for_: PositiveMs | None = Field(default=None, alias="for")
    fault: Annotated[Fault, BeforeValidator(lambda text: parse(str(text)))]


class LossBounds(Strict):
    """How much is lost at a place: a number of messages, or a share of all that the run sends."""

    count: Bounds | None = None
    share: Bounds | None = None

    @model_validator(mode="after")
    def _says_one(self) -> LossBounds:
        if (self.count is None) == (self.share is None):
            raise ValueError("expected either count or share")
        return self


class LagBounds(Strict):
    """In some window the p95 of E2E lag rises above the one, and in the last it is below the other."""

    above: PositiveMs
    then_below: PositiveMs = Field(alias="thenBelow")


class Expectations(Strict):
    """Expectation, besides that of every scenario: ledger and windows agree, no window is ever wrong
    about a loss, and nothing is pending at the end."""

    lost: dict[Annotated[str, one_of(PLACES, "the places ")], LossBounds] = Field(default_factory=dict)
    """By place; nothing is lost anywhere else."""
    verdicts: tuple[Verdict, ...] = ("ok",)
    """Those that must occur."""
    duplicates: Bounds = Bounds()
    """As lagloss measures them at the delivery checkpoints."""
    dead: Bounds = Bounds()
    filtered: Bounds = Bounds()
    restarts: Bounds = Bounds()
    """Restarts of the pipeline's processes, after crashes."""
    lag: LagBounds | None = None


class Scenario(Strict):
    """One scenario. Its name is its pipeline's."""

    name: Name
    description: str
    load: ScenarioLoad
    run: Options = Options()
    faults: tuple[Injected, ...] = ()
    expect: Expectations = Expectations()

    @model_validator(mode="after")
    def _can_be_carried_out(self) -> Scenario:
        problems: list[tuple[tuple[str | int, ...], str]] = []
        for number, injected in enumerate(self.faults):
            if injected.at >= self.load.minutes * 60_000:
                wrong = f"expected a time before the end of the load, found {injected.at / 1000:g}s"
                problems.append((("faults", number, "at"), wrong))
            if injected.fault.kind in BROKER_FAULTS and self.run.brokers == 1:
                wrong = f"expected `run: {{brokers: 3}}` for {injected.fault.text}, found one broker"
                problems.append((("faults", number, "fault"), wrong))
            if WAREHOUSE in (injected.fault.node, injected.fault.to) and not self.run.warehouse:
                wrong = f"expected `run: {{warehouse: true}}` for {injected.fault.text}"
                problems.append((("faults", number, "fault"), wrong))
        if self.run.commit_first and not self.run.warehouse:
            problems.append((("run", "commitFirst"), "expected `warehouse: true` with `commitFirst`"))
        refuse(problems)
        return self

    def definition(self) -> Definition:
        """Return the definition for lagloss: the reference pipeline, under this scenario's name."""
        grace, max_wait = f"{self.run.grace}ms", f"{self.run.max_wait}ms"
        spec = {"grace": grace, "maxWait": max_wait, "order": self.run.order}
        return stream_definition(self.name, taps=self.run.taps, warehouse=self.run.warehouse, **spec)

    def tapped(self) -> Scenario:
        """Return this scenario with taps instead of beacons; losses are expected where taps show them."""
        lost = {tapped_place(place): bounds for place, bounds in self.expect.lost.items()}
        return self.model_copy(
            update={
                "run": self.run.model_copy(update={"taps": True}),
                "expect": self.expect.model_copy(update={"lost": lost}),
            }
        )

    def inject(self, injections: Injections) -> list[Injection]:
        """Request all faults, their times counted from now; each process applies its own when they are due."""
        return [
            injections.add(fault.fault, None if fault.for_ is None else fault.for_ / 1000, max(LEAD_S, fault.at / 1000))
            for fault in self.faults
        ]


def stream_definition(pipeline: str, *, taps: bool = False, warehouse: bool = True, **spec: Any) -> Definition:
    """Return the definition of a reference pipeline of this name.

    Args:
        taps: its nodes send no beacons: lagloss reads their topics and commits.
        warehouse: it has a database.
        spec: what else to put into its `spec`.
    """
    path = TAPPED_DEFINITION if taps else DEFINITION
    text = path.read_text().replace(f"{PIPELINE}.", f"{pipeline}.").replace(f"name: {PIPELINE},", f"name: {pipeline},")
    document = as_document(parse_yaml(Definition, text, str(path)))
    document["spec"] |= spec
    if not warehouse:
        nodes = [node for node in document["spec"]["nodes"] if node["name"] != WAREHOUSE]
        for node in nodes:
            node["to"] = [to for to in node.get("to", ()) if to != WAREHOUSE]
            node.get("taps", {}).pop(f"out:{WAREHOUSE}", None)
        document["spec"]["nodes"] = nodes
    return Definition.model_validate(document)


def shipped_scenarios() -> list[Path]:
    """Return the scenarios of the repository but those of the batch pipeline, which are called `batch-…`."""
    return sorted(path for path in DIRECTORY.glob("*.yaml") if not path.name.startswith("batch-"))


def load_scenario(path: Path) -> Scenario:
    """Return the scenario in this file.

    Raises:
        BadDefinition: with file, line and what was expected.
    """
    return load_yaml(Scenario, path)
