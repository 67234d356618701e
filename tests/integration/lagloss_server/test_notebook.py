"""Windows of a real database as data frames."""

from __future__ import annotations

import pytest

from lagloss_server.base.errors import UnknownPipeline
from lagloss_server.model.window import rfc3339
from lagloss_server.notebook import read_windows
from lagloss_server.store.store import Store
from tests.support.stored_windows import Stored, days_ago


def test_windows_are_rows_oldest_first(store: Store, database_url: str) -> None:
    stored, start_s = Stored(store=store), days_ago(1)
    for at, lost in enumerate((0, 3)):
        stored.close(start_s + 60 * at, 100, lost)
    span = rfc3339(start_s), rfc3339(start_s + 120)
    frame = read_windows("chain", *span, database_url=database_url)
    assert frame[["messages", "lost_min", "verdict"]].values.tolist() == [[100, 0, "ok"], [100, 3, "loss"]]
    points = read_windows("chain", *span, of="checkpoints", database_url=database_url)
    assert points["name"].tolist() == ["src.in", "snk.out"] * 2
    with pytest.raises(UnknownPipeline):
        read_windows("nowhere", database_url=database_url)
