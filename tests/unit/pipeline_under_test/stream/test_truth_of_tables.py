"""What the warehouse's table holds is delivered there; what a warehouse that commits first does not hold is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer import BadParameter

from lagloss_server.base.errors import BadDefinition
from lagloss_server.base.yaml_files import parse_yaml
from lagloss_server.model.tables import TableTap
from pipeline_under_test.harness.ledger import Fate, LedgerEntry
from pipeline_under_test.stream.commands.options import require_target
from pipeline_under_test.stream.events.routes import DEFAULT_ROUTES, WAREHOUSE_ROUTE, Routes
from pipeline_under_test.stream.faults import parse
from pipeline_under_test.stream.scenario import Scenario, stream_definition
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import ALL_NEXT, GLOBAL_RETRIER, NEXT
from pipeline_under_test.stream.truth import CommitFirstWindow, StreamTruth, StreamWindow, as_tapped

MINUTE_MS = 60_000
TO_GA, TO_WAREHOUSE = "link event-router->conn-ga", "link event-router->warehouse"
Fact = tuple[Fate, str]
ROUTED: list[Fact] = [("routed", TO_GA), ("routed", TO_WAREHOUSE), ("delivered", "vendor ga")]


def window(*facts: Fact, kind: type[StreamWindow] = StreamWindow) -> StreamWindow:
    truth = StreamTruth(kind)
    truth.add(LedgerEntry(fate, "m", MINUTE_MS, place) for fate, place in [("answered", ""), *facts])
    return truth.windows[60]


def outcome_of(*facts: Fact, kind: type[StreamWindow] = StreamWindow) -> str:
    (outcome,) = (outcome for outcome, ids in window(*facts, kind=kind).outcomes().items() if ids)
    return outcome


def test_an_event_is_under_way_until_its_row_is_in_the_table() -> None:
    assert outcome_of(*ROUTED) == "pending"
    assert outcome_of(*ROUTED, ("delivered", "table click")) == "delivered"
    assert window(*ROUTED, ("delivered", "table click")).written["warehouse.out"] == {"m": 1}


def test_rows_that_another_run_has_stored_are_not_of_this_ledger() -> None:
    truth = StreamTruth()
    facts: list[Fact] = [("answered", ""), *ROUTED]
    truth.add(LedgerEntry(fate, "m", MINUTE_MS, place) for fate, place in facts)
    rows = [LedgerEntry("delivered", *row, "table click") for row in (("m", 60_000), ("other", 60_000), ("m", 0))]
    assert truth.add_rows(rows) == {60}
    assert truth.windows.keys() == {60}
    assert truth.windows[60].messages == {"m"} == truth.windows[60].outcomes()["delivered"]


@pytest.mark.parametrize("fate", ["dead", "filtered"])
def test_what_the_warehouse_puts_aside_is_under_way_no_more(fate: Fate) -> None:
    assert outcome_of(*ROUTED, (fate, "node warehouse")) == "delivered"
    assert outcome_of(*ROUTED, (fate, "node warehouse"), kind=CommitFirstWindow) == "delivered"


def test_what_a_warehouse_that_commits_first_has_not_stored_it_has_lost() -> None:
    lossy = window(*ROUTED, kind=CommitFirstWindow)
    assert (lossy.lost, lossy.lost_at) == ({"m"}, {"node warehouse": {"m"}})
    assert outcome_of(*ROUTED, kind=CommitFirstWindow) == "lost"
    stored = window(*ROUTED, ("delivered", "table click"), kind=CommitFirstWindow)
    assert (stored.lost, stored.lost_at) == (set(), {})
    replayed = window(*ROUTED, ("replayed", ""), kind=CommitFirstWindow)
    assert (replayed.lost, replayed.lost_at) == (set(), {})


def test_what_was_lost_on_the_way_to_it_the_warehouse_has_not_lost() -> None:
    lost = window(*ROUTED, ("lost", TO_WAREHOUSE), kind=CommitFirstWindow)
    assert lost.lost_at == {TO_WAREHOUSE: {"m"}}


def test_taps_show_what_the_warehouse_has_lost_but_not_what_went_to_a_vendor_too() -> None:
    assert as_tapped(window(*ROUTED, ("lost", "node warehouse"))).lost_at == {"node warehouse": {"m"}}
    assert as_tapped(window(*ROUTED, kind=CommitFirstWindow)).lost_at == {"node warehouse": {"m"}}
    hidden = as_tapped(window(*ROUTED, ("lost", TO_WAREHOUSE)))
    assert (hidden.lost_at, hidden.outcomes()["delivered"]) == ({}, {"m"})


def test_clicks_alone_go_to_the_warehouse_in_addition() -> None:
    routes = Routes({**DEFAULT_ROUTES, "warehouse": WAREHOUSE_ROUTE})
    assert routes.destinations({"vendors": ["ga"], "kind": "click"}) == ("conn-ga", "warehouse")
    assert routes.destinations({"vendors": ["ga"], "kind": "view"}) == ("conn-ga",)
    assert Routes().destinations({"vendors": ["ga"], "kind": "click"}) == ("conn-ga",)


@pytest.mark.parametrize("taps", [True, False])
def test_a_pipeline_without_a_database_is_defined_without_the_warehouse(taps: bool) -> None:
    stored, plain = (stream_definition("web", taps=taps, warehouse=is_there, grace="2s") for is_there in (True, False))
    assert stored.spec.grace == plain.spec.grace == 2_000
    for definition, nexts in ((stored, ALL_NEXT), (plain, NEXT)):
        nodes = {node.name: node.to for node in definition.spec.nodes if node.name != GLOBAL_RETRIER}
        assert nodes == nexts
    assert not plain.table_taps
    (tap,) = stored.table_taps
    assert isinstance(tap, TableTap)
    assert (tap.source, tap.places) == ("table web.click of lagloss", ("out",))


def test_faults_of_the_warehouse_need_a_pipeline_with_a_database(tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match="expected a pipeline with a database"):
        require_target(parse("lose:node:warehouse:1"), ReferenceSettings(data_dir=tmp_path))
    require_target(parse("lose:node:warehouse:1"), ReferenceSettings(data_dir=tmp_path, database_url="postgresql://x"))
    text = "name: a\ndescription: b\nload: {rate: 1, minutes: 1}\nfaults: [{at: 0s, fault: 'crash:warehouse'}]\n"
    with pytest.raises(BadDefinition, match=r"expected `run: \{warehouse: true\}`"):
        parse_yaml(Scenario, text, "a.yaml")
    assert parse_yaml(Scenario, f"{text}run: {{warehouse: true}}\n", "a.yaml").run.warehouse
    alone = text.partition("faults")[0] + "run: {commitFirst: true}\n"
    with pytest.raises(BadDefinition, match=r"expected `warehouse: true` with `commitFirst`"):
        parse_yaml(Scenario, alone, "a.yaml")
