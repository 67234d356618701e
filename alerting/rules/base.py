"""Protocol of alert rules, and what those about places have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.measures import Measure
from alerting.rules.view import PipelineView
from lagloss_server.model.alert_rules import Severity
from lagloss_server.model.place import Place
from lagloss_server.model.window import Window

Unit = Literal["ratio", "ms", "s", "times", "messages"]


class Rule(Protocol):
    """A rule of one pipeline, or of one of its places.

    `severity`: that of its incidents, but for breaches that it finds worth a ticket only. `inhibited_by`: names of
    rules of the same pipeline whose open incident, of no lower severity, says all that one of this rule would: one page
    for one fault. `reads`: what it reads of windows; `watches`: checkpoints whose newest minutes it compares.
    """

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def severity(self) -> Severity: ...
    @property
    def what(self) -> str: ...
    @property
    def unit(self) -> Unit: ...
    @property
    def target(self) -> float: ...
    @property
    def higher_is_worse(self) -> bool: ...
    @property
    def inhibited_by(self) -> tuple[str, ...]: ...
    @property
    def reads(self) -> Iterable[Measure]: ...
    @property
    def watches(self) -> Iterable[str]: ...

    def assess(self, view: PipelineView) -> Assessment:
        """Assess the pipeline as it is now."""
        ...

    def due_s(self, view: PipelineView) -> float:
        """Return the earliest moment (epoch s) at which the rule may find a breach that it does not find in this view,
        though no window is closed and no report comes; inf if it goes by windows alone."""
        ...

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        """Return the places of the breach, worst first. `breached`: documents of the newest breached windows, oldest
        first."""
        ...

    def text(self, value: float) -> str:
        """Format a value against the target for people: `3.2 % of messages lost, target 1 %`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRule:
    """Common part of rules that are of a pipeline (`place` None) or of one of its places; see `Rule`."""

    higher_is_worse: ClassVar[bool] = True

    kind: str
    severity: Severity
    target: float
    place: Place | None = None
    watches: tuple[str, ...] = ()
    inhibited_by: tuple[str, ...] = ()

    def due_s(self, view: PipelineView) -> float:
        return math.inf

    @property
    def name(self) -> str:
        return self.kind if self.place is None else self.place.rule(self.kind)
