"""Rules about single places: destinations, nodes, links and checkpoints, by the matchers that routes have, too."""

from __future__ import annotations

from typing import Any

import pytest

from alerting.rules import rules_of
from lagloss_server.model.definition import Definition
from lagloss_server.model.matchers import Matcher, labels_of, match_all
from tests.support.alert_views import Told, defined, minute, rule_of, view_of, window
from tests.support.window_documents import clicks, window_of

Documents = dict[int, dict[str, Any]]


def with_spec(alerts: dict[str, Any], sla: dict[str, Any] | None = None) -> Definition:
    document = clicks().model_dump(mode="json", by_alias=True)
    document["spec"]["alerts"] |= alerts
    document["spec"]["sla"] |= sla or {}
    return Definition.model_validate(document)


def breached(definition: Definition, name: str, documents: Documents) -> set[int]:
    found = rule_of(definition, name).assess(view_of(definition, documents))
    return {(start - minute(0)) // 60 for start in found.breaches}


def names_of(definition: Definition, kind: str) -> list[str]:
    return [rule.name for rule in rules_of(definition) if rule.kind == kind]


@pytest.mark.parametrize(
    ("rule", "at", "expected"),
    [
        ("loss", "destination=conn-ga", ["loss/destination/conn-ga"]),
        ("loss", ["node=~event-.*", "node!=event-norm"], ["loss/node/event-router"]),
        ("uncertainLoss", "link=~event-router->.*", [
            "uncertain-loss/link/event-router->conn-ga", "uncertain-loss/link/event-router->conn-fb"]),
        ("deadLetters", "destination!~conn-g.*", ["dead-letters/destination/conn-fb"]),
        ("volume", "checkpoint=event-router.out:conn-fb", ["volume/checkpoint/event-router.out:conn-fb"]),
        ("filtered", 'node="event-norm"', ["filtered/node/event-norm"]),
        ("corruption", "link=col-service->event-norm", ["corruption/link/col-service->event-norm"]),
        ("pendingAge", "node=conn-ga", ["pending-age/node/conn-ga"]),
        ("negativeLag", "checkpoint=conn-ga.in", ["negative-lag/checkpoint/conn-ga.in"]),
    ],
)  # fmt: skip
def test_a_rule_is_about_the_places_that_its_matchers_match(rule: str, at: Any, expected: list[str]) -> None:
    definition = with_spec({rule: [{"at": at}]})
    kind = expected[0].split("/")[0]
    assert names_of(definition, kind) == expected
    found = rule_of(definition, expected[0])
    assert found.inhibited_by == () or "pipeline" not in found.inhibited_by


def test_the_first_entry_that_matches_a_place_counts_and_the_whole_has_its_own() -> None:
    entries = [{"at": "node=conn-ga", "max": 0.5}, {"at": "node=~conn-.*", "max": 0.2}, {}]
    definition = with_spec({"deadLetters": entries})
    targets = {rule.name: rule.target for rule in rules_of(definition) if rule.kind == "dead-letters"}
    assert targets == {"dead-letters": 0.01, "dead-letters/node/conn-ga": 0.5, "dead-letters/node/conn-fb": 0.2}
    assert rule_of(definition, "dead-letters/node/conn-ga").inhibited_by == ("dead-letters",)


def test_a_destination_with_targets_of_its_own_has_rules_without_being_asked_for() -> None:
    own = {"destinations": {"conn-ga": {"loss": {"max": 0.001}}, "conn-fb": {"lag": {"target": "2s"}}}}
    definition = with_spec({}, own)
    placed = {rule.name: rule for rule in rules_of(definition) if "/destination/" in rule.name}
    assert set(placed) == {
        "loss/destination/conn-ga",
        "uncertain-loss/destination/conn-ga",
        "lag/destination/conn-fb",
        "on-time/destination/conn-fb",
    }
    assert (placed["loss/destination/conn-ga"].target, placed["lag/destination/conn-fb"].target) == (0.001, 2_000)
    off = with_spec({"loss": [{"at": "node=conn-ga"}]}, own)
    assert names_of(off, "loss") == ["loss/node/conn-ga"], "without an entry for the whole only what is named"


def test_a_loss_at_a_destination_is_a_share_of_what_is_due_there_and_names_its_part_of_the_graph() -> None:
    definition = with_spec({}, {"destinations": {"conn-ga": {"loss": {"max": 0.02}}}})
    found = window(definition, 0, "loss", due={"conn-ga": 100, "conn-fb": 900})
    found["destinations"][0]["lost"] = {"min": 3, "max": 3}
    found["nodes"][3]["lost"] = {"min": 3, "max": 3}
    found["links"][0]["lost"] = {"min": 5, "max": 5}
    found["lost"] = {"min": 8, "max": 8}
    assert breached(definition, "loss/destination/conn-ga", {0: found}) == {0}
    assert breached(definition, "loss", {0: found}) == set()
    rule = rule_of(definition, "loss/destination/conn-ga")
    assert rule.text(0.03) == "3 % of messages due at destination conn-ga lost, target 2 %"
    assert [(place.name, place.share) for place in rule.where([window_of(found)])] == [("conn-ga", 1.0)]


def test_a_loss_at_a_node_or_link_is_a_share_of_the_pipelines_messages() -> None:
    definition = with_spec({"loss": [{"at": "node=conn-ga", "max": 0.001}, {"at": "link=~col.*"}]})
    found = window(definition, 0, "ok")
    found["nodes"][3]["lost"] = {"min": 2, "max": 2}
    assert breached(definition, "loss/node/conn-ga", {0: found}) == {0}
    assert breached(definition, "loss/link/col-service->event-norm", {0: found}) == set()


def test_the_lag_of_a_destination_has_its_target_of_the_sla_or_one_of_the_rule() -> None:
    own = {"destinations": {"conn-fb": {"lag": {"percentile": 99, "target": "10s"}}}}
    definition = with_spec({"lag": [{}, {"at": "destination=conn-ga", "target": "1s"}]}, own)
    slow = {at: window(definition, at, lags_ms={"conn-ga.out": 1_100.0}, due={}) for at in range(2)}
    assert breached(definition, "lag/destination/conn-ga", slow) == {0, 1}
    assert rule_of(definition, "lag/destination/conn-fb").text(12_000) == (
        "end-to-end lag at conn-fb p99 12 s, target 10 s"
    )


def test_staleness_of_a_checkpoint_is_judged_by_its_own_target() -> None:
    definition = with_spec(
        {"staleness": [{}, {"at": "checkpoint=conn-fb.out", "max": "1h"}]},
        {"staleness": {"checkpoints": {"event-norm.out": "2m"}}},
    )
    found = {rule.name: rule for rule in rules_of(definition) if rule.kind == "staleness"}
    assert {name: (rule.target, rule.severity, tuple(rule.watches)) for name, rule in found.items()} == {
        "staleness": (300.0, "critical", ("conn-ga.out",)),
        "staleness/checkpoint/conn-fb.out": (3_600.0, "critical", ("conn-fb.out",)),
        "staleness/checkpoint/event-norm.out": (120.0, "warning", ("event-norm.out",)),
    }
    text = found["staleness/checkpoint/event-norm.out"].text(180)
    assert text == "newest event at event-norm.out is 3 min old while messages keep arriving, limit 2 min"


def test_corruption_is_a_breach_at_all_and_a_window_of_which_no_beacon_was_read_says_nothing() -> None:
    definition = defined()
    documents = {at: window(definition, at) for at in range(6)}
    documents[1]["links"][0]["corrupted"] = 3
    for link in documents[2]["links"]:
        link["corrupted"] = None
    told = Told.of(definition, "corruption")
    told.evaluate(view_of(definition, {at: documents[at] for at in range(5)}))
    assert (told.kinds, told.text) == (["opened"], "3 messages corrupted in a minute, limit 0")
    told.evaluate(view_of(definition, documents))
    assert told.kinds == ["opened", "resolved"]
    assert [place.name for place in told.rule.where([window_of(documents[1])])] == ["src->mid"]
    assert breached(defined("corruption: {max: 3}"), "corruption", documents) == set()
    assert breached(defined("corruption: {at: link=mid->snk}"), "corruption/link/mid->snk", documents) == set()


def uncertain(definition: Definition, at: int, count: int, *reasons: str, pending: int = 0) -> dict[str, Any]:
    found = window(definition, at, "unknown", 1_000, pending=pending, reasons=reasons)
    found["lost"]["max"] = found["nodes"][1]["lost"]["max"] = count
    return found


def test_while_messages_are_pending_no_later_window_ends_an_uncertain_loss() -> None:
    definition = defined()
    told = Told.of(definition, "uncertain-loss")
    for now in range(6, 40):
        documents = {}
        for at in range(now):
            is_bad, is_decided = 2 <= at < 12, now - at > 10
            count = 40 if is_bad and is_decided else 0
            documents[at] = uncertain(definition, at, count, pending=40 if is_bad and not is_decided else 0)
            if not is_bad:
                documents[at] = window(definition, at)
        told.evaluate(view_of(definition, documents))
    assert [kind for kind in told.kinds if kind != "updated"] == ["opened", "resolved"]
    (incident,) = told.incidents.values()
    assert incident.breaches == {minute(at) for at in range(2, 12)}


def test_an_uncertain_loss_says_whose_account_is_missing_and_which_process_died() -> None:
    definition = defined()
    found = [uncertain(definition, at, 30, "evidence:mid", "crash:mid") for at in range(3)]
    for document in found:
        document["crashes"] = [{"node": "mid", "emitter": "11111111-2222-3333-4444-555555555555"}]
    (place,) = rule_of(definition, "uncertain-loss").where(
        [window_of(each) for each in [*found, window(definition, 4)]]
    )
    assert (place.kind, place.name) == ("node", "mid")
    assert place.text == (
        "90 overdue or possibly lost; the evidence of node mid is incomplete in 3 of 4 windows, "
        "where process 11111111-2222-3333-4444-555555555555 died"
    )


class OfRule:
    pipeline, kind, severity = "clicks", "loss", "critical"

    def __init__(self, rule: str) -> None:
        self.rule = rule


@pytest.mark.parametrize(
    ("rule", "matcher"),
    [
        ("loss/destination/conn-ga", "destination=~conn-.*"),
        ("lag/link/a->b", "link=a->b"),
        ("volume/checkpoint/a.out:b", 'checkpoint="a.out:b"'),
        ("lag/node/mid", "node!=other"),
        ("budget/loss/1h", "node="),
        ("loss", "destination!~.+"),
    ],
)
def test_routes_and_silences_match_an_incident_by_the_place_of_its_rule(rule: str, matcher: str) -> None:
    assert match_all([Matcher.parse(matcher)], labels_of(OfRule(rule)))


def test_the_place_of_a_rule_comes_before_a_label_of_that_name_in_the_definition() -> None:
    own = labels_of(OfRule("loss/destination/conn-ga"), {"destination": "elsewhere", "team": "checkout"})
    assert (own["destination"], own["team"]) == ("conn-ga", "checkout")
