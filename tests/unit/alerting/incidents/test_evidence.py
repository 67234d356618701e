"""Evidence of a pipeline's incidents, read once for all of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from alerting.incidents.evidence import read_evidence
from alerting.incidents.findings import PipelineSnapshot, assess
from alerting.rules import rules_of
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.model.window import ListedWindow
from tests.support.alert_views import defined, minute, view_of, window
from tests.support.window_documents import window_of

DEFINITION = defined('loss: [{}, {at: "link=src->mid"}]')
PIPELINE = StoredPipeline(DEFINITION.name, 1, 0, DEFINITION)
LOSSY = {at: window(DEFINITION, at, "loss", lost=100) for at in range(2)}


class FailingStore:
    """Has windows, and fails to read anything of single messages."""

    def __init__(self) -> None:
        self.windows_read: list[list[int]] = []

    def closed_windows(self, _pipeline: str, starts_s: Collection[int]) -> list[ListedWindow]:
        self.windows_read.append(sorted(starts_s))
        return [window_of(document) for document in LOSSY.values()]

    def missing(self, *_: Any, **__: Any) -> list[Any]:
        return []

    def versions_of(self, _pipeline: str) -> Any:
        raise ZeroDivisionError


def evidence_of(documents: dict[int, dict[str, Any]]) -> tuple[dict[str, dict[str, Any]], FailingStore]:
    store: Any = FailingStore()
    rules = {rule.name: rule for rule in rules_of(DEFINITION)}
    findings = assess(PipelineSnapshot(PIPELINE, rules, view_of(DEFINITION, documents), {}, 0.0))
    return read_evidence(store, findings), store


def test_windows_are_read_once_for_all_rules_and_nothing_is_read_where_no_incident_changes() -> None:
    evidence, store = evidence_of(LOSSY)
    assert sum(name.startswith("loss") for name in evidence) == 2
    assert {place["name"] for place in evidence["loss"]["where"]} == {"src->mid"}
    assert store.windows_read == [[minute(0), minute(1)]]
    nothing, store = evidence_of({0: window(DEFINITION, 0)})
    assert (nothing, store.windows_read) == ({}, [])


def test_no_page_waits_for_a_cause_that_cannot_be_read() -> None:
    evidence, _ = evidence_of(LOSSY)
    assert (evidence["loss"]["blame"], evidence["loss"]["messages"]) == (None, 1_000)
