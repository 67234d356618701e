"""Random histories of sinks and their tables of Iceberg against the ledger; LAGLOSS_LAKE_HISTORIES says how many,
LAGLOSS_LAKE_SEED the first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import Engine

from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from tests.conftest import fresh_database
from tests.support.lake_histories import LakeHistory
from tests.support.lakes import lake_at
from tests.support.table_histories import live

HISTORIES = int(os.environ.get("LAGLOSS_LAKE_HISTORIES", "4"))
FIRST = int(os.environ.get("LAGLOSS_LAKE_SEED", "1"))


@pytest.mark.timeout(120 + 60 * HISTORIES)
def test_what_a_sink_commits_and_no_snapshot_has_is_lost_and_nothing_else_is(
    postgres: EmbeddedPostgres,
    tap_engine: Engine,
    tap_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kills = lost = gaps = lost_afterwards = 0
    with fresh_database(postgres) as url, lake_at(url, f"file://{tmp_path}", monkeypatch) as lake:
        for seed in range(FIRST, FIRST + HISTORIES):
            history = LakeHistory(tap_engine, tap_database, seed, lake)
            live(history, 60)
            kills += history.kills
            gaps += history.gaps
            lost += len(history.lost())
            lost_afterwards += len(history.stated)
            print(
                f"seed {seed}: {len(history.messages)} messages, {history.kills} kills, {history.gaps} gaps", flush=True
            )
    assert kills
    assert lost
    assert lost_afterwards
