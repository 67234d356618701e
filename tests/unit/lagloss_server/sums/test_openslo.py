"""Targets as OpenSLO: valid by its schema, and saying what the definition promises."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.model.definition import StoredPipeline, parse_definition
from lagloss_server.sums.openslo import as_yaml, dns_name, openslo
from tests.support.openslo_schema import SCHEMA
from tests.support.window_documents import CHAIN, CLICKS

VALID = jsonschema_rs.validator_for(SCHEMA)


def stored(text: str = CLICKS, version: int = 3) -> StoredPipeline:
    definition = parse_definition(text)
    return StoredPipeline(definition.name, version, 0, definition)


def read(*pipelines: StoredPipeline) -> list[dict[str, Any]]:
    """The objects as they are read back, each of them valid."""
    found = list(yaml.safe_load_all(as_yaml(openslo(pipelines))))
    for each in found:
        VALID.validate(each)
    return found


def named(found: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == kind}


def test_a_pipeline_is_a_service_with_an_objective_for_loss_and_one_for_lateness() -> None:
    found = read(stored(CHAIN.replace("{name: chain}", "{name: chain, labels: {team: web, _x: y}}")))
    (service,) = (each for each in found if each["kind"] == "Service")
    assert service["metadata"] == {
        "name": "chain",
        "displayName": "chain",
        "labels": {"team": "web"},  # OpenSLO has no key that begins with _
        "annotations": {"lagloss/pipeline": "chain", "lagloss/version": "3"},
    }
    slos = named(found, "SLO")
    assert {name: spec["objectives"][0]["target"] for name, spec in slos.items()} == {
        "chain-loss": 0.99, "chain-on-time": 0.95,
    }  # fmt: skip
    assert all(spec["service"] == "chain" and spec["indicatorRef"] in named(found, "SLI") for spec in slos.values())
    assert slos["chain-on-time"]["objectives"][0]["displayName"] == "messages delivered within 5 s"
    assert slos["chain-loss"]["timeWindow"] == [{"duration": "30d", "isRolling": True}]


def test_indicators_are_queries_of_the_aggregators_metrics() -> None:
    slis = named(read(stored(CHAIN)), "SLI")
    loss, on_time = (slis[f"chain-{name}"]["ratioMetric"] for name in ("loss", "on-time"))
    assert loss["bad"]["metricSource"]["spec"]["query"] == (
        'sum(lagloss_window_lost_messages{pipeline="chain",bound="min"})'
    )
    assert loss["total"]["metricSource"]["spec"]["query"] == 'sum(lagloss_window_messages{pipeline="chain"})'
    assert on_time["good"]["metricSource"]["spec"]["query"].startswith(
        'sum(lagloss_window_on_time_ratio{pipeline="chain"}) * (sum(lagloss_destination_due_messages{'
    )


def test_every_metric_of_a_query_is_one_that_the_aggregator_has() -> None:
    from aggregator.results.metrics import RESULTS

    names = {metric.name for metric in RESULTS}
    text = as_yaml(openslo([stored()]))
    assert {word for word in text.replace("{", " ").replace("(", " ").split() if word.startswith("lagloss_")} <= names


def test_several_destinations_have_objectives_by_their_own_targets() -> None:
    text = CLICKS + "    destinations: {conn-fb: {loss: {max: 0.001}, lag: {percentile: 99, target: 3s}}}\n"
    found = read(stored(text.replace("sla: {loss: {max: 0.01}, lag: {percentile: 95, target: 1200ms}}", "sla:")))
    slos = [each for each in found if each["kind"] == "SLO"]
    by_destination = {
        (
            each["metadata"]["annotations"].get("lagloss/destination"),
            each["spec"]["objectives"][0]["displayName"],
        ): each["spec"]["objectives"][0]["target"]
        for each in slos
    }
    assert by_destination == {
        (None, "messages not lost"): 0.99,
        (None, "messages delivered within 5 s"): 0.95,
        ("conn-ga", "messages not lost"): 0.99,
        ("conn-ga", "messages delivered within 5 s"): 0.95,
        ("conn-fb", "messages not lost"): 0.999,
        ("conn-fb", "messages delivered within 3 s"): 0.99,
    }


def test_burn_rates_are_the_policies_of_objectives_whose_rules_are_on() -> None:
    found = read(stored(CHAIN), stored(CHAIN.replace("chain", "other") + "  alerts: {budget: off}\n"))
    slos = named(found, "SLO")
    policies = [each["alertPolicyRef"] for each in slos["chain-loss"]["alertPolicies"]]
    assert policies == ["lagloss-burn-rate-1h", "lagloss-burn-rate-6h", "lagloss-burn-rate-3d"]
    assert "alertPolicies" not in slos["other-loss"]
    assert list(named(found, "AlertPolicy")) == policies  # once, however many refer to them
    condition = named(found, "AlertPolicy")["lagloss-burn-rate-1h"]["conditions"][0]["spec"]
    assert (condition["severity"], condition["condition"]["threshold"]) == ("critical", 14.4)
    assert list(named(found, "AlertNotificationTarget")) == ["lagloss"]


def test_a_target_of_100_percent_is_noted_since_openslo_cannot_say_it() -> None:
    found = read(stored(CHAIN.replace("max: 0.01", "max: 0")))
    assert list(named(found, "SLO")) == ["chain-on-time"]
    assert found[0]["metadata"]["annotations"]["lagloss/targets-of-100-percent"] == "loss"


def test_of_no_pipeline_there_is_nothing() -> None:
    assert openslo([]) == []


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", fullmatch=True))
def test_any_pipeline_has_a_valid_name(name: str) -> None:
    read(stored(CHAIN.replace("{name: chain}", f"{{name: '{name}'}}")))


@pytest.mark.parametrize(
    ("one", "other"),
    [(("a-b", "loss"), ("a", "b", "loss")), (("A", "loss"), ("a", "loss")), (("a_b", "loss"), ("a-b", "loss"))],
)
def test_different_things_have_different_names(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert dns_name(*one) != dns_name(*other)
