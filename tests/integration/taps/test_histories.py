"""Random histories of taps against the truth; LAGLOSS_TAP_HISTORIES says how many, LAGLOSS_TAP_SEED the first."""

from __future__ import annotations

import os

import pytest
from sqlalchemy import Engine

from tests.support.tap_histories import History, differences

HISTORIES = int(os.environ.get("LAGLOSS_TAP_HISTORIES", "12"))
FIRST = int(os.environ.get("LAGLOSS_TAP_SEED", "1"))


@pytest.mark.timeout(60 + 20 * HISTORIES)
def test_taps_tell_every_record_once_whatever_happens(kafka_bootstrap: str, tap_engine: Engine) -> None:
    kills = beacons = 0
    for seed in range(FIRST, FIRST + HISTORIES):
        history = History(kafka_bootstrap, tap_engine, seed)
        try:
            for _ in range(history.random.randint(15, 60)):
                history.act()
            history.finish()
            assert not differences(history), f"seed {seed}: {differences(history)}"
        finally:
            history.close()
        kills += history.kills
        beacons += sum(block.count for kind in history.taps for block in history.blocks(kind))
        print(f"seed {seed}: {len(history.records)} records, {history.kills} kills", flush=True)
    assert kills
    assert beacons
