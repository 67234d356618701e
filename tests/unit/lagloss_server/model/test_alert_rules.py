"""`spec.alerts` and `metadata.labels`: what is accepted, what the defaults are, and what a refusal names."""

from __future__ import annotations

import pytest

from alerting.rules import rules_of
from lagloss_server.base.errors import BadDefinition
from lagloss_server.model.alert_rules import Alerts
from lagloss_server.model.definition import Definition, as_document, parse_definition

HEAD = "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: clicks, labels: {team: checkout}}\nspec:\n"
NODES = HEAD + "  nodes:\n    - {name: a, to: [b]}\n    - {name: b}\n"
ALERTS = NODES + "  alerts:\n"
EVERYTHING = (
    ALERTS
    + """    runbook: https://wiki.example/lagloss
    resolveAfter: 2
    upstream: [orders]
    loss:
      - {page: {breaches: 1, of: 1, atOnce: 0.5, minMessages: 10, lostMessages: 50}}
      - {at: [node=~.*, node!=b], max: 0.1, page: off}
    uncertainLoss: {over: 5m}
    lag:
      - {breaches: 2, of: 3}
      - {at: checkpoint=b.out, target: 3s}
      - {at: node=a, target: 500ms}
      - {at: link=a->b, target: 1s}
    onTime: {target: 0.9}
    staleness: off
    budget: on
    blind: {breaches: 5, of: 10, severity: warning}
    duplicates: on
    deadLetters: {max: 0.5}
    filtered: [{away: 0.2}, {at: node=b}]
    volume: {below: 0.1, over: 1h, severity: critical}
    corruption: {max: 3}
    pendingAge: {max: 5m}
    negativeLag: {}
"""
)


def alerts(text: str) -> Alerts:
    return parse_definition(text).spec.alerts


def test_defaults_are_those_of_the_docs() -> None:
    found = alerts(NODES)
    assert found == Alerts()
    (loss,) = found.loss
    assert loss.page is not None
    assert (loss.page.breaches, loss.page.of, loss.page.at_once) == (2, 3, 0.05)
    assert (loss.page.min_messages, loss.page.lost_messages) == (500, 500)
    assert [lag.at for lag in found.lag] == [()]
    spans = [each.over for (each,) in (found.uncertain_loss, found.dead_letters, found.filtered, found.volume)]
    assert spans == [900_000, 300_000, 900_000, 900_000]
    assert (found.dead_letters[0].max, found.duplicates[0].max, found.filtered[0].away) == (0.01, 0.01, 0.1)
    assert (found.volume[0].below, found.corruption[0].max) == (0.5, 0)
    assert found.blind is not None
    assert (found.blind.breaches, found.blind.of, found.resolve_after) == (3, 5, 3)
    assert (found.pending_age, found.negative_lag) == ((), ())


def test_the_rules_have_their_names_and_those_that_are_off_are_not_there() -> None:
    budgets = [f"budget/{objective}/{span}" for objective in ("loss", "on-time") for span in ("1h", "6h", "3d")]
    blind = ["blind/closing", "blind/evidence", "blind/reports"]
    lost = ["loss", "uncertain-loss"]
    quality = ["dead-letters", "duplicates", "filtered", "volume", "corruption"]
    default = [*blind, *lost, "lag", "on-time", "staleness", *budgets, *quality]
    assert [rule.name for rule in rules_of(parse_definition(NODES))] == default
    lost = ["loss", "loss/node/a", "uncertain-loss"]
    lags = ["lag", "lag/checkpoint/b.out", "lag/node/a", "lag/link/a->b"]
    quality = ["dead-letters", "duplicates", "filtered", "filtered/node/b", "volume", "corruption"]
    more = ["pending-age", "negative-lag"]
    everything = [*blind, *lost, *lags, "on-time", *budgets, *quality, *more]
    assert [rule.name for rule in rules_of(parse_definition(EVERYTHING))] == everything
    names = [field.alias or name for name, field in Alerts.model_fields.items()]
    rules = [name for name in names if name not in ("runbook", "resolveAfter", "upstream")]
    silent = ALERTS + "".join(f"    {name}: off\n" for name in rules)
    assert rules_of(parse_definition(silent)) == []


def test_a_budget_follows_its_objective_and_a_target_of_everything_leaves_none() -> None:
    def budgets(text: str) -> set[str]:
        names = (rule.name for rule in rules_of(parse_definition(text)))
        return {name.split("/")[1] for name in names if name.startswith("budget/")}

    assert budgets(ALERTS + "    loss: off\n") == {"on-time"}
    assert budgets(ALERTS + "    onTime: off\n") == {"loss"}
    assert budgets(ALERTS + "    onTime: {target: 1}\n") == {"loss"}
    assert budgets(NODES + "  sla: {loss: {max: 0}}\n") == {"on-time"}


def test_no_rule_is_inhibited_by_itself_or_by_one_that_is_judged_after_it() -> None:
    names = [rule.name for rule in rules_of(parse_definition(EVERYTHING))]
    for rule in rules_of(parse_definition(EVERYTHING)):
        assert set(rule.inhibited_by) <= set(names[: names.index(rule.name)])


