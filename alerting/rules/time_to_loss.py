"""Time to loss: how soon retention deletes messages that a node's consumer group has not taken in.

The aggregator judges each partition at the velocity of the last minutes; here is which of its findings are a breach: a
first message that is deleted unread within the target, or one that was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.base import PlacedRule, Unit
from alerting.rules.counting import by_the_clock
from alerting.rules.measures import Measure, covered_by, placed_among
from alerting.rules.view import PipelineView
from lagloss_server.base import format as fmt
from lagloss_server.groups.progress import GroupAtRisk, PartitionNow
from lagloss_server.model.definition import Definition
from lagloss_server.model.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToLoss(PlacedRule):
    """The value is the time (s) until the first message is deleted unread, 0 where some were; `nodes`: those whose
    groups it is about."""

    kind: str = "time-to-loss"
    unit: ClassVar[Unit] = "s"
    reads: ClassVar[tuple[Measure, ...]] = ()
    higher_is_worse: ClassVar[bool] = False

    nodes: frozenset[str]

    @property
    def what(self) -> str:
        return "time until messages are deleted unread" + ("" if self.place is None else f" at {self.place}")

    def assess(self, view: PipelineView) -> Assessment:
        read = [partition for partition in view.partitions if partition.of.node in self.nodes]
        groups = sorted(self._at_risk(view, read), key=lambda group: group.loss_s)
        if not groups:
            is_known = any(partition.knows_retention or partition.is_uncounted for partition in read) and all(
                map(_is_harmless, read)
            )
            return by_the_clock(view, self.target if is_known else None, False)
        texts = [group.words(view.now_s, _utc) for group in groups]
        places = tuple(BreachPlace("node", group.node, None, text) for group, text in zip(groups, texts, strict=True))
        value = 0.0 if any(group.deleted for group in groups) else max(0.0, groups[0].loss_s - view.now_s)
        return by_the_clock(view, value, True, places, "; ".join(texts))

    def due_s(self, view: PipelineView) -> float:
        return math.inf  # partitions at risk are found for all pipelines at once: see `pre_check`

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        return []

    def text(self, value: float) -> str:
        soon, limit = fmt.against(fmt.duration_s, value, self.target)
        return f"messages will be deleted unread in {soon}, limit {limit}"

    def _at_risk(self, view: PipelineView, read: Iterable[PartitionNow]) -> list[GroupAtRisk]:
        """Return the groups with a partition whose messages are deleted within the target, or were."""
        by_group: dict[tuple[str, str], list[PartitionNow]] = {}
        for partition in read:
            is_soon = partition.loss_ms is not None and partition.loss_ms / 1_000 - view.now_s < self.target
            if is_soon or partition.deleted:
                by_group.setdefault((partition.of.node, partition.of.group), []).append(partition)
        return [GroupAtRisk.of(partitions, view.now_s) for partitions in by_group.values()]


def time_to_loss_rules(definition: Definition) -> list[TimeToLoss]:
    """Return the rule of all consumer groups, and one of each whose node has its own settings; none where the
    definition names no group."""
    kind, with_groups = "time-to-loss", {node.name for node in definition.spec.nodes if node.has_group}
    return [
        TimeToLoss(
            place=place,
            severity=settings.severity,
            target=settings.within / 1_000,
            nodes=nodes,
            inhibited_by=covered_by(definition, kind, place),
        )
        for place, settings, nodes in placed_among(definition, kind, with_groups)
    ]


def _is_harmless(partition: PartitionNow) -> bool:
    """Return whether nothing is at risk for all that is known, or the group keeps up: of a hundred partitions per round
    the record that waits is read, and not of all. Where its commits do not say what waits, nothing is known to."""
    return partition.knows_retention or partition.status == "ok" or partition.is_uncounted


def _utc(at_s: float) -> str:
    return f"{fmt.clock(at_s)} UTC"
