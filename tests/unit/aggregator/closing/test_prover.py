"""Which windows tallies are enough for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from aggregator.closing.prover import Prover
from lagloss_server.model.graph import Graph
from tests.unit.lagloss_server.judging.test_tally_proof import WHOLE, evidence


def test_windows_are_read_where_the_definition_asks_for_order() -> None:
    graph, whole = evidence(**WHOLE)
    spec = graph.definition.spec.model_copy(update={"order": "key"})
    ordered = graph.definition.model_copy(update={"spec": spec}).graph
    prover = Prover(*cast("tuple[Any, Any, Any]", (None, None, None)), verify_share=0)

    def is_proven(judged_by: Graph) -> bool:
        known = SimpleNamespace(graph=lambda *_: judged_by, evidence=lambda *_: whole)
        return prover.is_proven(cast("Any", known), ("p", 0))

    assert is_proven(graph)
    assert not is_proven(ordered)
