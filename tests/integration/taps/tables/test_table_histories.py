"""Random histories of sinks and their tables against the ledger; LAGLOSS_TABLE_HISTORIES says how many,
LAGLOSS_TABLE_SEED the first."""

from __future__ import annotations

import os

import pytest
from sqlalchemy import Engine

from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from tests.conftest import fresh_database
from tests.support.table_histories import TableHistory, problems_of
from tests.support.tapped_tables import tapped_database

HISTORIES = int(os.environ.get("LAGLOSS_TABLE_HISTORIES", "9"))
FIRST = int(os.environ.get("LAGLOSS_TABLE_SEED", "1"))


@pytest.mark.timeout(120 + 20 * HISTORIES)
def test_what_a_sink_commits_and_does_not_write_is_lost_and_nothing_else_is(
    postgres: EmbeddedPostgres, tap_engine: Engine, tap_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = lost = 0
    with fresh_database(postgres) as url, tapped_database(url, monkeypatch) as shop:
        for seed in range(FIRST, FIRST + HISTORIES):
            history = TableHistory(shop, tap_engine, tap_database, seed)
            try:
                for _ in range(history.random.randint(20, 80)):
                    history.act()
                    assert not history.false_losses(), f"seed {seed}: {history.false_losses()}"
                history.finish()
                found = [*history.false_losses(), *problems_of(history)]
                assert not found, f"seed {seed}, {history.kind}: {found}"
            finally:
                history.close()
            kills += history.kills
            lost += len(history.lost())
            print(f"seed {seed}: {history.kind}, {len(history.messages)} messages, {history.kills} kills", flush=True)
    assert kills
    assert lost
