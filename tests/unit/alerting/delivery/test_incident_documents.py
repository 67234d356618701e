"""The JSON of an incident, field by field: notifications, `lagloss alerts show --json`, and the API promise it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from alerting.cli.incident_text import details
from alerting.incidents.body import incident_body
from lagloss_server.incidents.changes import IncidentRecord
from lagloss_server.incidents.runbooks import runbook
from tests.unit.alerting.delivery.test_body import DASHBOARD, OPEN

EXAMPLE = "message_id id_hash kind places last_checkpoint last_seen"
PLACE = "kind name share text lost"
LINK_NAMES = "dashboard incident runbook"


def names(document: dict[str, Any]) -> dict[str, Any]:
    """The fields of each part in their order, `A B C`; of a list, those of its first entry."""
    found: dict[str, Any] = {"": " ".join(document)}
    for name, part in document.items():
        first = part[0] if isinstance(part, list) and part else part
        if isinstance(first, dict):
            found[name] = " ".join(first)
    return found


def test_a_notification_has_these_fields_in_this_order() -> None:
    body = json.loads(json.dumps(incident_body(OPEN, "opened", {"team": "checkout"}, DASHBOARD)))
    assert names(body) == {
        "": "version type summary incident breach since windows where destinations blame examples notes links commands",
        "incident": "id pipeline rule kind severity state labels opened_at resolved_at resolved_because "
        "acknowledged_at acknowledged_by",
        "breach": "what unit value worst target text window_start window_end worst_window_start messages lost",
        "windows": "first last count",
        "where": PLACE,
        "examples": EXAMPLE,
        "links": LINK_NAMES,
        "commands": "acknowledge silence",
    }


def test_list_and_show_print_these_fields_in_this_order() -> None:
    listed = (
        "id pipeline rule kind severity state opened_at resolved_at resolved_because acknowledged_at acknowledged_by "
        "withheld breach since windows where"
    )
    parts = {"breach": "value worst target text", "windows": "first last count", "where": PLACE}
    assert names(OPEN.document()) == {"": listed, **parts}
    shown = json.loads(json.dumps(IncidentRecord(OPEN, [], []).document(DASHBOARD)))
    more = {
        "": f"{listed} destinations blame examples notes links changes deliveries repairs",
        "examples": EXAMPLE,
        "links": LINK_NAMES,
    }
    assert names(shown) == {**parts, **more}


def test_without_a_dashboard_address_the_runbook_is_the_installed_file() -> None:
    lines = details(IncidentRecord(OPEN, [], []).document(""))
    (path,) = (line.split()[1] for line in lines if line.startswith("runbook "))
    assert Path(path).read_text("utf-8") == runbook("loss")
