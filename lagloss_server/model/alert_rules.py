"""The alerting rules of a pipeline as its owner writes them: `spec.alerts`, with defaults for all that is left out.

What the rules mean is in the package `alerting.rules`. A rule that is `off` has no settings here and is `false` in
JSON. Most rules can be about single places as well: then they are a list, with the places of each entry in `at`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Final, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler, PlainSerializer, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from lagloss_server.base.fields import NUMBER, DurationMs, Name, PositiveMs, Strict, like
from lagloss_server.model.flow import Flow
from lagloss_server.model.nodes import NodeSpec
from lagloss_server.model.place import PlaceKind
from lagloss_server.model.rule_places import At, chosen, kind_of, places_of, spread, untaken
from lagloss_server.model.tables import TableSpec

Severity = Literal["critical", "warning"]
MAX_OF = 60
"""The most windows that a rule looks back over."""
MAX_ENTRIES = 100
MAX_PLACED = 200
"""The most rules about single places that a pipeline may have: each costs time whenever it is judged."""
MINUTE_MS: Final = 60_000


def _switched(value: object) -> object:
    """Convert `off` to None, and `on` to the defaults; reject an empty value."""
    if value is None:
        raise ValueError("expected on, off or the settings of the rule, found nothing")
    if value is True:
        return {}
    return None if value is False else value


def _entries(value: object) -> object:
    """Convert `off` to no entry, `on` to one with the defaults, and settings to one entry; reject an empty value."""
    if value is None:
        raise ValueError("expected on, off, the settings of the rule or a list of them, found nothing")
    if isinstance(value, bool):
        return ({},) if value else ()
    return value if isinstance(value, list | tuple) else (value,)


def _entries_document(entries: tuple[Strict, ...]) -> object:
    """Return entries as they are stored: `false` if there is none, one of the whole pipeline alone as it is."""
    documents = [entry.model_dump(mode="json", by_alias=True) for entry in entries]
    if len(documents) == 1 and not documents[0]["at"]:
        return documents[0]
    return documents or False


class _OrSwitch:
    """In the JSON Schema, a rule or a boolean: null, which is `off` in here, is not written."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        inner = {name: value for name, value in schema.items() if name != "serialization"}
        rule_or_null = handler(cast("CoreSchema", inner))
        return {
            "anyOf": [{"type": "boolean"} if schema == {"type": "null"} else schema for schema in rule_or_null["anyOf"]]
        }


