"""The alerting rules of a pipeline as its owner writes them: `spec.alerts`, with defaults for all that is left out.

What the rules mean is in the package `alerting.rules`. A rule that is `off` is None here and `false` in JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler, PlainSerializer, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from lagloss_server.fields import DurationMs, Name, PositiveMs, Strict
from lagloss_server.model.flow import Flow
from lagloss_server.model.nodes import NodeSpec

Severity = Literal["critical", "warning"]
MAX_OF = 60
"""The most windows that a rule looks back over for its k of n."""
MAX_LAGS = 100
HOUR_MS = 3_600_000
DAY_MS = 86_400_000


def _switched(value: object) -> object:
    """Convert `off` to None, and `on` to the defaults; reject an empty value."""
    if value is None:
        raise ValueError("expected on, off or the rule's settings, found nothing")
    if value is True:
        return {}
    return None if value is False else value


class _OrSwitch:
    """In the JSON Schema, a rule or a boolean: null, which is `off` in here, is not written."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        inner = {name: value for name, value in schema.items() if name != "serialization"}
        rule_or_null = handler(cast("CoreSchema", inner))
        return {"anyOf": [{"type": "boolean"} if each == {"type": "null"} else each for each in rule_or_null["anyOf"]]}


_SWITCH = (
    BeforeValidator(_switched),
    PlainSerializer(lambda rule: False if rule is None else rule.model_dump(mode="json", by_alias=True)),
    _OrSwitch(),
)
Ratio = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0, le=1_000_000_000)]
Windows = Annotated[int, Field(ge=1, le=MAX_OF)]


class _OutOf(Strict):
    """A rule that wants `breaches` of the last `of` closed windows."""

    breaches: Windows = 2
    of: Windows = 3

    @model_validator(mode="after")
    def _can_be_reached(self) -> _OutOf:
        if self.breaches > self.of:
            raise ValueError(f"expected breaches to be at most of ({self.of}), found {self.breaches}")
        return self


def _up_to_a_day(ms: int) -> int:
    if not 60_000 <= ms <= DAY_MS:
        raise ValueError(f"expected a duration from 1m to 1d, found {ms}ms")
    return ms


class LossAlert(_OutOf):
    """Windows with verdict `loss`; `at_once` is a loss ratio that pages for one window."""

    at_once: Ratio = Field(default=0.05, alias="atOnce")
    min_messages: Count = Field(default=500, alias="minMessages")
    ticket_over: Annotated[DurationMs, AfterValidator(_up_to_a_day)] = Field(default=HOUR_MS, alias="ticketOver")
    severity: Severity = "critical"


class LinkName(Strict):
    from_: Name = Field(alias="from")
    to: Name


class LagAlert(_OutOf):
    """The end-to-end lag, or that of a checkpoint, node or link against a target of its own."""

    checkpoint: str | None = None
    node: Name | None = None
    link: LinkName | None = None
    target: PositiveMs | None = None
    min_messages: Count = Field(default=1, alias="minMessages")
    severity: Severity = "critical"

    @model_validator(mode="after")
    def _is_of_one_place(self) -> LagAlert:
        places = [name for name in ("checkpoint", "node", "link") if getattr(self, name) is not None]
        if len(places) > 1:
            raise ValueError(f"expected one of checkpoint, node and link, found {' and '.join(places)}")
        if places and self.target is None:
            raise ValueError(f"expected a target for the lag of this {places[0]}, such as `target: 1s`, found none")
        if not places and self.target is not None:
            raise ValueError("expected no target, which is sla.lag.target for the end-to-end lag, found one")
        return self

    @property
    def name(self) -> str:
        """The rule's name: `lag`, `lag/checkpoint/ga.out`, `lag/node/mid` or `lag/link/a->b`."""
        if self.link is not None:
            return f"lag/link/{self.link.from_}->{self.link.to}"
        if self.node is not None:
            return f"lag/node/{self.node}"
        return "lag" if self.checkpoint is None else f"lag/checkpoint/{self.checkpoint}"


class OnTimeAlert(_OutOf):
    """The share of messages that are on time; `target` None: `sla.lag.percentile` / 100."""

    target: Ratio | None = None
    min_messages: Count = Field(default=500, alias="minMessages")
    severity: Severity = "warning"


