"""Pending breaches in PostgreSQL: rules that have begun to breach, one row each until that is over. Statements only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from alerting.rules import Rule
from alerting.rules.assessment import PendingBreach
from lagloss_server.store.schema.alerting import PendingBreachRow
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.store import names_not_deleted

_table = table_of(PendingBreachRow)


def write(connection: Connection, pipeline: str, found: Sequence[tuple[Rule, PendingBreach]]) -> None:
    """Replace the pipeline's pending breaches, if they changed."""
    rows = [_row(pipeline, rule, begun) for rule, begun in found]
    stored = connection.execute(select(_table).where(_table.c.pipeline == pipeline)).mappings()
    if {row["rule"]: dict(row) for row in stored} == {row["rule"]: row for row in rows}:
        return
    connection.execute(delete(_table).where(_table.c.pipeline == pipeline))
    if rows:
        connection.execute(insert(_table), rows)


def forget_deleted(connection: Connection) -> None:
    """Delete pending breaches of deleted pipelines."""
    connection.execute(delete(_table).where(_table.c.pipeline.not_in(names_not_deleted())))


def _row(pipeline: str, rule: Rule, begun: PendingBreach) -> dict[str, Any]:
    return {
        "pipeline": pipeline,
        "rule": rule.name,
        "kind": rule.kind,
        "severity": rule.severity,
        "breaches": begun.breaches,
        "needed": begun.needed,
        "of": begun.of,
        "first_window": begun.first_s,
        "last_window": begun.last_s,
        "text": rule.text(begun.value),
    }
