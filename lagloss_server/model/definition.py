"""Pipeline definitions: the YAML a pipeline's owner writes, checked, with errors that name file, line and
expectation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol

from msgspec import Struct
from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from lagloss.wire.format import SAMPLE_ALL
from lagloss_server.base.fields import NUMBER, Description, DurationMs, Name, PositiveMs, Strict, like, refuse
from lagloss_server.base.yaml_files import load_yaml, parse_yaml
from lagloss_server.model.alert_rules import Alerts, alert_problems
from lagloss_server.model.cuts import AFTER, cut_problem
from lagloss_server.model.flow import Flow
from lagloss_server.model.graph import Graph
from lagloss_server.model.jobs import JobSpec
from lagloss_server.model.matchers import INCIDENT_LABELS, MatcherList, reach
from lagloss_server.model.nodes import MAX_NODES, NodeSpec, problem_of
from lagloss_server.model.span_resolution import SpanProblem, span_points_of
from lagloss_server.model.spans import SpanPoint
from lagloss_server.model.tables import AnyTap, RecheckMs, TableTap
from lagloss_server.model.tap_resolution import TapProblem, table_taps_of, taps_of
from lagloss_server.model.taps import Order, Tap
from lagloss_server.model.window import rfc3339

MAX_JOBS = 20
MAX_CHECKPOINTS = 200
_STORED: Final = "stored"
"""Context of validation: what is read was checked before."""


def _are_free(labels: dict[str, str]) -> dict[str, str]:
    """Reject labels whose names those of every incident take."""
    taken = sorted(labels.keys() & INCIDENT_LABELS)
    if taken:
        raise ValueError(f"expected labels other than {', '.join(sorted(INCIDENT_LABELS))}, found {', '.join(taken)}")
    return labels


LabelName = Annotated[
    str,
    like(
        r"^[A-Za-z_][A-Za-z0-9_-]{0,99}$",
        "a name of 1 to 100 letters, digits, `-` and `_` that starts with a letter or `_`",
    ),
]
LabelValue = Annotated[str, like(r"^[^\x00-\x1f\x7f]{0,200}$", "one line of text of up to 200 characters")]
Labels = Annotated[dict[LabelName, LabelValue], Field(max_length=50), AfterValidator(_are_free)]


class Metadata(Strict):
    """`labels` are attached to the pipeline's incidents, for routes and silences, and assign pipelines to teams."""

    name: Name
    description: Description = ""
    labels: Labels = Field(default_factory=dict)


class LossSla(Strict):
    max: Annotated[float, NUMBER, Field(ge=0, le=1)] = 0.01


class LagSla(Strict):
    percentile: Annotated[float, NUMBER, Field(gt=0, le=100)] = 95
    target: DurationMs = 5_000

    @property
    def share(self) -> float:
        """The percentile as a share: 0.999 of 99.9, where the quotient 99.9 / 100 is above it."""
        return float(Decimal(str(self.percentile)).scaleb(-2))


class StalenessSla(Strict):
    """Maximum age of the newest event at each delivery checkpoint, and at other checkpoints with their own target."""

    max: DurationMs = 300_000
    checkpoints: dict[str, PositiveMs] = Field(default_factory=dict)

    def at(self, checkpoint: str) -> int:
        """Return the target of a delivery checkpoint, or of one that has its own, in ms."""
        return self.checkpoints.get(checkpoint, self.max)


class DestinationSla(Strict):
    """Targets of one destination; a missing target defaults to that of the pipeline."""

    loss: LossSla | None = None
    lag: LagSla | None = None


class Sla(Strict):
    loss: LossSla = LossSla()
    lag: LagSla = LagSla()
    staleness: StalenessSla = StalenessSla()
    destinations: dict[str, DestinationSla] = Field(default_factory=dict)
    """By the name of a node without next nodes: its own targets, which count for the verdict (rule 15)."""

    def loss_at(self, destination: str) -> LossSla:
        """Return the loss target of a destination."""
        return self.destinations.get(destination, DestinationSla()).loss or self.loss

    def lag_at(self, destination: str) -> LagSla:
        """Return the lag target of a destination."""
        return self.destinations.get(destination, DestinationSla()).lag or self.lag