@pytest.mark.parametrize("text", [NODES, EVERYTHING, ALERTS + "    lag: off\n    loss: off\n    duplicates: {}\n"])
def test_a_stored_definition_reads_back_equal(text: str) -> None:
    definition = parse_definition(text)
    assert Definition.model_validate(as_document(definition)) == definition


def test_a_definition_without_rules_and_labels_has_the_defaults() -> None:
    document = as_document(parse_definition(NODES))
    del document["spec"]["alerts"], document["metadata"]["labels"]
    bare = Definition.model_validate(document)
    assert (bare.spec.alerts, bare.metadata.labels) == (Alerts(), {})


def test_labels_are_kept() -> None:
    assert parse_definition(NODES).metadata.labels == {"team": "checkout"}


@pytest.mark.parametrize(
    ("lines", "line", "expected"),
    [
        ("    loss: {page: {breaches: 4}}\n", 9, "expected `breaches` not to exceed `of` (3), found 4"),
        ("    loss:\n      page:\n        breaches: 2\n        of: 61\n", 12, "less than or equal to 60"),
        ("    loss:\n      page:\n        breaches: 0\n", 11, "greater than or equal to 1"),
        ("    loss:\n      page:\n        lostMessages: -1\n", 11, "greater than or equal to 0"),
        ("    loss: {page: {of: 4}, breaches: 3}\n", 9, "breaches"),
        ("    loss:\n", 9, "expected on, off, the settings of the rule or a list of them, found nothing"),
        ("    budget:\n", 9, "expected on, off or the settings of the rule, found nothing"),
        ("    loss: maybe\n", 9, "expected a mapping"),
        ("    loss:\n      - {}\n      - at: checkpoint=a.in\n", 11, "to match destination or node or link"),
        (
            "    loss:\n      - at: [node=a, link=a->b]\n",
            10,
            "expected matchers on a single label, found link and node",
        ),
        ("    loss: {at: team=a}\n", 9, "expected a matcher on one of destination, node, link, checkpoint, found team"),
        ("    loss: {at: 'node=~('}\n", 9, "expected an RE2 regular expression"),
        ("    deadLetters: [{at: node=~.*}, {at: node=a}]\n", 9, "expected each place only once, found node=a twice"),
        ("    deadLetters: {over: 90s}\n", 9, "expected 1m to 60m in whole minutes, found 90000ms"),
        ("    volume: {below: 1}\n", 9, "less than 1"),
        ("    staleness: {at: checkpoint=a.out}\n", 9, "expected `max` for a.out, since the SLA has no target for it"),
        ("    loss: {minMesages: 1}\n", 9, "minMesages"),
        ("    lag: {severity: page}\n", 9, "'critical' or 'warning'"),
        ("    lag:\n", 9, "expected on, off, the settings of the rule or a list of them, found nothing"),
        ("    lag:\n      - {}\n      - at: node=nowhere\n        target: 1s\n", 11, "found node=nowhere"),
        ("    lag:\n      - {}\n      - at: checkpoint=a.out:b\n        target: 1s\n", 11, "found checkpoint=a.out:b"),
        ("    lag:\n      - target: 1s\n        at: link=b->a\n", 11, "found link=b->a"),
        ("    lag:\n      - at: node=a\n", 10, "expected a target"),
        ("    lag:\n      - target: 1s\n", 10, "sla.lag.target"),
        ("    lag:\n      - {node: a, target: 1s}\n", 10, "node"),
        ("    lag:\n      - at: node=a\n        target: 0s\n", 11, "expected a duration above 0"),
        ("    lag:\n      - {}\n      - {of: 4}\n", 11, "found the whole pipeline twice"),
        ("    onTime: {target: 0}\n", 9, "greater than 0"),
        ("    onTime: {target: 95}\n", 9, "less than or equal to 1"),
        ("    pendingAge:\n      max: 15m\n", 10, "expected less than maxWait"),
        ("    negativeLag: {max: 0ms}\n", 9, "expected a duration above 0"),
        ("    duplicates: {max: -1}\n", 9, "greater than 0"),
        ("    upstream:\n      - orders\n      - clicks\n", 11, "found clicks itself"),
        ("    runbook: javascript:alert(1)\n", 9, "expected an HTTP or HTTPS URL, found text"),
        ("    resolveAfter: 0\n", 9, "greater than or equal to 1"),
    ],
)
def test_a_refusal_names_line_and_expectation(lines: str, line: int, expected: str) -> None:
    with pytest.raises(BadDefinition) as refused:
        parse_definition(ALERTS + lines, "clicks.yaml")
    assert str(refused.value).startswith(f"clicks.yaml:{line}: ")
    assert expected in str(refused.value)


@pytest.mark.parametrize("label", ["severity: high", "1st: a", "team: 5", 'team: "a\\nb"'])
def test_labels_that_are_not_free_or_not_text_are_refused(label: str) -> None:
    with pytest.raises(BadDefinition, match=r"clicks.yaml:3: metadata.labels"):
        parse_definition(NODES.replace("team: checkout", label), "clicks.yaml")
