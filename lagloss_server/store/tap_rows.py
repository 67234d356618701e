"""Rows of the table `tap`, each read for itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Row

from lagloss_server.model.tables import AnyTap, tap_of
from lagloss_server.store.unreadable import ReadRows, UnreadableRow, read_each


def read_taps_of(rows: Iterable[Row[Any]]) -> ReadRows[tuple[AnyTap, Row[Any]]]:
    """Return the taps of rows that have the columns `tap`, `pipeline` and `node`, with their rows."""
    return read_each(
        rows,
        lambda row: (tap_of(row.tap), row),
        lambda row, why: UnreadableRow("tap", row.pipeline, row.node, why),
    )
