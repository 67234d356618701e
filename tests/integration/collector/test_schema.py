"""What the OpenAPI document says is what the collector does: schemathesis asks it whatever the document allows, and
what it does not."""

from __future__ import annotations

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from tests.integration.conftest import Collector

# what is right of a graph, a time or an id is more than a schema can say
NOT_CHECKED = [positive_data_acceptance, negative_data_rejection]


def _as_bytes(context: object, value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


for kind in ("application/vnd.lagloss.blocks", "application/vnd.lagloss.report", "application/x-protobuf"):
    schemathesis.serializer(kind)(_as_bytes)


def test_answers_are_as_documented(collector: Collector) -> None:
    schema = schemathesis.openapi.from_url(f"{collector.url}/openapi.json")
    asked = set()
    for found in schema.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy())
        @settings(max_examples=8, suppress_health_check=list(HealthCheck), database=None)
        def ask(case: Case) -> None:
            asked.add((case.method, case.path))
            case.call_and_validate(excluded_checks=NOT_CHECKED)

        ask()
    assert {("POST", "/v1/blocks"), ("PUT", "/v1/pipelines/{name}"), ("POST", "/v1/traces")} <= asked
