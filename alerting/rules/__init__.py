"""Alert rules: breaches, their places and texts. Pure: a rule reads a view and makes an assessment."""

from __future__ import annotations

from collections.abc import Iterable

from alerting.rules.base import Rule, Unit
from alerting.rules.blind import blind_rules
from alerting.rules.budget import budget_rules
from alerting.rules.jobs import job_rules
from alerting.rules.lag import lag_rules, on_time_rules
from alerting.rules.loss import loss_rules
from alerting.rules.lost_afterwards import lost_afterwards_rules
from alerting.rules.quality import quality_rules
from alerting.rules.shares import share_rules
from alerting.rules.staleness import staleness_rules
from alerting.rules.time_to_loss import time_to_loss_rules
from alerting.rules.uncertain import uncertain_loss_rules
from alerting.rules.unusual import unusual_rules
from alerting.rules.windows import WindowReader
from lagloss_server.model.definition import Definition

__all__ = ["Rule", "Unit", "reader_of", "rules_of"]


def rules_of(definition: Definition) -> list[Rule]:
    """Return the rules of a pipeline, each after those that inhibit it."""
    return [
        *blind_rules(definition),
        *loss_rules(definition),
        *uncertain_loss_rules(definition),
        *lag_rules(definition),
        *on_time_rules(definition),
        *staleness_rules(definition),
        *time_to_loss_rules(definition),
        *budget_rules(definition),
        *share_rules(definition),
        *unusual_rules(definition),
        *quality_rules(definition),
        *lost_afterwards_rules(definition),
        *job_rules(definition),
    ]


def reader_of(definition: Definition, rules: Iterable[Rule] | None = None) -> WindowReader:
    """Return the reader of the numbers that a pipeline's rules need of its windows."""
    rules = rules_of(definition) if rules is None else list(rules)
    measures = [measure for rule in rules for measure in rule.reads]
    return WindowReader.of(definition.graph, measures, [name for rule in rules for name in rule.watches])
