"""All stored rows that this version cannot read, for `lagloss doctor` and the health page."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select

from lagloss_server.incidents.actions import holding_silences
from lagloss_server.store import tokens, users
from lagloss_server.store.schema.taps import TapRow
from lagloss_server.store.store import Store
from lagloss_server.store.tap_rows import read_taps_of
from lagloss_server.store.unreadable import UnreadableRow


def read_unreadable(store: Store, definitions: Iterable[UnreadableRow]) -> list[UnreadableRow]:
    """Return the unreadable definitions that are given, and what is unreadable of tokens, silences, users and taps."""
    with store.engine.connect() as connection:
        taps = read_taps_of(connection.execute(select(TapRow.tap, TapRow.pipeline, TapRow.node)))
        others = (tokens.read(connection), holding_silences(connection), users.read(connection), taps)
    return sorted([*definitions, *(row for found in others for row in found.unreadable)])
