"""Rules of a graph that is cut: many messages before the cut do not hide the loss of few behind it."""

from __future__ import annotations

from typing import Any

from alerting.backtest.history import judging_by
from alerting.rules.lag import lag_rules
from alerting.rules.loss import loss_rules
from alerting.rules.measures import Measure
from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.model.place import Place
from lagloss_server.model.window import ListedWindow
from tests.support.window_documents import chain, window_of

CUT = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: orders}
spec:
  nodes:
    - {name: shop, to: [sum]}
    - {name: sum, to: [store], ids: new, contract: aggregate}
    - {name: store}
"""


def definition() -> Definition:
    return parse_definition(CUT)


def side(name: str, nodes: tuple[str, ...], messages: int, lost: int) -> dict[str, Any]:
    numbers = {"messages": messages, "pending": 0, "lost": {"min": lost, "max": lost}}
    return {"name": name, "nodes": list(nodes), "verdict": "idle" if not messages else "ok", **numbers}


def window(lost: int, messages: int = 10, *incomplete: str) -> ListedWindow:
    nodes = ("shop", "sum", "sum-new", "store")
    return window_of(
        {
            "verdict": "ok",
            "messages": 1_000 + messages,
            "pending": 0,
            "lost": {"min": lost, "max": lost},
            "nodes": [{"name": name, "complete": name not in incomplete} for name in nodes],
            "sides": [side("shop", nodes[:2], 1_000, 0), side("sum-new", nodes[2:], messages, lost)],
        }
    )


def test_the_rule_of_the_pipelines_loss_holds_for_each_side_by_itself() -> None:
    rules = {rule.name: rule for rule in loss_rules(definition())}
    assert set(rules) == {"loss", "loss/side/shop", "loss/side/sum-new"}
    behind = rules["loss/side/sum-new"]
    assert behind.within == {"node sum-new", "link sum-new->store", "node store"}
    assert behind.inhibited_by == ("loss",)
    assert [measure.of(window(2)) for measure in behind.reads] == [2, 2, 10]
    assert {rule.name for rule in loss_rules(chain())} == {"loss"}


def test_the_rule_of_the_lag_holds_for_each_destination_of_a_cut_graph() -> None:
    assert {rule.name for rule in lag_rules(definition())} == {"lag", "lag/destination/sum", "lag/destination/store"}


def test_a_side_that_a_window_does_not_have_has_no_numbers() -> None:
    assert Measure("lost_min", Place("side", "sum-new")).of(window_of({})) is None


def test_a_backtest_judges_each_side_and_takes_the_worst() -> None:
    judged = judging_by(0.01, ("shop", "sum-new"))
    assert judged(window(2)).verdict == "loss"
    assert judged(window(0)).verdict == "ok"
    assert judged(window(0, 0)).verdict == "ok"
    assert judged(window(0, 10, "sum-new")).verdict == "unknown"
    assert judged(window(0, 10, "store")).verdict == "ok"
