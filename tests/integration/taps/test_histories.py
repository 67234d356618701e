"""Random histories of taps against the truth; LAGLOSS_TAP_HISTORIES says how many, LAGLOSS_TAP_SEED the first."""

from __future__ import annotations

import os
import random

import pytest
from sqlalchemy import Engine

from taps import kernel, planner, runner
from tests.support.tap_histories import History, differences

HISTORIES = int(os.environ.get("LAGLOSS_TAP_HISTORIES", "6"))
LONGEST = 10_000
"""Offsets that no history comes to."""
FIRST = int(os.environ.get("LAGLOSS_TAP_SEED", "1"))


@pytest.mark.timeout(120 + 20 * HISTORIES)
def test_taps_tell_every_record_once_whatever_happens(
    kafka_bootstrap: str, tap_engine: Engine, tap_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "SAME_CLOCK_MS", 0)  # else histories would be too short for any
    monkeypatch.setattr(runner, "RESTS_AFTER", 1)
    kills = beacons = 0
    for seed in range(FIRST, FIRST + HISTORIES):
        reach = random.Random(seed).choice([0, 3, planner.REACH, planner.REACH])
        names_all = seed % 4 != 1
        monkeypatch.setattr(kernel, "MAX_REPLAYS", 100 if names_all else 1)
        history = History(kafka_bootstrap, tap_engine, tap_database, seed, reach >= LONGEST, names_all)
        try:
            with monkeypatch.context() as patched:
                patched.setattr(planner, "REACH", reach)
                for _ in range(history.random.randint(15, 60)):
                    history.act()
                    assert not history.false_losses(), f"seed {seed}: {history.false_losses()}"
            history.finish()
            found = differences(history)
            assert not found, f"seed {seed}, deleted {history.deleted}, {history.trouble}: {found}"
        finally:
            history.close()
        kills += history.kills
        beacons += sum(block.count for kind in history.taps for block in history.blocks(kind))
        print(f"seed {seed}: {len(history.records)} records, {history.kills} kills", flush=True)
    assert kills
    assert beacons
