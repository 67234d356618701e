"""All tables of a database as rows: to compare two databases, and to put one back to what it was."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, Table, insert, select, text
from sqlalchemy.exc import OperationalError
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from lagloss_server.judging.facts import WindowFacts, merge_patterns
from lagloss_server.store.partitions import ensure_days
from lagloss_server.store.schema.core import PARTITIONED, Base

ALL = tuple(Base.metadata.sorted_tables)
NOT_COMPARED = {
    *("rollup", "rollup_dirty", "pruned", "recompute_request", "audit_trail", "lease", "cluster_group"),
    *("cluster_topics", "canary_secret", "canary_minute"),
}
"""Tables that follow from windows whenever upkeep comes by, were changed in one database only, name a process, or tell
of a whole cluster at a moment."""
COMPARED = tuple(table for table in ALL if table.name not in NOT_COMPARED)
Rows = Mapping[str, Sequence[Mapping[str, Any]]]

WALL_CLOCK = {
    "window": {"closed_at", "judged_at", "deadline"},
    "window_history": {"closed_at"},
    "quarantine": {"found_at"},
    "quarantine_count": {"hour"},
    "pipeline": {"applied_at"},
}
"""Columns that tell when something was done, which no two runs have in common."""


def dump(engine: Engine) -> Rows:
    """Every row of every table."""
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        return {table.name: [dict(row) for row in connection.execute(select(table)).mappings()] for table in ALL}


@retry(retry=retry_if_exception_type(OperationalError), stop=stop_after_attempt(5), reraise=True)
def restore(engine: Engine, backup: Rows) -> None:
    """Put every table back to what it was, in one transaction, as `pg_restore --disable-triggers` does while clients
    stay connected. Where it meets one of them in a deadlock, PostgreSQL may end either: it begins anew."""
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))  # the audit trail refuses TRUNCATE
        names = ", ".join(f'"{table.name}"' for table in ALL)
        connection.execute(text(f"TRUNCATE {names} CASCADE"))
        for table in ALL:
            rows = backup[table.name]
            if table in PARTITIONED:
                ensure_days(connection, {row["window_start"] for row in rows})
            if rows:
                connection.execute(insert(table), list(rows))


def differences(
    one: Rows, other: Rows, until_s: float = math.inf, but: Collection[str] = (), tables: Collection[Table] = COMPARED
) -> list[str]:
    """What two dumps do not have in common, but for columns of WALL_CLOCK and `but`; of windows only those before
    `until_s` (epoch s)."""
    found = []
    for table in tables:
        names = [column.name for column in table.c if column.name not in {*but, *WALL_CLOCK.get(table.name, ())}]
        ours, theirs = (_by_key(table, rows[table.name], until_s) for rows in (one, other))
        found += [f"{table.name} {key}: only in one" for key in ours.keys() ^ theirs.keys()]
        found += [
            f"{table.name} {key}: {name} is {ours[key][name]!r} and {theirs[key][name]!r}"
            for key in ours.keys() & theirs.keys()
            for name in names
            if ours[key][name] != theirs[key][name]
        ]
    return found


def _by_key(
    table: Table, rows: Iterable[Mapping[str, Any]], until_s: float
) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    key = [column.name for column in table.primary_key if column.name not in WALL_CLOCK.get(table.name, ())]
    found: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in rows:
        if row.get("window_start", 0) < until_s:
            where = tuple(row[name] for name in key)
            found[where] = _added(found[where], row) if where in found else _uncut(row)
    return found


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """Counts of the same thing at different times of the wall clock: of two hours, if a run went over the turn."""
    return {**one, "count": one["count"] + other["count"]}


def _uncut(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A window's row with its facts as if they had not been cut where maxWait ago was at the moment of the closing."""
    if "facts" not in row:
        return row
    facts = WindowFacts.unpack(row["facts"])
    return {**row, "facts": replace(facts, patterns=merge_patterns(facts.patterns, ()), cuts=()).pack()}


def password_in(passfile: Path) -> str:
    """The password in the file of an EmbeddedPostgres, which has one line."""
    return passfile.read_text().strip().rpartition(":")[2]
