"""Pipeline definitions: the YAML a pipeline's owner writes, checked, with errors that name file, line and
expectation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import networkx as nx
from pydantic import AfterValidator, Field, model_validator

from lagloss.alert_rules import Alerts
from lagloss.fields import DurationMs, Name, Strict, refuse
from lagloss.wire import SAMPLE_ALL
from lagloss.yaml_files import load_yaml, parse_yaml

MAX_CHECKPOINTS = 200
OWN_LABELS = frozenset({"pipeline", "rule", "kind", "severity"})
"""Labels that every incident has: a definition's may not stand in their way."""


def _are_free(labels: dict[str, str]) -> dict[str, str]:
    taken = sorted(OWN_LABELS & labels.keys())
    if taken:
        raise ValueError(f"expected labels other than {', '.join(sorted(OWN_LABELS))}, found {', '.join(taken)}")
    return labels


LabelName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,99}$")]
LabelValue = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{0,200}$")]
Labels = Annotated[dict[LabelName, LabelValue], Field(max_length=50), AfterValidator(_are_free)]


class Metadata(Strict):
    """`labels` go with the pipeline's incidents, for routes and silences."""

    name: Name
    description: str = ""
    labels: Labels = Field(default_factory=dict)


GroupId = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,255}$")]
"""As Kafka's clients call it: `group.id`."""


class NodeSpec(Strict):
    """A step of the pipeline: its next nodes, whether each message goes to all of them, and its retrier. `group` is the
    Kafka consumer group of its processes, of which the consumer lag is to be watched."""

    name: Name
    to: tuple[Name, ...] = ()
    copy_: Literal["all"] | None = Field(default=None, alias="copy")
    retries: Name | None = None
    group: GroupId | None = None
    description: str = ""


class LossSla(Strict):
    max: Annotated[float, Field(ge=0, le=1)] = 0.01


class LagSla(Strict):
    percentile: Annotated[float, Field(gt=0, le=100)] = 95
    target: DurationMs = 5_000


class StalenessSla(Strict):
    max: DurationMs = 300_000


class Sla(Strict):
    loss: LossSla = LossSla()
    lag: LagSla = LagSla()
    staleness: StalenessSla = StalenessSla()


class PipelineSpec(Strict):
    nodes: Annotated[tuple[NodeSpec, ...], Field(min_length=1)]
    grace: DurationMs = 60_000
    max_wait: DurationMs = Field(default=900_000, alias="maxWait")
    sample: Annotated[float, Field(gt=0, le=1)] = 1
    """The share of messages that beacons are sent of, chosen by the hash of the id, alike at every node."""
    sla: Sla = Sla()
    alerts: Alerts = Alerts()

    @model_validator(mode="after")
    def _is_a_graph(self) -> PipelineSpec:
        problem = _graph_problem(self.nodes)
        if problem is not None:
            raise ValueError(problem)
        return self


class Definition(Strict):
    """A named, versioned directed acyclic graph of nodes with its SLA. Durations in ms."""

    api_version: Literal["lagloss/v1"] = Field(alias="apiVersion")
    kind: Literal["Pipeline"]
    metadata: Metadata
    spec: PipelineSpec

    @model_validator(mode="after")
    def _has_rules_of_its_own(self) -> Definition:
        from lagloss.alert_checks import problems  # knows the graph of a definition, and so this module

        refuse((("spec", "alerts", *place), problem) for place, problem in problems(self))
        return self

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def sample(self) -> int:
        """`spec.sample` as blocks and tallies say it: ids whose hash modulo 2^32 is below it are in the sample."""
        return max(1, int(self.spec.sample * SAMPLE_ALL))

    @property
    def groups(self) -> dict[str, str]:
        """The consumer group of each node that names one."""
        return {node.name: node.group for node in self.spec.nodes if node.group is not None}

    @property
    def retriers(self) -> tuple[str, ...]:
        """Names of the nodes that others hand messages back to, in the order they are first named."""
        return tuple(dict.fromkeys(node.retries for node in self.spec.nodes if node.retries))


def _graph_problem(nodes: Sequence[NodeSpec]) -> str | None:
    """What keeps these nodes from being a pipeline, or None."""
    names = [node.name for node in nodes]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        return f"expected each node once, found {', '.join(sorted(twice))} twice"
    groups = [node.group for node in nodes if node.group is not None]
    shared = {group for group in groups if groups.count(group) > 1}
    if shared:  # its lag would be told of each of them
        return f"expected each consumer group at one node, found {', '.join(sorted(shared))} at several"
    retriers = {node.retries for node in nodes if node.retries}
    for node in nodes:
        if len(set(node.to)) < len(node.to):
            return f"expected each next node once, found `to` of {node.name} naming one twice"
        unknown = [name for name in node.to if name not in names or name in retriers]
        if unknown:
            return f"expected `to` of {node.name} to name nodes of this pipeline, found {', '.join(unknown)}"
        if node.name in retriers and (node.to or node.retries):
            return f"expected the retrier {node.name} to have neither `to` nor `retries`"
        if node.copy_ and len(node.to) < 2:
            return f"expected `copy: all` only on a node with several next nodes, found it on {node.name}"
    steps = [node for node in nodes if node.name not in retriers]
    graph = nx.DiGraph((node.name, after) for node in steps for after in node.to)
    graph.add_nodes_from(node.name for node in steps)
    if not nx.is_directed_acyclic_graph(graph):
        loop = " -> ".join([edge[0] for edge in nx.find_cycle(graph)])
        return f"expected no cycles, found {loop} leading back to its start"
    sources = [name for name in graph if graph.in_degree(name) == 0]
    if len(sources) != 1:
        return f"expected exactly one node without incoming link, found {', '.join(sources) or 'none'}"
    # in, filtered and dead of each node, one out a next node (or one in all), the hand-over to and from a retrier
    checkpoints = sum(3 + max(1, len(node.to)) + 2 * bool(node.retries) for node in steps) + 2 * len(retriers)
    if checkpoints > MAX_CHECKPOINTS:
        return f"expected at most {MAX_CHECKPOINTS} checkpoints, found {checkpoints}"
    return None


def parse_definition(text: str, source: str = "definition") -> Definition:
    """The definition in this YAML text.

    Raises:
        BadDefinition: with file (`source`), line and what was expected.
    """
    return parse_yaml(Definition, text, source)


def load_definition(path: Path) -> Definition:
    """The definition in this file; `BadDefinition` where it cannot be read or is none."""
    return load_yaml(Definition, path)


def as_document(definition: Definition) -> dict[str, Any]:
    """The definition as JSON for the database; `Definition.model_validate` reads it back."""
    return definition.model_dump(mode="json", by_alias=True)
