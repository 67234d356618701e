"""Random histories of sinks and their folders of Parquet against the ledger; LAGLOSS_FOLDER_HISTORIES says how many,
LAGLOSS_FOLDER_SEED the first."""

from __future__ import annotations

import os

import pytest
from sqlalchemy import Engine

from lagloss_server.net import parquet_folders
from lagloss_server.ops.embedded.localstack import EmbeddedLocalStack
from taps.tables import parquet
from tests.support.folder_histories import FolderHistory
from tests.support.landings import landing_on
from tests.support.table_histories import live

HISTORIES = int(os.environ.get("LAGLOSS_FOLDER_HISTORIES", "4"))
FIRST = int(os.environ.get("LAGLOSS_FOLDER_SEED", "1"))


@pytest.mark.timeout(120 + 60 * HISTORIES)
def test_what_a_sink_commits_and_no_file_has_is_lost_and_nothing_else_is(
    localstack: EmbeddedLocalStack, tap_engine: Engine, tap_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = lost = lost_afterwards = 0
    for seed in range(FIRST, FIRST + HISTORIES):
        with monkeypatch.context() as patch, landing_on(localstack, patch) as landing:
            patch.setattr(parquet, "NEWEST", 2 if seed % 3 == 0 else parquet.NEWEST)
            patch.setattr(parquet_folders, "WHOLE_BYTES", 0 if seed % 2 == 0 else parquet_folders.WHOLE_BYTES)
            history = FolderHistory(tap_engine, tap_database, seed, landing)
            live(history, 60)
            kills += history.kills
            lost += len(history.lost())
            lost_afterwards += len(history.stated)
            print(
                f"seed {seed}: {len(history.messages)} messages, {history.kills} kills, {len(history.stated)} gone",
                flush=True,
            )
    assert kills
    assert lost
    assert lost_afterwards
