"""The definition of the canary's pipeline. The canary itself needs nothing that definitions do, but its names."""

from __future__ import annotations

from typing import Any

from lagloss_server.model.canary import (
    ALERTING_PLACES,
    APP,
    CANARY,
    CANARY_TOPIC,
    GRACE_S,
    PLACE_TARGET,
    RELAY,
    STORE,
    TABLE,
    TABLE_DATABASE,
    TARGET_LAG_MS,
)
from lagloss_server.model.definition import Definition


def canary_definition(*, has_table: bool = False) -> Definition:
    """Return the definition that `prepare` stores. `has_table`: its last node is measured by a table."""
    return Definition.model_validate(_document(has_table=has_table))


def _document(*, has_table: bool) -> dict[str, Any]:
    quiet = dict.fromkeys(
        (
            *("uncertainLoss", "lag", "onTime", "staleness", "timeToLoss", "budget", "blind", "deadLetters"),
            *("duplicates", "filtered", "volume", "corruption", "lostAfterwards", "deadline", "runFailed"),
            *("outputStale", "runLate"),
        ),
        False,
    )
    losses = [{"at": place.replace(" ", "=", 1), "max": PLACE_TARGET, "page": False} for place in ALERTING_PLACES]
    topic = {"topic": CANARY_TOPIC, "id": "key", "eventTime": "$ in ms", "format": "text"}
    table = {"database": TABLE_DATABASE, "table": TABLE, "id": "id", "eventTime": "event_time", "cursor": "seen"}
    return {
        "apiVersion": "lagloss/v1",
        "kind": "Pipeline",
        "metadata": {"name": CANARY, "description": "messages of lagloss's own, with faults, to check its results"},
        "spec": {
            "nodes": [
                {"name": APP, "to": [RELAY]},
                {"name": RELAY, "to": [STORE], "taps": {"out": topic}},
                {"name": STORE, "taps": {"out": table} if has_table else {}},
            ],
            "grace": f"{GRACE_S}s",
            "sla": {"lag": {"target": f"{TARGET_LAG_MS}ms"}},
            "alerts": {"resolveAfter": 3, "loss": losses, **quiet},
        },
    }
