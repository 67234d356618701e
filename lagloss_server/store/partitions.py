"""Day partitions of the tables that hold a row per window and more."""

from __future__ import annotations

import time
from collections.abc import Iterable

from sqlalchemy import Connection, Engine, Table, text

from lagloss_server.store.schema import core as tables

DAY_S = 86_400


def day_label(day: int) -> str:
    """Return how the name of a day's partition ends; `day` counts from the epoch."""
    return time.strftime("%Y%m%d", time.gmtime(day * DAY_S))


def ensure_days(connection: Connection, window_starts_s: Iterable[int]) -> None:
    """Make the day partitions that rows of these windows go to. A new one locks its table to the transaction's end; see
    `make_days_ahead`."""
    for day in sorted({start // DAY_S for start in window_starts_s}):
        for table in tables.PARTITIONED:
            _make_day(connection, table, day)


def make_days_ahead(engine: Engine, now_s: float) -> None:
    """Make the partitions of today and tomorrow, each in a transaction of its own: at midnight there is none to be made
    by transactions that hold other locks, which a reader of several tables could meet in a deadlock."""
    for day in (int(now_s) // DAY_S, int(now_s) // DAY_S + 1):
        for table in tables.PARTITIONED:
            with engine.begin() as connection:
                _make_day(connection, table, day)


def _make_day(connection: Connection, table: Table, day: int) -> None:
    stored = f" WITH ({table.info['days_with']})" if table.info else ""
    connection.execute(
        text(
            f'CREATE TABLE IF NOT EXISTS "{table.name}_{day_label(day)}" PARTITION OF "{table.name}" '
            f"FOR VALUES FROM ({day * DAY_S}) TO ({(day + 1) * DAY_S}){stored}"
        )
    )
