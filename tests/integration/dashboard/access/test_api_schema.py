"""What the OpenAPI document of the read API says is what it does: schemathesis asks whatever the document allows."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from tests.support.teams_world import OURS, TeamsWorld, known_as

# what is right of a time, an id or a matcher is more than a schema can say
NOT_CHECKED = [positive_data_acceptance, negative_data_rejection]
OPERATOR = known_as("olga", "sre")


def test_responses_are_as_declared(url: str, world: TeamsWorld) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json", headers=OPERATOR)
    there: dict[str, Any] = {"pipeline": OURS, "start": world.start, "incident_id": str(world.incidents[OURS])}
    statuses = set()
    for result in schema.get_all_operations():
        operation = result.ok()

        @given(case=operation.as_strategy())
        @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        def ask(case: Case) -> None:
            case.call_and_validate(excluded_checks=NOT_CHECKED, headers=OPERATOR)
            if case.path_parameters:
                case.path_parameters = {**case.path_parameters, **_known(case.path_parameters, there)}
                response = case.call_and_validate(excluded_checks=NOT_CHECKED, headers=OPERATOR)
                statuses.add((case.method, case.path, response.status_code))

        ask()
    assert {("GET", "/pipelines/{pipeline}", 200), ("GET", "/incidents/{incident_id}", 200)} <= statuses


def _known(names: Any, there: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in there.items() if name in names}