class _OrEntries:
    """In the JSON Schema, a list, one entry or a boolean."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        inner = {name: value for name, value in schema.items() if name != "serialization"}
        entries = handler(cast("CoreSchema", inner))
        return {"anyOf": [{"type": "boolean"}, entries["items"], entries]}


_SWITCH = (
    BeforeValidator(_switched),
    PlainSerializer(lambda rule: False if rule is None else rule.model_dump(mode="json", by_alias=True)),
    _OrSwitch(),
)
_ENTRIES = (
    Field(max_length=MAX_ENTRIES),
    BeforeValidator(_entries),
    PlainSerializer(_entries_document),
    _OrEntries(),
)
Ratio = Annotated[float, NUMBER, Field(gt=0, le=1)]
Count = Annotated[int, NUMBER, Field(ge=0, le=1_000_000_000)]
Windows = Annotated[int, NUMBER, Field(ge=1, le=MAX_OF)]


def _whole_minutes(ms: int) -> int:
    if ms % MINUTE_MS or not MINUTE_MS <= ms <= MAX_OF * MINUTE_MS:
        raise ValueError(f"expected 1m to {MAX_OF}m in whole minutes, found {ms}ms")
    return ms


SpanMs = Annotated[DurationMs, AfterValidator(_whole_minutes)]
"""A stretch of closed windows, a minute each."""


class _OutOf(Strict):
    """A rule that wants `breaches` of the last `of` closed windows."""

    breaches: Windows = 2
    of: Windows = 3

    @model_validator(mode="after")
    def _can_be_reached(self) -> _OutOf:
        if self.breaches > self.of:
            raise ValueError(f"expected `breaches` not to exceed `of` ({self.of}), found {self.breaches}")
        return self


class _Placed(Strict):
    """A rule that can be about single places, of these kinds. `at`: their matchers; none: the whole pipeline."""

    KINDS: ClassVar[tuple[PlaceKind, ...]] = ()

    at: At = ()

    @model_validator(mode="after")
    def _has_such_places(self) -> _Placed:
        kind = kind_of(self.at)
        if kind is not None and kind not in self.KINDS:
            raise ValueError(f"expected `at` to match {' or '.join(self.KINDS)}, found {' '.join(self.at)}")
        return self


class LossPage(_OutOf):
    """When lossy windows page: `breaches` of the last `of`, with `min_messages` in total; one that lost more than
    the share `at_once`, under the same condition; or one that lost more than this number."""

    at_once: Ratio = Field(default=0.05, alias="atOnce")
    min_messages: Count = Field(default=500, alias="minMessages")
    lost_messages: Count = Field(default=500, alias="lostMessages")


class LossAlert(_Placed):
    """Windows with certain losses above `max`: a ticket each, and a `page` if the loss is serious."""

    KINDS: ClassVar[tuple[PlaceKind, ...]] = ("destination", "node", "link")

    max: Annotated[float, NUMBER, Field(ge=0, le=1)] | None = None
    page: Annotated[LossPage | None, *_SWITCH] = LossPage()


class UncertainLossAlert(_Placed):
    """Messages that are overdue or possibly lost: more than the share `max` of the last `over`."""

    KINDS: ClassVar[tuple[PlaceKind, ...]] = ("destination", "node", "link")

    max: Annotated[float, NUMBER, Field(ge=0, le=1)] | None = None
    over: SpanMs = 900_000
    severity: Severity = "warning"


class LagAlert(_OutOf, _Placed):
    """The end-to-end lag, or the lag of a destination, checkpoint, node or link against its own target."""

    KINDS: ClassVar[tuple[PlaceKind, ...]] = ("destination", "node", "link", "checkpoint")

    target: PositiveMs | None = None
    min_messages: Count = Field(default=1, alias="minMessages")
    severity: Severity = "critical"

    @model_validator(mode="after")
    def _has_a_target(self) -> LagAlert:
        kind = kind_of(self.at)
        if kind not in (None, "destination") and self.target is None:
            raise ValueError(f"expected a target for this {kind}'s lag, such as `target: 1s`, found none")
        if kind is None and self.target is not None:
            raise ValueError("expected no `target` for the end-to-end lag; set sla.lag.target instead")
        return self


class OnTimeAlert(_OutOf, _Placed):
    """The share of messages that are on time; `target` None: `sla.lag.percentile` / 100."""

    KINDS: ClassVar[tuple[PlaceKind, ...]] = ("destination",)

    target: Ratio | None = None
    min_messages: Count = Field(default=500, alias="minMessages")
    severity: Severity = "warning"


class StalenessAlert(_Placed):
    """The age of the newest event at the delivery checkpoints, or at these; `max` None: the target in `sla.staleness`.
    `severity` None: critical at deliveries, warning elsewhere."""

    KINDS: ClassVar[tuple[PlaceKind, ...]] = ("checkpoint",)

    max: PositiveMs | None = None
    severity: Severity | None = None


class TimeToLossAlert(_Placed):
    """Messages that retention will delete within this time before the node's consumer group consumes them."""

    KINDS: ClassVar[tuple[PlaceKind, ...]] = ("node",)

    within: PositiveMs = 3_600_000
    severity: Severity = "critical"


class BudgetAlert(Strict):
    """Burn rates of the error budgets of loss and on-time share; spans and severities are fixed."""

    min_messages: Count = Field(default=500, alias="minMessages")


class BlindAlert(_OutOf):
    """Windows without a verdict for lack of evidence (k of n), windows that do not close, nodes that do not report."""

    breaches: Windows = 3
    of: Windows = 5
    severity: Severity = "critical"


class _ShareAlert(_OutOf, _Placed):
    """More than a share of the messages of the last `over`, and `at_least` so many of them."""

    breaches: Windows = 1
    of: Windows = 1
    over: SpanMs = 300_000
    at_least: Annotated[int, NUMBER, Field(ge=1, le=1_000_000_000)] = Field(default=5, alias="atLeast")
    min_messages: Count = Field(default=0, alias="minMessages")
    severity: Severity = "warning"


class DuplicatesAlert(_ShareAlert):
    """Duplicates at one checkpoint, per message."""

    KINDS: ClassVar[tuple[PlaceKind, ...]] = ("node", "checkpoint")

    max: Annotated[float, NUMBER, Field(gt=0, le=1_000)] = 0.01


