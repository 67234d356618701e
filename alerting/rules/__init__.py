"""Alert rules: breaches, their places and texts. Pure: a rule reads a view and makes an assessment."""

from __future__ import annotations

from alerting.rules.base import Document, Rule, Unit
from alerting.rules.blind import blind_rules
from alerting.rules.budget import budget_rules
from alerting.rules.lag import lag_rules, on_time_rules
from alerting.rules.loss import loss_rules
from alerting.rules.quality import quality_rules
from alerting.rules.staleness import staleness_rules
from lagloss_server.model.definition import Definition

__all__ = ["Document", "Rule", "Unit", "rules_of"]


def rules_of(definition: Definition) -> list[Rule]:
    """Return the rules of a pipeline, each after those that inhibit it."""
    return [
        *blind_rules(definition),
        *loss_rules(definition),
        *lag_rules(definition),
        *on_time_rules(definition),
        *staleness_rules(definition),
        *budget_rules(definition),
        *quality_rules(definition),
    ]
