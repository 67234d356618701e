"""Lost afterwards: which statements of taps are a breach, and what is said of them."""

from __future__ import annotations

import pytest

from alerting.rules import rules_of
from alerting.rules.view import PipelineView
from lagloss.wire.format import SAMPLE_ALL
from lagloss_server.base.errors import BadDefinition
from lagloss_server.incidents.lost_afterwards import LostMinute
from lagloss_server.model.definition import Definition, parse_definition
from tests.support.alert_views import Told, minute, rule_of, view_of, window

HEAD = "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: orders}\nspec:\n  recheck: RECHECK\n  nodes:\n"
TABLE = "{database: shop, table: public.orders, id: id, eventTime: at, cursor: n}"
NODES = (
    "    - {name: src, to: [mart, lake], taps: {out: {topic: orders, id: $.id, eventTime: $.at}}}\n"
    f"    - {{name: mart, taps: {{in: {{group: m}}, out: {TABLE}}}}}\n"
    f"    - {{name: lake, taps: {{in: {{group: l}}, out: {TABLE[:-1]}, recheck: 1d}}}}}}\n"
)
NAME = "lost-afterwards"


def defined(alerts: str = "", recheck: str = "7d") -> Definition:
    text = HEAD.replace("RECHECK", recheck) + NODES
    return parse_definition(text + (f"  alerts: {alerts}\n" if alerts else ""))


def lost(at: int, count: int, node: str = "mart", accepted: int = 0, sample: int = SAMPLE_ALL) -> LostMinute:
    source, start_s = "table public.orders of shop", minute(at)
    until_ms = 1_000 * (start_s + 86_400)
    return LostMinute(
        *(start_s, node, f"{node}.out", source, count, accepted, None, None, None),
        *(60, sample, "deleted", 1_000 * start_s, until_ms),
    )


def seen(definition: Definition, *minutes: LostMinute, later: int = 0) -> PipelineView:
    documents = {at: window(definition, at) for at in range(3)}
    return view_of(definition, documents, now_at=12 + later, lost_afterwards=minutes)


def test_there_is_a_rule_of_all_tables_that_are_compared_again_and_none_without() -> None:
    rule = rule_of(defined(), NAME)
    assert (rule.severity, rule.target, rule.kind) == ("warning", 0, NAME)
    assert NAME in [rule.name for rule in rules_of(defined(recheck="0s"))]  # of the lake
    assert NAME not in [rule.name for rule in rules_of(defined("{lostAfterwards: off}"))]
    without = parse_definition(HEAD.replace("RECHECK", "0s") + NODES.replace(", recheck: 1d", ""))
    assert NAME not in [rule.name for rule in rules_of(without)]


def test_an_incident_says_how_many_where_and_of_which_minutes_and_ends_with_the_last() -> None:
    told = Told.of(defined(), NAME)
    told.evaluate(seen(defined(), lost(0, 3), lost(5, 9), lost(4, 2, "lake", sample=SAMPLE_ALL // 4)))
    first, second = told.text.split("; ")
    assert first.startswith(
        "12 messages lost afterwards at mart: their rows in table public.orders of shop are deleted"
    )
    assert first.endswith(" UTC")
    assert "2 messages lost afterwards at lake (of a sample: 25 % of the rows)" in second
    assert told.severity == "warning"
    assert told.open is not None
    assert told.open.worst == 14
    told.evaluate(seen(defined(), lost(5, 9, accepted=4), later=1))
    assert "5 messages lost afterwards at mart" in told.text
    told.evaluate(seen(defined(), lost(5, 9, accepted=9), later=2))
    assert told.open is None
    assert told.kinds == ["opened", "updated", "resolved"]


def test_where_nothing_is_known_no_incident_ends() -> None:
    found = rule_of(defined(), NAME).assess(view_of(defined(), {0: window(defined(), 0)}))
    assert (found.breaches, found.good) == ({}, ())


def test_a_node_can_have_settings_of_its_own() -> None:
    definition = defined("{lostAfterwards: [{max: 10}, {at: node=lake, severity: critical}]}")
    view = seen(definition, lost(0, 10), lost(1, 1, "lake"))
    assert not rule_of(definition, NAME).assess(view).breaches
    own = rule_of(definition, f"{NAME}/node/lake")
    assessment = own.assess(view)
    assert [*assessment.breaches.values()] == [1]
    assert [(place.name, place.share, place.lost) for place in assessment.places] == [("lake", 1.0, 1)]
    assert (own.severity, own.inhibited_by) == ("critical", (NAME,))
    assert own.text(1) == "1 message lost afterwards, limit 0"
    with pytest.raises(BadDefinition, match="expected a node with a tapped table, found node=src"):
        defined("{lostAfterwards: {at: node=src}}")
