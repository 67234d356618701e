"""Random histories of sinks and their tables against the ledger; LAGLOSS_TABLE_HISTORIES says how many,
LAGLOSS_TABLE_SEED the first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from tests.conftest import fresh_database
from tests.support.postgres_14 import postgres_14
from tests.support.table_histories import TableHistory, live
from tests.support.tapped_tables import tapped_database

HISTORIES = int(os.environ.get("LAGLOSS_TABLE_HISTORIES", "9"))
FIRST = int(os.environ.get("LAGLOSS_TABLE_SEED", "1"))


@pytest.fixture(params=["newest", "14"])
def url(request: pytest.FixtureRequest, postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[str]:
    """The database with the sink's tables, of the newest and of the oldest PostgreSQL that can be tapped."""
    if request.param == "newest":
        with fresh_database(postgres) as url:
            yield url
    else:
        with postgres_14(tmp_path) as oldest:
            yield oldest.url


@pytest.mark.timeout(120 + 20 * HISTORIES)
def test_what_a_sink_commits_and_does_not_write_is_lost_and_nothing_else_is(
    url: str, tap_engine: Engine, tap_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = lost = lost_afterwards = 0
    with tapped_database(url, monkeypatch) as shop:
        for seed in range(FIRST, FIRST + HISTORIES):
            history = TableHistory(tap_engine, tap_database, seed, shop)
            live(history, 80)
            kills += history.kills
            lost += len(history.lost())
            lost_afterwards += len(history.stated)
            print(f"seed {seed}: {history.kind}, {len(history.messages)} messages, {history.kills} kills", flush=True)
    assert kills
    assert lost
    assert lost_afterwards
