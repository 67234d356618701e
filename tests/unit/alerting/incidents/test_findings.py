"""Findings of news alone, compared with findings of all windows at each closing."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from alerting.incidents.findings import Findings, PipelineSnapshot, assess, can_change
from alerting.incidents.lifecycle import KnownIncident, Transition
from alerting.rules import Rule, rules_of
from alerting.rules.assessment import Assessment
from alerting.rules.view import PipelineView
from lagloss_server.model.definition import StoredPipeline
from tests.support.alert_views import minute, rule_of, window
from tests.unit.alerting.rules.test_news import DEFINITION, change, seen

PIPELINE = StoredPipeline(DEFINITION.name, 1, 0, DEFINITION)
Known = dict[str, list[KnownIncident]]


class FailingRule:
    name = "failing"

    def assess(self, view: PipelineView) -> Assessment:
        raise ZeroDivisionError


def findings_of(view: PipelineView, known: Mapping[str, Sequence[KnownIncident]], rules: Sequence[Rule]) -> Findings:
    return assess(PipelineSnapshot(PIPELINE, {rule.name: rule for rule in rules}, view, known, read_again_s=0.0))


def apply(findings: Findings, known: Known) -> list[tuple[Any, ...]]:
    """Apply the findings to incidents; return the changes, whatever ids they have."""
    now_s = findings.snapshot.view.now_s
    changes, has_more = findings.changes(known, now_s)
    assert not has_more
    for rule, made in changes.items():
        for one in made:
            assert one.incident is not None
            others = [incident for incident in known.get(rule, []) if incident.id != one.incident]
            known[rule] = [one.after(one.incident, now_s), *others]
    return [(rule, *described(one)) for rule, made in changes.items() for one in made]


def described(change: Transition) -> tuple[Any, ...]:
    return change.kind, change.breaches.keys(), change.worst, change.value, change.why, change.revised, change.pages


def test_news_change_incidents_as_all_windows_do() -> None:
    opened_by_news = changed = 0
    for seed in range(30):
        chance = random.Random(seed)
        rules = chance.sample(
            rules_of(DEFINITION), 2
        )  # of more, one has an incident that can change at almost any time
        documents: dict[int, dict[str, Any]] = {}
        by_news: Known = {}
        by_all: Known = {}
        is_settled = False
        step = -1
        while step < 60:
            news: set[int] = set()
            for _ in range(chance.choice([1, 1, 1, 8])):  # several at once, as after an outage
                step += 1
                news |= change(chance, documents, step)
            view = replace(seen(documents, 0), now_s=minute(step + 2))
            is_limited = is_settled and not can_change(by_news, view.now_s)
            limited = replace(view, news_from_s=minute(min(news))) if is_limited else view
            made = apply(findings_of(limited, by_news, rules), by_news)
            assert made == apply(findings_of(view, by_all, rules), by_all), (seed, step)
            idle = findings_of(replace(view, news_from_s=math.inf), by_news, rules)
            assert idle.changes(by_news, view.now_s) == ({}, False), (seed, step)
            changed += len(made)
            opened_by_news += is_limited and any(kind == "opened" for _, kind, *_ in made)
            is_settled = findings_of(limited, by_news, rules).changes_nothing
            assert is_settled == findings_of(view, by_all, rules).changes_nothing, (seed, step)
    assert (opened_by_news > 10, changed > 50) == (True, True), (opened_by_news, changed)


@pytest.mark.parametrize("news_from_s", [-math.inf, minute(40)])
def test_an_uncertain_loss_among_many_new_windows_stays_open_while_older_messages_are_pending(
    news_from_s: float,
) -> None:
    documents = {at: window(DEFINITION, at) for at in range(60)}
    documents[0]["pending"] = 100
    documents[40]["lost"] = {"min": 0, "max": 200}
    view = replace(seen(documents, 0), news_from_s=news_from_s)
    changes = apply(findings_of(view, {}, [rule_of(DEFINITION, "uncertain-loss")]), {})
    assert [kind for _, kind, *_ in changes] == ["opened"]


def test_a_rule_that_raises_keeps_no_other_from_being_assessed_and_changes_nothing() -> None:
    documents: dict[int, dict[str, Any]] = {}
    change(random.Random(0), documents, 0)
    view = seen(documents, 0)
    failing: Any = FailingRule()
    findings = findings_of(view, {}, [failing, *rules_of(DEFINITION)])
    assert findings.assessments.keys() == findings_of(view, {}, rules_of(DEFINITION)).assessments.keys()
    assert [type(error) for error in findings.failures.values()] == [ZeroDivisionError]
    assert "failing" not in findings.changes({}, view.now_s)[0]
