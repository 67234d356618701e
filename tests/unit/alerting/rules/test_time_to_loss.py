"""Time to loss: when a group that lags comes near to what retention deletes, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from alerting.backtest.replay import Past, Replay, ReplayedClosing
from alerting.rules import reader_of, rules_of
from alerting.rules.view import PipelineView
from lagloss_server.base.errors import BadDefinition
from lagloss_server.groups.progress import GroupPartition, PartitionNow
from lagloss_server.model.definition import Definition, parse_definition
from tests.support.alert_views import Told, minute, rule_of, view_of, window
from tests.support.window_documents import window_of

HEAD = "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: orders}\nspec:\n  nodes:\n"
NODES = (
    "    - {name: src, to: [mid]}\n    - {name: mid, to: [snk], group: mids}\n"
    "    - {name: snk, group: sinks}\n"
)  # fmt: skip
NOW_S = minute(12)


def with_groups(alerts: str = "", nodes: str = NODES) -> Definition:
    return parse_definition(HEAD + nodes + (f"  alerts: {alerts}\n" if alerts else ""))


def partition(at: int = 0, node: str = "mid", in_s: float | None = None, at_risk: int = 0, **more: Any) -> PartitionNow:
    """One of a group that has messages at risk from so many seconds after NOW_S on."""
    loss_ms = None if in_s is None else round(1_000 * (NOW_S + in_s))
    of = GroupPartition(node, f"{node}s", "orders", at)
    given = {"kept_by": "time", "at_risk": None if in_s is None else at_risk, **more}
    return PartitionNow(of, 1_000 * NOW_S, 100, loss_ms=loss_ms, **given)


def seen(definition: Definition, *partitions: PartitionNow) -> PipelineView:
    documents = {at: window(definition, at) for at in range(3)}
    return view_of(definition, documents, now_at=(NOW_S - minute(0)) / 60, partitions=partitions)


def test_there_is_a_rule_of_all_groups_and_none_where_no_node_names_one() -> None:
    assert rule_of(with_groups(), "time-to-loss").severity == "critical"
    queues = "    - {name: src, to: [mid]}\n    - {name: mid, queue: 'https://sqs.eu-central-1.amazonaws.com/1/in'}\n"
    for nodes in (queues, "    - {name: src, to: [mid]}\n    - {name: mid}\n"):
        assert not [rule for rule in rules_of(with_groups(nodes=nodes)) if rule.kind == "time-to-loss"]
    assert not [rule for rule in rules_of(with_groups("{timeToLoss: off}")) if rule.kind == "time-to-loss"]


def test_messages_that_are_deleted_within_the_hour_are_a_page_that_says_how_many_and_when() -> None:
    told = Told.of(with_groups(), "time-to-loss")
    soon = [partition(0, in_s=2_580, at_risk=9_000), partition(1, in_s=3_000, at_risk=3_000), partition(2)]
    told.evaluate(seen(with_groups(), *soon))
    assert told.severity == "critical"
    (incident,) = told.incidents.values()
    assert incident.worst == 2_580
    clock = told.text.split("starting at ")[1].split(" UTC")[0]
    assert told.text == (
        f"12,000 messages of mids in 2 partitions are deleted unread starting at {clock} UTC, in 43 min, "
        "unless the group catches up"
    )


@pytest.mark.parametrize(("in_s", "is_breach"), [(3_599, True), (3_600, False), (90_000, False), (-60, True)])
def test_only_what_is_deleted_within_the_target_is_a_breach(in_s: float, is_breach: bool) -> None:
    found = rule_of(with_groups(), "time-to-loss").assess(seen(with_groups(), partition(in_s=in_s, at_risk=5)))
    assert bool(found.breaches) == is_breach
    assert bool(found.good) == (not is_breach)


def test_what_waits_past_its_time_is_deleted_from_now_on() -> None:
    found = rule_of(with_groups(), "time-to-loss").assess(seen(with_groups(), partition(in_s=-60, at_risk=1)))
    assert found.breaches == {NOW_S: 0.0}
    assert found.texts == {
        NOW_S: "1 message of mids in 1 partition is deleted unread starting now, unless the group catches up"
    }


def test_messages_that_were_deleted_are_a_breach_though_the_group_has_caught_up() -> None:
    found = rule_of(with_groups(), "time-to-loss").assess(seen(with_groups(), partition(deleted=1_200)))
    assert found.breaches == {NOW_S: 0.0}
    assert found.texts == {NOW_S: "1,200 messages of mids were deleted unread in the last two minutes"}


def test_each_group_has_a_place_the_soonest_first() -> None:
    found = rule_of(with_groups(), "time-to-loss").assess(
        seen(with_groups(), partition(in_s=1_200, at_risk=7), partition(node="snk", in_s=600, at_risk=3, deleted=2))
    )
    assert [place.name for place in found.places] == ["snk", "mid"]
    assert found.places[0].text.endswith("; 2 messages were deleted unread in the last two minutes")
    assert found.breaches == {NOW_S: 0.0}


def test_without_limits_that_are_known_there_is_no_evidence() -> None:
    rule = rule_of(with_groups(), "time-to-loss")
    for partitions in ((), (partition(kept_by=None),)):
        found = rule.assess(seen(with_groups(), *partitions))
        assert (found.breaches, list(found.good)) == ({}, [])
    is_stuck, keeps_up = (partition(1, kept_by=None, status=status) for status in ("stalled", "ok"))
    assert not rule.assess(seen(with_groups(), partition(), is_stuck)).good
    assert rule.assess(seen(with_groups(), partition(), keeps_up)).good
    assert rule.assess(seen(with_groups(), partition(kept_by="none"))).good
    assert rule.assess(seen(with_groups(), replace(partition(kept_by=None), lag=0))).good


@pytest.mark.parametrize("status", ["not committed", "beyond the end"])
def test_where_commits_do_not_say_what_waits_nothing_is_at_risk_and_a_page_ends(status: str) -> None:
    rule = rule_of(with_groups(), "time-to-loss")
    uncounted = replace(partition(1, kept_by=None, status=status), lag=None)
    for partitions in ((uncounted,), (partition(), uncounted)):
        found = rule.assess(seen(with_groups(), *partitions))
        assert (found.breaches, bool(found.good)) == ({}, True)
    counted = partition(1, in_s=600, at_risk=7, status="not committed")
    assert rule.assess(seen(with_groups(), partition(), counted)).breaches == {NOW_S: 600.0}


def test_a_node_with_settings_of_its_own_is_left_to_them() -> None:
    definition = with_groups("{timeToLoss: [{within: 10m}, {at: node=snk, within: 2h, severity: warning}]}")
    view = seen(definition, partition(in_s=1_200, at_risk=7), partition(node="snk", in_s=1_200, at_risk=3))
    assert not rule_of(definition, "time-to-loss").assess(view).breaches
    own = rule_of(definition, "time-to-loss/node/snk")
    assert own.severity == "warning"
    assert own.assess(view).breaches == {NOW_S: 1_200.0}


@pytest.mark.parametrize("at", ["node=src", "node=nobody", "link=src->mid"])
def test_a_place_without_a_group_is_refused(at: str) -> None:
    with pytest.raises(BadDefinition):
        with_groups(f"{{timeToLoss: {{at: '{at}'}}}}")


def test_a_replay_opens_what_the_alerter_would_have_and_ends_it_with_the_risk() -> None:
    definition = with_groups()
    reader = reader_of(definition)
    closings = [
        ReplayedClosing(minute(at + 2), minute(at), reader.row(minute(at), window_of(window(definition, at))))
        for at in range(30)
    ]
    past = Past(partitions={minute(at): [partition(in_s=600 if 5 <= at < 9 else None)] for at in range(30)})
    replay = Replay(definition, minute(0), minute(30), past)
    replay.run(closings, minute(40))
    (incident,) = [each for each in replay.incidents if each.rule.name == "time-to-loss"]
    assert incident.opened_at_s == minute(6)
    assert incident.resolved_at_s == minute(10)
    assert "are deleted unread" in incident.text or "is deleted unread" in incident.text
