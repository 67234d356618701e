"""The four qualities of each stage and destination, and that nothing is said of what is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.sums.quality import QUALITIES, Quality, QualityCell, QualityRow, quality_rows, stages_of
from lagloss_server.sums.rollup import Rollup
from tests.support.window_documents import CLICKS, clicks, document, facts, window_of

START_S = 1_800_000_000
ALL = (
    *("col-service.in", "col-service.out", "event-norm.in", "event-norm.out", "event-router.in"),
    *("event-router.out:conn-ga", "event-router.out:conn-fb", "conn-ga.in", "conn-ga.out", "conn-fb.in", "conn-fb.out"),
)


def window(at: int = 0, definition: Definition | None = None, **changes: Any) -> dict[str, Any]:
    counts = changes.pop("counts", dict.fromkeys(ALL, 1_000))
    made = document(definition or clicks(), START_S + 60 * at, counts=counts, due={}, **changes)
    made["staleness_ms"] = dict.fromkeys(counts, 2_000.0)
    return made


def rows_of(*windows: dict[str, Any], definition: Definition | None = None) -> dict[str, QualityRow]:
    total = Rollup.merged(Rollup.of_window(window_of(each), facts(each)) for each in windows)
    return {row.stage.label: row for row in quality_rows(total, definition or clicks())}


def cell(row: QualityRow, quality: Quality) -> QualityCell:
    found = row.cells[QUALITIES.index(quality)]
    assert found is not None
    return found


def link_of(made: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(link for link in made["links"] if f"{link['from']}->{link['to']}" == name)
    return found


def checkpoint_of(made: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(there for there in made["checkpoints"] if there["name"] == name)
    return found


def test_every_node_link_and_destination_has_a_row_in_the_order_of_the_flow() -> None:
    assert list(rows_of(window())) == [
        "node col-service",
        "link col-service->event-norm",
        "node event-norm",
        "link event-norm->event-router",
        "node event-router",
        "link event-router->conn-ga",
        "link event-router->conn-fb",
        "node conn-ga",
        "node conn-fb",
        "destination conn-ga",
        "destination conn-fb",
    ]


def test_each_stage_is_seen_at_the_checkpoints_behind_it() -> None:
    stages = {stage.label: stage for stage in stages_of(clicks().graph)}
    assert stages["node col-service"].checkpoints == ("col-service.in", "col-service.out")
    assert stages["node event-router"].checkpoints == ("event-router.out:conn-ga", "event-router.out:conn-fb")
    assert stages["link event-router->conn-ga"].arrivals == ("event-router.out:conn-ga",)
    assert stages["link event-router->conn-ga"].checkpoints == ("conn-ga.in",)
    assert stages["destination conn-fb"].checkpoints == ("conn-fb.out",)
    assert stages["destination conn-fb"].links == (
        *("col-service->event-norm", "event-norm->event-router", "event-router->conn-fb"),
    )


def test_a_retrier_has_no_duplicates_of_its_own() -> None:
    definition = parse_definition(
        "{apiVersion: lagloss/v1, kind: Pipeline, metadata: {name: retried}, spec: {nodes: "
        "[{name: a, to: [b], retries: again}, {name: b}, {name: again}]}}"
    )
    stages = {stage.label: stage for stage in stages_of(definition.graph)}
    assert stages["node a"].checkpoints == ("a.in", "a.out")
    assert stages["node again"].checkpoints == ()


def test_loss_of_a_stage_is_of_the_messages_that_came_there() -> None:
    made = window(lost={"event-norm": (20, 30)}, counts={**dict.fromkeys(ALL, 1_000), "event-norm.in": 500})
    found = cell(rows_of(made)["node event-norm"], "loss")
    assert (found.value, found.most, found.of) == (0.04, 0.06, 500)
    assert (found.target, found.verdict, found.worst_s) == (0.01, "bad", START_S)


def test_a_loss_that_cannot_be_ruled_out_is_no_verdict() -> None:
    assert cell(rows_of(window(lost={"event-norm": (5, 30)}))["node event-norm"], "loss").verdict == "unknown"
    assert cell(rows_of(window(lost={"event-norm": (5, 10)}))["node event-norm"], "loss").verdict == "ok"


def test_corruption_is_known_only_where_both_sides_carry_checksums() -> None:
    row = rows_of(window())["link event-norm->event-router"]
    assert (cell(row, "corruption").value, cell(row, "corruption").verdict) == (None, "unknown")
    made = [window(0), window(1)]
    for at, each in enumerate(made):
        link_of(each, "event-norm->event-router").update(corrupted=3 * at, checked=1_000)
    rows = rows_of(*made)
    found = cell(rows["link event-norm->event-router"], "corruption")
    assert (found.value, found.of, found.target, found.verdict) == (3, 2_000, 0, "bad")
    assert found.worst_s == START_S + 60
    assert cell(rows["destination conn-ga"], "corruption").value == 3
    assert rows["node event-norm"].cells[QUALITIES.index("corruption")] is None


def test_duplicates_are_of_the_windows_whose_beacons_were_read() -> None:
    read, proven = window(0), window(1)
    checkpoint_of(read, "conn-ga.out")["duplicates"] = 50
    for there in proven["checkpoints"]:
        there["duplicates"] = None
    found = cell(rows_of(read, proven)["destination conn-ga"], "duplication")
    assert (found.value, found.of, found.verdict, found.worst_s) == (0.05, 1_000, "bad", START_S)
    unknown = cell(rows_of(proven)["destination conn-ga"], "duplication")
    assert (unknown.value, unknown.verdict) == (None, "unknown")


def test_staleness_of_a_range_is_the_largest_and_judged_where_there_is_a_target() -> None:
    stale, fresh = window(0), window(1)
    stale["staleness_ms"]["conn-ga.out"] = 400_000.0
    rows = rows_of(stale, fresh)
    found = cell(rows["destination conn-ga"], "staleness")
    assert (found.value, found.target, found.verdict, found.worst_s) == (400_000, 300_000, "bad", START_S)
    assert cell(rows["destination conn-fb"], "staleness").verdict == "ok"
    assert cell(rows["node event-norm"], "staleness").verdict == "none"
    unknown = window(2) | {"staleness_ms": {}}
    assert cell(rows_of(unknown)["destination conn-ga"], "staleness").verdict == "unknown"


@pytest.mark.parametrize(
    ("stage", "quality", "target"),
    [
        ("destination conn-fb", "loss", 0.2),
        ("destination conn-ga", "loss", 0.01),
        ("node event-norm", "loss", 0.03),
        ("link event-norm->event-router", "corruption", 7),
        ("link col-service->event-norm", "corruption", 0),
        ("node conn-ga", "duplication", 0.5),
        ("node event-norm", "duplication", 0.01),
        ("node event-norm", "staleness", 120_000),
        ("link col-service->event-norm", "staleness", 60_000),
        ("destination conn-ga", "staleness", 90_000),
    ],
)
def test_targets_are_those_of_the_sla_and_else_of_the_alerts(stage: str, quality: Quality, target: float) -> None:
    sla = (
        "loss: {max: 0.01}, destinations: {conn-fb: {loss: {max: 0.2}}}, "
        "staleness: {max: 90s, checkpoints: {event-norm.out: 2m}}"
    )
    alerts = (
        "loss: [{}, {at: node=event-norm, max: 0.03}], "
        "corruption: [{}, {at: 'link=event-norm->event-router', max: 7}], "
        "duplicates: [{}, {at: node=conn-ga, max: 0.5}], "
        "staleness: [{}, {at: checkpoint=event-norm.in, max: 1m}]"
    )
    text = CLICKS.partition("  sla:")[0] + f"  sla: {{{sla}}}\n  alerts: {{{alerts}}}\n"
    definition = parse_definition(text)
    made = window(definition=definition)
    assert cell(rows_of(made, definition=definition)[stage], quality).target == target


def test_without_the_alert_a_quality_has_no_target() -> None:
    text = CLICKS + "  alerts: {duplicates: off, corruption: off}\n"
    row = rows_of(window(), definition=parse_definition(text))["link col-service->event-norm"]
    assert [each and each.verdict for each in row.cells] == ["ok", "none", "none", "none"]


def test_the_document_says_null_of_what_is_not_known() -> None:
    found = rows_of(window())["link event-norm->event-router"].document()
    assert found["corruption"] == {"value": None, "of": 0, "target": 0, "verdict": "unknown", "worst_window": None}
    assert rows_of(window())["node event-norm"].document()["corruption"] is None
