"""What alerting rules may name: places of their own pipeline, each once, and targets that its SLA can hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lagloss_server.model.alert_rules import Alerts, LagAlert
from lagloss_server.model.flow import Flow
from lagloss_server.model.nodes import NodeSpec

Problem = tuple[tuple[str | int, ...], str]
"""Where in `spec.alerts` something is wrong, and what was expected and found."""


def problems(pipeline: str, nodes: Sequence[NodeSpec], alerts: Alerts, max_wait_ms: int) -> Iterator[Problem]:
    """Everything that is wrong with the rules of this pipeline, in the order in which they are written."""
    for at, name in enumerate(alerts.upstream):
        if name == pipeline:
            yield ("upstream", at), f"expected other pipelines, found {name} itself"
    seen: set[str] = set()
    flow = Flow(nodes) if any(lag.target is not None for lag in alerts.lag) else None
    for at, lag in enumerate(alerts.lag):
        if lag.name in seen:
            yield ("lag", at), f"expected each lag rule once, found {lag.name} twice"
        seen.add(lag.name)
        if flow is not None and (problem := _place_problem(flow, lag)) is not None:
            yield ("lag", at, problem[0]), problem[1]
    pending = alerts.pending_age
    if pending is not None and pending.max >= max_wait_ms:
        most = f"expected less than maxWait ({max_wait_ms}ms), after which a message is overdue"
        yield ("pendingAge", "max"), f"{most}, found {pending.max}ms"


def _place_problem(flow: Flow, lag: LagAlert) -> tuple[str, str] | None:
    """Return the field that names a place which the pipeline does not have, and what to say of it."""
    if lag.checkpoint is not None and lag.checkpoint not in flow.checkpoints:
        return "checkpoint", f"expected a checkpoint of this pipeline, found {lag.checkpoint}"
    if lag.node is not None and lag.node not in flow.nodes:
        return "node", f"expected a node of this pipeline, found {lag.node}"
    if lag.link is not None and f"{lag.link.from_}->{lag.link.to}" not in {link.name for link in flow.links}:
        return "link", f"expected a link of this pipeline, found {lag.link.from_}->{lag.link.to}"
    return None
