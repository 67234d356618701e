"""A database that version 0.1 filled: windows of a pipeline with two destinations, with losses and odd names in them.

`released/` holds what `pg_dump` of it wrote, and what `lagloss windows orders --json` of 0.1 printed.
"""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from lagloss_server.model.message_ids import unescape_id
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.rules.rollup import Rollup
from lagloss_server.store.migrate import demand_newest, migrate
from lagloss_server.store.store import Store
from lagloss_server.times import parse_time_s

RELEASED = Path(__file__).with_name("released")
DAY_S = 86_400


@pytest.fixture
def upgraded(postgres: EmbeddedPostgres) -> Iterator[Store]:
    """The store of that database, migrated."""
    name = f"released_{uuid.uuid4().hex[:12]}"
    url = postgres.create_database(name)
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.begin() as connection:
        connection.exec_driver_sql(gzip.decompress((RELEASED / "0_1.sql.gz").read_bytes()).decode())
    engine.dispose()
    migrate(url)
    store = Store(url)
    yield store
    store.close()
    postgres.drop_database(name)


def test_what_version_0_1_stored_reads_as_it_did(upgraded: Store) -> None:
    demand_newest(upgraded.engine)
    printed: list[dict[str, Any]] = json.loads((RELEASED / "0_1.windows.json").read_text())
    first_s = int(parse_time_s(printed[0]["window_start"]))
    found = upgraded.windows("orders", first_s, first_s + 60 * len(printed))
    for now, then in zip(found, printed, strict=True):
        assert {field: now[field] for field in then} == then
    missing = {at: upgraded.missing("orders", first_s + 60 * at) for at in range(len(printed))}
    assert {at: len(names) for at, names in missing.items() if names} == {2: 10, 3: 2}
    assert {unescape_id(one.message_id) for one in missing[3]} == {r"weird\x41-3", "o-3-9"}
    rolled_up = upgraded.rollups("orders", "day", first_s // DAY_S * DAY_S, first_s // DAY_S * DAY_S + DAY_S)
    assert [type(one) for one in rolled_up.values()] == [Rollup]