class DeadLettersAlert(_ShareAlert):
    """The share of messages that went to dead-letter queues."""

    KINDS: ClassVar[tuple[PlaceKind, ...]] = ("destination", "node")

    max: Ratio = 0.01


class FilteredAlert(_Placed):
    """A share of filtered messages over the last `over` that is at least `away` from its baseline (1: 100 points)."""

    KINDS: ClassVar[tuple[PlaceKind, ...]] = ("destination", "node")

    away: Ratio = 0.1
    over: SpanMs = 900_000
    severity: Severity = "warning"


class VolumeAlert(_Placed):
    """Fewer messages in the last `over` than the share `below` of the usual number."""

    KINDS: ClassVar[tuple[PlaceKind, ...]] = ("destination", "node", "link", "checkpoint")

    below: Annotated[float, NUMBER, Field(gt=0, lt=1)] = 0.5
    over: SpanMs = 900_000
    severity: Severity = "warning"


class CorruptionAlert(_Placed):
    """More than `max` messages of a window that arrived with a changed payload."""

    KINDS: ClassVar[tuple[PlaceKind, ...]] = ("link",)

    max: Count = 0
    severity: Severity = "warning"


class LostAfterwardsAlert(_Placed):
    """More than `max` messages whose rows were in a tapped table and are not any more."""

    KINDS: ClassVar[tuple[PlaceKind, ...]] = ("node",)

    max: Count = 0
    severity: Severity = "warning"


class PendingAgeAlert(_Placed):
    """Age of the oldest pending message."""

    KINDS: ClassVar[tuple[PlaceKind, ...]] = ("node", "link")

    max: PositiveMs = 300_000
    severity: Severity = "warning"


class NegativeLagAlert(_OutOf, _Placed):
    """A median lag of a checkpoint below -`max`, which means a wrong clock."""

    KINDS: ClassVar[tuple[PlaceKind, ...]] = ("checkpoint",)

    max: PositiveMs = 1_000
    severity: Severity = "warning"


class DeadlineAlert(Strict):
    """An hour without a result after the deadline of its job."""

    severity: Severity = "critical"


class RunFailedAlert(Strict):
    """An hour whose run failed, or succeeded despite a failed task (a ticket), and that no later run has repaired."""

    severity: Severity = "critical"


class OutputStaleAlert(Strict):
    """The age of the newest hour with a result; `max` None: two spans of the job plus its deadline."""

    max: PositiveMs | None = None
    severity: Severity = "critical"


class RunLateAlert(Strict):
    """A result that is later than usual by the factor `times` and by at least `least`."""

    times: Annotated[float, NUMBER, Field(gt=1, le=1_000)] = 1.5
    least: DurationMs = 60_000
    severity: Severity = "warning"


class Alerts(Strict):
    """`spec.alerts`. `upstream`: pipelines that suppress the alerts of this one while they are blind."""

    runbook: (
        Annotated[str, like(r"^https?://[!-~]+$", "an HTTP or HTTPS URL", is_shown=False, max_length=1_000)] | None
    ) = None
    resolve_after: Windows = Field(default=3, alias="resolveAfter")
    upstream: Annotated[tuple[Name, ...], Field(max_length=100)] = ()
    loss: Annotated[tuple[LossAlert, ...], *_ENTRIES] = (LossAlert(),)
    uncertain_loss: Annotated[tuple[UncertainLossAlert, ...], *_ENTRIES] = Field(
        default=(UncertainLossAlert(),), alias="uncertainLoss"
    )
    lag: Annotated[tuple[LagAlert, ...], *_ENTRIES] = (LagAlert(),)
    on_time: Annotated[tuple[OnTimeAlert, ...], *_ENTRIES] = Field(default=(OnTimeAlert(),), alias="onTime")
    staleness: Annotated[tuple[StalenessAlert, ...], *_ENTRIES] = (StalenessAlert(),)
    time_to_loss: Annotated[tuple[TimeToLossAlert, ...], *_ENTRIES] = Field(
        default=(TimeToLossAlert(),), alias="timeToLoss"
    )
    budget: Annotated[BudgetAlert | None, *_SWITCH] = BudgetAlert()
    blind: Annotated[BlindAlert | None, *_SWITCH] = BlindAlert()
    dead_letters: Annotated[tuple[DeadLettersAlert, ...], *_ENTRIES] = Field(
        default=(DeadLettersAlert(),), alias="deadLetters"
    )
    filtered: Annotated[tuple[FilteredAlert, ...], *_ENTRIES] = (FilteredAlert(),)
    volume: Annotated[tuple[VolumeAlert, ...], *_ENTRIES] = (VolumeAlert(),)
    duplicates: Annotated[tuple[DuplicatesAlert, ...], *_ENTRIES] = (DuplicatesAlert(),)
    corruption: Annotated[tuple[CorruptionAlert, ...], *_ENTRIES] = (CorruptionAlert(),)
    lost_afterwards: Annotated[tuple[LostAfterwardsAlert, ...], *_ENTRIES] = Field(
        default=(LostAfterwardsAlert(),), alias="lostAfterwards"
    )
    deadline: Annotated[DeadlineAlert | None, *_SWITCH] = DeadlineAlert()
    run_failed: Annotated[RunFailedAlert | None, *_SWITCH] = Field(default=RunFailedAlert(), alias="runFailed")
    output_stale: Annotated[OutputStaleAlert | None, *_SWITCH] = Field(default=OutputStaleAlert(), alias="outputStale")
    run_late: Annotated[RunLateAlert | None, *_SWITCH] = Field(default=RunLateAlert(), alias="runLate")
    pending_age: Annotated[tuple[PendingAgeAlert, ...], *_ENTRIES] = Field(default=(), alias="pendingAge")
    negative_lag: Annotated[tuple[NegativeLagAlert, ...], *_ENTRIES] = Field(default=(), alias="negativeLag")