class StalenessAlert(Strict):
    """`sla.staleness.max`, of each delivery checkpoint."""

    severity: Severity = "critical"


class BudgetAlert(Strict):
    """Burn rates of the error budgets of loss and on-time share; spans and severities are fixed."""

    min_messages: Count = Field(default=500, alias="minMessages")


class BlindAlert(_OutOf):
    """`unknown` for reasons of evidence in k of n; with it, windows that do not close and nodes that do not report."""

    breaches: Windows = 3
    of: Windows = 5
    severity: Severity = "critical"


class DuplicatesAlert(_OutOf):
    """Duplicates at one checkpoint, per message."""

    max: Annotated[float, Field(gt=0, le=1_000)] = 0.01
    min_messages: Count = Field(default=500, alias="minMessages")
    severity: Severity = "warning"


class DeadLettersAlert(_OutOf):
    """The share of messages that went to dead-letter queues."""

    max: Ratio = 0.01
    min_messages: Count = Field(default=500, alias="minMessages")
    severity: Severity = "warning"


class PendingAgeAlert(Strict):
    """Age of the oldest pending message."""

    max: PositiveMs = 300_000
    severity: Severity = "warning"


class NegativeLagAlert(_OutOf):
    """The median lag of a checkpoint below -`max`: a clock that is wrong."""

    max: PositiveMs = 1_000
    severity: Severity = "warning"


def _lags_switched(value: object) -> object:
    if value is None:
        raise ValueError("expected on, off or a list of lag rules, found nothing")
    if value is True:
        return [{}]
    return [] if value is False else value


class Alerts(Strict):
    """`spec.alerts`. `upstream`: pipelines whose blindness silences this one's alerts."""

    runbook: Annotated[str, Field(pattern=r"^https?://[!-~]+$", max_length=1_000)] | None = None
    resolve_after: Windows = Field(default=3, alias="resolveAfter")
    upstream: Annotated[tuple[Name, ...], Field(max_length=100)] = ()
    loss: Annotated[LossAlert | None, *_SWITCH] = LossAlert()
    lag: Annotated[tuple[LagAlert, ...], Field(max_length=MAX_LAGS), BeforeValidator(_lags_switched)] = (LagAlert(),)
    on_time: Annotated[OnTimeAlert | None, *_SWITCH] = Field(default=OnTimeAlert(), alias="onTime")
    staleness: Annotated[StalenessAlert | None, *_SWITCH] = StalenessAlert()
    budget: Annotated[BudgetAlert | None, *_SWITCH] = BudgetAlert()
    blind: Annotated[BlindAlert | None, *_SWITCH] = BlindAlert()
    duplicates: Annotated[DuplicatesAlert | None, *_SWITCH] = None
    dead_letters: Annotated[DeadLettersAlert | None, *_SWITCH] = Field(default=None, alias="deadLetters")
    pending_age: Annotated[PendingAgeAlert | None, *_SWITCH] = Field(default=None, alias="pendingAge")
    negative_lag: Annotated[NegativeLagAlert | None, *_SWITCH] = Field(default=None, alias="negativeLag")


Problem = tuple[tuple[str | int, ...], str]
"""A place in `spec.alerts`, and the expectation and the finding there."""


def alert_problems(pipeline: str, nodes: Sequence[NodeSpec], alerts: Alerts, max_wait_ms: int) -> Iterator[Problem]:
    """Yield the errors in the rules of this pipeline, in the order in which they are written.

    Rules name places of their own pipeline, each once, and targets that its SLA can hold.
    """
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
    """Return the field that names a place which the pipeline does not have, and the error message."""
    if lag.checkpoint is not None and lag.checkpoint not in flow.checkpoints:
        return "checkpoint", f"expected a checkpoint of this pipeline, found {lag.checkpoint}"
    if lag.node is not None and lag.node not in flow.nodes:
        return "node", f"expected a node of this pipeline, found {lag.node}"
    if lag.link is not None and f"{lag.link.from_}->{lag.link.to}" not in {link.name for link in flow.links}:
        return "link", f"expected a link of this pipeline, found {lag.link.from_}->{lag.link.to}"
    return None
