"""Rights in PostgreSQL: each service as a role of its own, which reads all but other parts' secrets and writes its
tables.

`prepare` grants them to those of the roles that exist: docs/postgresql.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy import Connection, text

from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.repair import RepairMessageRow, RepairRow
from lagloss_server.store.schema.runs import DagRunRow, TaskTryRow
from lagloss_server.store.schema.taps import LostAfterwardsMessageRow, LostAfterwardsRow

_ALERTING: Final = ("incident", "incident_change", "outbox", "silence")
"""What people change too, on the dashboard and by the command line."""
RUNS: Final = (DagRunRow.__tablename__, TaskTryRow.__tablename__)
REPAIRS: Final = (RepairRow.__tablename__, RepairMessageRow.__tablename__)
LOST: Final = (LostAfterwardsRow.__tablename__, LostAfterwardsMessageRow.__tablename__)
WRITES: Final = {
    "lagloss_aggregator": (
        *("audited", "cluster_group", "cluster_topics", "consumer_group", "consumer_lag", "deferred_reports"),
        *("emitter", "lease"),
        *(
            "missing_message",
            "picked_messages",
            "progress",
            "pruned",
            "quarantine",
            "quarantine_count",
            "recompute_request",
            "reports_position",
            "rollup",
            "rollup_dirty",
        ),
        *("set_aside", "stranger", "tally", "window", "window_history"),
    ),
    "lagloss_collector": ("pipeline", *RUNS),
    "lagloss_alerting": (*_ALERTING, "lease", "judged_windows", "pending_breach", "receiver"),
    "lagloss_taps": ("tap", "tap_tally", "tap_unreadable", "remembered_rows", *LOST),
    "lagloss_canary": ("canary_minute", "lease"),
    "lagloss_dashboard": (*_ALERTING, *REPAIRS, "login_session", "login_user", "recompute_request", "report_run"),
    "lagloss_cli": (
        *_ALERTING,
        *REPAIRS,
        LOST[0],
        "login_session",
        "login_user",
        "pipeline",
        "recompute_request",
        "token",
    ),
}
"""The tables that each role writes; who may, and why, is in each table's comment."""
AUDIT: Final = "audit_trail"
ADDS: Final = {"lagloss_collector": AUDIT, "lagloss_dashboard": AUDIT, "lagloss_cli": AUDIT}
"""The table that a role may only add rows to."""
PRUNES: Final = {"lagloss_aggregator": (AUDIT, *REPAIRS, *RUNS, *LOST)}
"""Tables that a role may only delete rows of."""
_LOGIN: Final = ("lagloss_cli", "lagloss_dashboard")
READS_ALONE: Final = {
    "login_session": _LOGIN,
    "login_user": _LOGIN,
    "token": ("lagloss_cli", "lagloss_collector"),
    AUDIT: (*_LOGIN, "lagloss_aggregator"),
    "canary_secret": ("lagloss_canary",),
}
"""Tables that these roles read and no other: hashes of passwords, sessions and tokens, who looked at what, and the
canary's faults."""
MAKES_DAYS: Final = "lagloss_aggregator"
"""Owns the tables that are partitioned by day: only an owner can add and drop a day."""


def grant(connection: Connection) -> list[str]:
    """Give the roles that exist their rights, and take others away; return their names. Can be repeated.

    Raises:
        ProgrammingError: the connected role may not.
    """
    names = connection.execute(text("SELECT rolname FROM pg_roles WHERE rolname = ANY(:names)"), {"names": [*WRITES]})
    names_ = sorted(names.scalars())
    for role in names_:
        for statement in _statements(connection, role):
            connection.execute(text(statement))
    return names_


def _statements(connection: Connection, role: str) -> Iterator[str]:
    schema = connection.execute(text("SELECT quote_ident(current_schema())")).scalar_one()
    yield f"GRANT USAGE ON SCHEMA {schema} TO {role}"
    yield f"REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {role}"
    yield f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}"
    for table in (table for table, readers in READS_ALONE.items() if role not in readers):
        yield f'REVOKE SELECT ON "{table}" FROM {role}'
    for table in WRITES[role]:
        yield f'GRANT INSERT, UPDATE, DELETE ON "{table}" TO {role}'
    if role in ADDS:
        yield f'GRANT INSERT ON "{ADDS[role]}" TO {role}'
    for table in PRUNES.get(role, ()):
        yield f'GRANT DELETE ON "{table}" TO {role}'
    if role == MAKES_DAYS:
        yield f"GRANT CREATE ON SCHEMA {schema} TO {role}"
        for name in (table.name for table in tables.PARTITIONED):
            days = text("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = CAST(:name AS regclass)")
            for day in connection.execute(days, {"name": f'"{name}"'}).scalars():
                yield f"ALTER TABLE {day} OWNER TO {role}"
            yield f'ALTER TABLE "{name}" OWNER TO {role}'
