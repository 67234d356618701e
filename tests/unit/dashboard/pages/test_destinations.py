"""A router with two vendors: each has its own numbers beside its own targets, the worse one first."""

from __future__ import annotations

from typing import Any

from dash.development.base_component import Component

from dashboard.pages.breakdown import destinations
from lagloss_server.model.definition import Sla
from tests.support.window_documents import window_of


def there(name: str, lost: int, p95: float, on_time: float) -> dict[str, Any]:
    lags = {"p50": 1.0, "p95": p95, "p99": p95, "max": p95}
    return {
        "name": name,
        "due": 1_000,
        "delivered": 1_000 - lost,
        "filtered": 0,
        "dead": 0,
        "pending": 0,
        "lost": {"min": lost, "max": lost},
        "on_time_share": on_time,
        "e2e_lag_ms": lags,
    }


def rows(part: Component | None) -> list[list[str]]:
    """The texts of the table's cells."""
    if part is None:
        return []
    cells = [row.children for row in part._traverse() if type(row).__name__ == "TableTr"]
    return [[cell.children for cell in row] for row in cells][1:]


SLA = Sla.model_validate(
    {"loss": {"max": 0.01}, "lag": {"target": "5s"}, "destinations": {"conn-fb": {"lag": {"target": "60s"}}}}
)


def test_the_worst_destination_comes_first_beside_its_own_target() -> None:
    found = [there("conn-ga", 0, 900.0, 1.0), there("conn-fb", 40, 30_000.0, 0.9)]
    assert rows(destinations(window_of({"destinations": found}), SLA)) == [
        ["conn-fb", "1,000", "4 % (target ≤ 1 %)", "p95 30 s (target ≤ 1 min)", "90 %"],
        ["conn-ga", "1,000", "0 % (target ≤ 1 %)", "p95 900 ms (target ≤ 5 s)", "100 %"],
    ]


def test_a_slow_destination_comes_before_one_that_lost_less_than_it_may() -> None:
    found = [there("conn-ga", 1, 900.0, 1.0), there("snk", 0, 50_000.0, 0.1), there("conn-fb", 0, 70_000.0, 0.9)]
    assert [row[0] for row in rows(destinations(window_of({"destinations": found}), SLA))] == [
        "snk",
        "conn-fb",
        "conn-ga",
    ]


def test_a_target_of_a_percentile_that_results_do_not_hold_says_which_it_is_of() -> None:
    sla = Sla.model_validate({"lag": {"percentile": 99.9, "target": "5s"}})
    found = [there("conn-ga", 0, 900.0, 1.0), there("conn-fb", 0, 800.0, 1.0)]
    cells = [row[3] for row in rows(destinations(window_of({"destinations": found}), sla))]
    assert cells == ["p95 900 ms (target of p99.9 ≤ 5 s)", "p95 800 ms (target of p99.9 ≤ 5 s)"]


def test_a_single_destination_needs_no_table() -> None:
    assert destinations(window_of({"destinations": [there("snk", 1, 1.0, 1.0)]}), SLA) is None
    assert destinations(window_of({"destinations": []}), SLA) is None


def test_an_open_minute_has_no_losses_yet() -> None:
    live = [{**there(name, 0, 5.0, 1.0), "lost": None, "due": None, "on_time_share": None} for name in ("a", "b")]
    assert [row[1:3] for row in rows(destinations(window_of({"destinations": live}), SLA))] == [
        ["–", "– (target ≤ 1 %)"]
    ] * 2