PLACED: Final = tuple(
    name for name, field in Alerts.model_fields.items() if isinstance(field.default, tuple) and name != "upstream"
)
"""Fields of `Alerts` whose rules can be about single places."""
Problem = tuple[tuple[str | int, ...], str]
"""A place in `spec.alerts`, and the expectation and the finding there."""


def alert_problems(
    pipeline: str,
    nodes: Sequence[NodeSpec],
    flow: Flow,
    alerts: Alerts,
    max_wait_ms: int,
    stale_checkpoints: Sequence[str] = (),
) -> Iterator[Problem]:
    """Yield the errors in the rules of this pipeline, in the order in which they are written.

    Rules name places of their own pipeline, each once, and targets that its SLA can hold. `stale_checkpoints`: those
    with a target of staleness in the SLA.
    """
    for index, name in enumerate(alerts.upstream):
        if name == pipeline:
            yield ("upstream", index), f"expected other pipelines, found {name} itself"
    placed = 0
    for field in PLACED:
        entries = getattr(alerts, field)
        alias = Alerts.model_fields[field].alias or field
        for index, problem in untaken(entries, flow).items():
            yield (alias, index, "at"), problem
        placed += sum(place is not None for place, _ in spread(entries, flow))
    if placed > MAX_PLACED:
        yield (), f"expected up to {MAX_PLACED} rules for individual places, found {placed}"
    checkpoints = {*stale_checkpoints, *(f"{place.name}.out" for place in places_of(flow, "destination"))}
    for place, entry in spread(alerts.staleness, flow):
        if place is not None and entry.max is None and place.name not in checkpoints:
            index = alerts.staleness.index(entry)
            problem = f"expected `max` for {place.name}, since the SLA has no target for it, found none"
            yield ("staleness", index, "max"), problem
    with_groups = {node.name for node in nodes if node.has_group}
    for index, entry_of_groups in enumerate(alerts.time_to_loss):
        if entry_of_groups.at and not with_groups & {place.name for place in chosen(flow, entry_of_groups.at)}:
            label = " ".join(entry_of_groups.at)
            yield ("timeToLoss", index, "at"), f"expected a node with a `group`, found {label}"
    tapped = {node.name for node in nodes if any(isinstance(tap, TableSpec) for tap in node.taps.values())}
    for index, entry_of_tables in enumerate(alerts.lost_afterwards):
        if entry_of_tables.at and not tapped & {place.name for place in chosen(flow, entry_of_tables.at)}:
            label = " ".join(entry_of_tables.at)
            yield ("lostAfterwards", index, "at"), f"expected a node with a tapped table, found {label}"
    for index, pending in enumerate(alerts.pending_age):
        if pending.max >= max_wait_ms:
            most = f"expected less than maxWait ({max_wait_ms}ms), when a message becomes overdue"
            yield ("pendingAge", index, "max"), f"{most}, found {pending.max}ms"