class PipelineSpec(Strict):
    nodes: Annotated[tuple[NodeSpec, ...], Field(min_length=1, max_length=MAX_NODES)]
    grace: DurationMs = 60_000
    max_wait: DurationMs = Field(default=900_000, alias="maxWait")
    sample: Annotated[float, NUMBER, Field(gt=0, le=1)] = 1
    """The share of messages that beacons are sent of, chosen by the hash of the id, alike at every node."""
    sla: Sla = Sla()
    jobs: Annotated[tuple[JobSpec, ...], Field(max_length=MAX_JOBS)] = ()
    """DAGs whose runs process its event time."""
    alerts: Alerts = Alerts()
    lookback: DurationMs = 0
    """How long before they are first applied the taps of the first version begin to read, in ms."""
    recheck: RecheckMs = 0
    """Of taps of tables that have none of their own."""
    order: Order | None = None
    """Within what the messages that overtook each other are counted: blocks are then read, which say so, and taps judge
    it."""

    @model_validator(mode="after")
    def _has_jobs_of_its_own(self, info: ValidationInfo) -> PipelineSpec:
        if info.context == _STORED:
            return self
        dags = [job.dag for job in self.jobs]
        twice = {dag for dag in dags if dags.count(dag) > 1}
        if twice:
            raise ValueError(f"expected each DAG only once in jobs, found {', '.join(sorted(twice))} twice")
        names = {node.name for node in self.nodes} | {node.name + AFTER for node in self.nodes if node.ids}
        unknown = {job.node for job in self.jobs if job.node} - names
        if unknown:
            raise ValueError(f"expected jobs to refer to nodes of this pipeline, found {', '.join(sorted(unknown))}")
        return self

    @model_validator(mode="after")
    def _is_a_graph(self, info: ValidationInfo) -> PipelineSpec:
        if info.context == _STORED:
            return self
        problem = problem_of(self.nodes) or cut_problem(self.nodes)
        if problem is not None:
            raise ValueError(problem)
        flow = Flow(self.nodes)
        if len(flow.checkpoints) > MAX_CHECKPOINTS:
            raise ValueError(f"expected up to {MAX_CHECKPOINTS} checkpoints, found {len(flow.checkpoints)}")
        delivering = sorted(name for name in flow.steps if not flow.following(name))
        unknown = sorted(self.sla.destinations.keys() - set(delivering))
        if unknown:
            raise ValueError(
                f"expected sla.destinations to refer to delivering nodes ({', '.join(delivering)}), found {unknown[0]}"
            )
        nowhere = sorted(self.sla.staleness.checkpoints.keys() - set(flow.checkpoints))
        if nowhere:
            raise ValueError(
                f"expected sla.staleness.checkpoints to refer to checkpoints of this pipeline, found {nowhere[0]}"
            )
        return self


class Definition(Strict):
    """A named, versioned directed acyclic graph of nodes with its SLA. Durations in ms.

    What follows from the fields (`graph`, `taps`, `table_taps`, `span_points`) is computed once per object. Copies and
    pickles leave it out: a copy may have other nodes, and an executor derives it again.
    """

    api_version: Literal["lagloss/v1"] = Field(alias="apiVersion")
    kind: Literal["Pipeline"]
    metadata: Metadata
    spec: PipelineSpec

    @model_validator(mode="after")
    def _has_rules_of_its_own(self, info: ValidationInfo) -> Definition:
        if info.context == _STORED:
            return self
        stale = tuple(self.spec.sla.staleness.checkpoints)
        problems = alert_problems(self.name, self.spec.nodes, self.graph, self.spec.alerts, self.spec.max_wait, stale)
        refuse((("spec", "alerts", *place), problem) for place, problem in problems)
        return self

    @model_validator(mode="after")
    def _has_taps_that_can_be_read(self, info: ValidationInfo) -> Definition:
        if info.context == _STORED:
            return self
        try:
            _ = self.all_taps
        except TapProblem as problem:
            refuse([(("spec", "nodes", self._index_of(problem.node), "taps", problem.place), str(problem))])
        return self

    @model_validator(mode="after")
    def _has_spans_that_can_be_used(self, info: ValidationInfo) -> Definition:
        if info.context == _STORED:
            return self
        try:
            _ = self.span_points
        except SpanProblem as problem:
            refuse([(("spec", "nodes", self._index_of(problem.node), "spans", problem.place), str(problem))])
        return self

    def _index_of(self, name: str) -> int:
        """Return where a node of the graph was declared: those with new ids are two nodes there."""
        declared = {name for node in self.spec.nodes for name in (node.name, node.name + AFTER) if node.ids}
        name = name.removesuffix(AFTER) if name in declared else name
        return [node.name for node in self.spec.nodes].index(name)

    @classmethod
    def of_stored(cls, document: Mapping[str, Any]) -> Definition:
        """Read a definition that was stored. Its parts were checked against each other when it was applied, which takes
        three times as long as all the rest."""
        return cls.model_validate(document, context=_STORED)

    @property
    def name(self) -> str:
        return self.metadata.name

    @cached_property
    def graph(self) -> Graph:
        """The checkpoint graph; itself computes most of what it knows when it is first needed."""
        return Graph(self)

    @cached_property
    def taps(self) -> tuple[Tap, ...]:
        """The taps of Kafka, in the order of the flow; TapProblem if the definition was stored and never checked."""
        return tuple(taps_of(self.name, self.spec.nodes, self.graph, self.spec.order))

    @cached_property
    def table_taps(self) -> tuple[TableTap, ...]:
        """The taps of tables, in the same order."""
        return tuple(table_taps_of(self.name, self.spec.nodes, self.graph, self.spec.recheck))

    @property
    def all_taps(self) -> tuple[AnyTap, ...]:
        """The taps of Kafka, then those of tables."""
        return (*self.taps, *self.table_taps)

    @cached_property
    def span_points(self) -> tuple[SpanPoint, ...]:
        """The spans that are beacons, in the order of the flow; SpanProblem if the definition was stored and never
        checked."""
        return tuple(span_points_of(self.spec.nodes, self.graph))

    @property
    def committed_by(self) -> dict[str, str]:
        """The consumer group of each destination whose messages are delivered once that group has committed them."""
        return {tap.node: tap.group for tap in self.taps if tap.group is not None and "out" in tap.places}

    @property
    def sample(self) -> int:
        """`spec.sample` as blocks and tallies say it: ids whose hash modulo 2^32 is below it are in the sample."""
        return max(1, int(self.spec.sample * SAMPLE_ALL))

    @property
    def groups(self) -> dict[str, str]:
        """The consumer group or queue of each node that names one."""
        return {node.name: node.input for node in self.spec.nodes if node.input is not None}

    @property
    def retriers(self) -> tuple[str, ...]:
        """Names of the nodes that others hand messages back to, in the order they are first named."""
        return self.graph.retriers

    def __copy__(self) -> Definition:
        return _without_derived(super().__copy__())

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Definition:
        return _without_derived(super().__deepcopy__(memo))

    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()
        return {**state, "__dict__": {name: state["__dict__"][name] for name in Definition.model_fields}}


