"""All tables of a database as rows: to compare two databases, and to put one back to what it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, insert, select, text

from lagloss.store import ensure_days
from lagloss.tables import PARTITIONED, Base

Rows = Mapping[str, Sequence[Mapping[str, Any]]]

WALL_CLOCK = {
    "window": {"closed_at", "judged_at", "deadline"},
    "window_history": {"closed_at"},
    "quarantine": {"found_at"},
    "pipeline": {"applied_at"},
}
"""Columns that tell when something was done, which no two runs have in common."""


def dump(engine: Engine) -> Rows:
    """Every row of every table."""
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        return {
            table.name: [dict(row) for row in connection.execute(select(table)).mappings()]
            for table in Base.metadata.sorted_tables
        }


def restore(engine: Engine, backup: Rows) -> None:
    """Put every table back to what it was, in one transaction, as pg_restore does while clients stay connected."""
    with engine.begin() as connection:
        names = ", ".join(f'"{table.name}"' for table in Base.metadata.sorted_tables)
        connection.execute(text(f"TRUNCATE {names} CASCADE"))
        for table in Base.metadata.sorted_tables:
            rows = backup[table.name]
            if table in PARTITIONED:
                ensure_days(connection, {row["window_start"] for row in rows})
            if rows:
                connection.execute(insert(table), list(rows))


def contents(engine: Engine, until_s: int | None = None) -> dict[str, list[dict[str, Any]]]:
    """Every row without the columns of WALL_CLOCK, in an order of their own; of windows only those before `until_s`."""
    found = {}
    for name, rows in dump(engine).items():
        kept = [row for row in rows if until_s is None or row.get("window_start", 0) < until_s]
        plain = [{key: row[key] for key in row if key not in WALL_CLOCK.get(name, ())} for row in kept]
        found[name] = sorted(plain, key=repr)
    return found
