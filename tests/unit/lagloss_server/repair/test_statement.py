"""Statements of repairs: what they count, what they name, and how the command ends."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from lagloss_server.repair.ledger import RepairPlan, RepairRequest, StoredRepair
from lagloss_server.repair.lost import LostId, WindowLoss
from lagloss_server.repair.plan import MessageState, PlannedMessage, default_rate
from lagloss_server.repair.preparation import Prepared
from lagloss_server.repair.records import RecordPosition
from lagloss_server.repair.site import HEADERS, RecordSource
from lagloss_server.repair.statement import (
    exit_code,
    nothing_sent,
    plan_document,
    plan_lines,
    statement,
    statement_lines,
    without_names,
)

REQUEST = RepairRequest("shop", "link a->b", 1_795_250_400, 1_795_250_520, with_perhaps=False)
BEFORE = (WindowLoss(1_795_250_400, 100, 3, 4), WindowLoss(1_795_250_460, 50, 1, 1))
PLAN = RepairPlan("", (RecordSource("orders", HEADERS, "orders"),), {"orders": {0: 7}}, BEFORE)
STORED = StoredRepair(
    "5f0c", REQUEST, PLAN, "ab" * 32, datetime(2026, 11, 21, tzinfo=UTC), "ann", "finished", None, 3, 50.0, None, None,
    None,
)  # fmt: skip


def planned(number: int, state: MessageState, *, arrived: bool = False, name: str | None = "x") -> PlannedMessage:
    message = LostId(1_795_250_400, number, name and f"{name}-{number}\\x0a", "lost", 0.0)
    record = None if state == "gone" else RecordPosition("orders", 0, number, "orders")
    return PlannedMessage(number, message, record, state, arrived)


WHOLE = [planned(0, "sent", arrived=True), planned(1, "sent", arrived=True)]


@pytest.mark.parametrize(
    ("messages", "state", "code"),
    [
        (WHOLE, "finished", 0),
        ([], "finished", 0),
        ([*WHOLE, planned(2, "arrived")], "finished", 0),
        ([*WHOLE, planned(2, "gone")], "finished", 4),
        ([*WHOLE, planned(2, "sent")], "finished", 1),
        ([*WHOLE, planned(2, "sent"), planned(3, "gone")], "finished", 1),
        ([*WHOLE, planned(2, "planned")], "stopped", 1),
        ([*WHOLE, planned(2, "elsewhere")], "finished", 1),
        ([*WHOLE, planned(2, "refused")], "finished", 4),
    ],
)
def test_only_a_repair_of_which_all_arrived_ends_with_0(messages: list[PlannedMessage], state: str, code: int) -> None:
    stored = replace(STORED, state=state)  # type: ignore[arg-type]
    assert exit_code(statement(stored, messages)) == code


@pytest.mark.parametrize("left_out", [{"unnamed": 3}, {"in_other_repairs": 40}])
def test_what_a_repair_leaves_out_is_in_its_statement_and_in_its_exit_code(left_out: dict[str, int]) -> None:
    document = statement(replace(STORED, plan=replace(PLAN, **left_out)), WHOLE)  # type: ignore[arg-type]
    assert exit_code(document) == 4
    assert any(line.startswith(f"{next(iter(left_out.values()))} more are") for line in statement_lines(document))
    nothing = nothing_sent(plan_document(Prepared(REQUEST, (), replace(PLAN, **left_out), (), 50.0)))  # type: ignore[arg-type]
    assert exit_code(nothing) == 4
    assert not any("None" in line for line in statement_lines(nothing))


def test_a_statement_counts_the_whole_repair_and_names_what_is_missing_as_it_was_sent() -> None:
    messages = [*WHOLE, planned(2, "sent"), planned(3, "arrived"), planned(4, "gone"), planned(5, "gone", name=None)]
    document = statement(STORED, messages, ["b"], [WindowLoss(1_795_250_400, 100, 1, 1)])
    assert {name: document[name] for name in ("lost", "found", "gone", "sent", "arrived")} == {  # type: ignore[literal-required]
        "lost": 6, "found": 4, "gone": 2, "sent": 3, "arrived": 2,
    }  # fmt: skip
    assert document["missing"] == ["x-2\n"]
    assert document["gone_ids"] == ["x-4\n", f"{5:016x}"]
    assert (document["repair"], document["topic"], document["arrived_meanwhile"]) == ("repair-5f0c", "orders", 1)
    assert document["before"] == {"messages": 150, "lost_min": 4, "lost_max": 5}
    assert document["after"] == {"messages": 100, "lost_min": 1, "lost_max": 1}
    assert json.loads(json.dumps(document)) == document
    lines = "\n".join(statement_lines(document))
    assert "sent 3 of 6, arrived 2" in lines
    assert "1 sent and not arrived: x-2" in lines


def test_what_is_stored_of_a_statement_has_no_name_of_a_message() -> None:
    messages = [*WHOLE, planned(2, "sent"), planned(4, "gone"), planned(5, "elsewhere"), planned(6, "refused")]
    kept = without_names(statement(STORED, messages), messages)
    assert (kept["missing"], kept["elsewhere"], kept["refused"]) == (1, 1, 1)
    assert kept["arrived_by_window"] == [(1_795_250_400, 2)]
    assert "x-" not in json.dumps(kept)


def test_a_dry_run_says_what_would_be_sent_and_what_is_left_out() -> None:
    messages = (planned(0, "planned"), planned(1, "planned"), planned(2, "gone"))
    plan = replace(PLAN, sample=0.5, unnamed=1, in_other_repairs=2)
    prepared = Prepared(REQUEST, ("b",), plan, messages, default_rate(0), repaired=3, other_groups=("mirror",))
    document = plan_document(prepared)
    expected = {"repair": None, "state": "planned", "lost": 3, "found": 2, "gone": 1, "topic": "orders", "rate": 50.0}
    assert {name: document[name] for name in expected} == expected  # type: ignore[literal-required]
    assert (document["in_other_repairs"], document["unnamed"], document["sample"]) == (2, 1, 0.5)
    assert (document["from"], document["to"]) == ("2026-11-21T08:40:00Z", "2026-11-21T08:42:00Z")
    assert len(document["set_sha256"]) == 64
    lines = "\n".join(plan_lines(document))
    assert "can have a second effect: b" in lines
    assert "that no definition names, too: mirror" in lines
    assert "3 more arrived by other repairs" in lines
    assert exit_code(nothing_sent(document)) == 4
    assert nothing_sent(document)["sent"] == 0


def test_plans_are_stored_as_json_and_read_back() -> None:
    assert RepairPlan.of("", json.loads(json.dumps(PLAN.document()))) == PLAN
    assert PLAN.topics == ("orders",)