def _without_derived(copied: Definition) -> Definition:
    # pydantic copies the whole __dict__, in which cached_property keeps its values
    for name in copied.__dict__.keys() - Definition.model_fields.keys():
        del copied.__dict__[name]
    return copied


@dataclass(frozen=True, slots=True)
class StoredPipeline:
    """One version of a definition; in force for windows that start at or after `applied_at_ms` (the first: for all)."""

    name: str
    version: int
    applied_at_ms: int
    definition: Definition

    @property
    def applied_at(self) -> str:
        """`applied_at_ms` in RFC 3339."""
        return rfc3339(self.applied_at_ms / 1_000)

    def document(self) -> PipelineDocument:
        return PipelineDocument(self.name, self.version, self.applied_at, as_document(self.definition))


class PipelineHead(Struct, frozen=True):
    """The name of a pipeline and its newest version."""

    name: str
    version: int
    applied_at: str


class PipelineDocument(PipelineHead, frozen=True):
    """A version of a pipeline's definition. `definition`: see /v1/schemas/pipeline.json of the collector."""

    definition: dict[str, Any]


def matching(pipelines: Sequence[StoredPipeline], matchers: MatcherList) -> list[StoredPipeline]:
    """Return those of these pipelines that all matchers match, by their names and labels."""
    names = reach(matchers, {stored.name: stored.definition.metadata.labels for stored in pipelines})
    return [stored for stored in pipelines if stored.name in names]


class AppliedVersion(Protocol):
    """A version of a definition. `applied_at_ms` in epoch ms."""

    @property
    def applied_at_ms(self) -> int: ...


def in_force(versions: Sequence[AppliedVersion], window_start_s: int) -> int:
    """Return the index of the version (of `versions`, oldest first) in force at a window's start; the first also holds
    before its own time."""
    later = (index for index, version in enumerate(versions) if version.applied_at_ms <= window_start_s * 1000)
    return max(later, default=0)


def parse_definition(text: str, source: str = "definition") -> Definition:
    """Return the definition in this YAML text.

    Raises:
        BadDefinition: with file (`source`), line and expectation.
    """
    return parse_yaml(Definition, text, source)


def load_definition(path: Path) -> Definition:
    """Return the definition in this file; raise `BadDefinition` if it cannot be read or is malformed."""
    return load_yaml(Definition, path)


def as_document(definition: Definition) -> dict[str, Any]:
    """Return the definition as JSON for the database; `Definition.model_validate` reads it back."""
    return definition.model_dump(mode="json", by_alias=True)
