"""What the OpenAPI document says is what the collector does: schemathesis asks it whatever the document allows, and
what it does not."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from tests.integration.conftest import Collector


def _as_bytes(context: object, value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


for kind in ("application/vnd.lagloss.blocks", "application/vnd.lagloss.report", "application/x-protobuf"):
    schemathesis.serializer(kind)(_as_bytes)


@pytest.fixture
def openapi(collector: Collector) -> BaseSchema:
    return schemathesis.openapi.from_url(f"{collector.url}/openapi.json")


schema = schemathesis.pytest.from_fixture("openapi")


@schema.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_answers_are_as_documented(case: Case) -> None:
    # what is right of a graph, a time or an id is more than a schema can say
    case.call_and_validate(excluded_checks=[positive_data_acceptance, negative_data_rejection])
