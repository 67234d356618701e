"""Day partitions of the tables that hold a row per window and more."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from sqlalchemy import Connection, Engine, Table, text

from lagloss_server.store.schema import core as tables

DAY_S = 86_400


_ATTACHED: Final = text(
    "SELECT relname FROM pg_class WHERE relname = ANY(:names) AND relispartition AND pg_table_is_visible(oid)"
)
_ONE_CREATOR: Final = text("SELECT pg_advisory_xact_lock(hashtextextended('lagloss-days', 0))")
"""Held to the transaction's end, for the second of two creators of a day would fail on its name."""


def day_label(day: int) -> str:
    """Return how the name of a day's partition ends; `day` counts from the epoch."""
    return time.strftime("%Y%m%d", time.gmtime(day * DAY_S))


def ensure_days(connection: Connection, window_starts_s: Iterable[int]) -> None:
    """Create the day partitions that rows of these windows (epoch s) go to. A new one locks its table against creators
    of others, to the transaction's end; readers and writers of rows go on."""
    days = {start // DAY_S for start in window_starts_s}
    names = {f"{table.name}_{day_label(day)}": (table, day) for table in tables.PARTITIONED for day in sorted(days)}
    if _missing(connection, names):
        connection.execute(_ONE_CREATOR)
        for name in _missing(connection, names):
            _create_day(connection, *names[name])


def make_days_ahead(engine: Engine, now_s: float) -> None:
    """Create the partitions of today and tomorrow: at midnight no transaction that writes rows has to."""
    with engine.begin() as connection:
        ensure_days(connection, [int(now_s), int(now_s) + DAY_S])


def _missing(connection: Connection, names: Iterable[str]) -> list[str]:
    required = set(names)
    return sorted(required - set(connection.execute(_ATTACHED, {"names": [*required]}).scalars()))


def _create_day(connection: Connection, table: Table, day: int) -> None:
    name, first_s = f"{table.name}_{day_label(day)}", day * DAY_S
    stored = f" WITH ({table.info['days_with']})" if table.info else ""
    bounds = f"FOR VALUES FROM ({first_s}) TO ({first_s + DAY_S})"
    # CREATE TABLE … PARTITION OF would lock the table against its readers: one that has read another table and a writer
    # that has created that one's day would wait for each other.
    like = f'"{table.name}" INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE INCLUDING COMPRESSION'
    connection.execute(text(f'CREATE TABLE IF NOT EXISTS "{name}" (LIKE {like}){stored}'))
    connection.execute(text(f'ALTER TABLE "{table.name}" ATTACH PARTITION "{name}" {bounds}'))
