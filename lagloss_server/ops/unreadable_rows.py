"""All stored rows that this version cannot read, for `lagloss doctor` and the health page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlalchemy import Connection, func, select

from lagloss_server.incidents.actions import holding_silences
from lagloss_server.store import tokens, users
from lagloss_server.store.schema.core import TokenRow
from lagloss_server.store.schema.dashboard import UserRow
from lagloss_server.store.schema.taps import TapRow
from lagloss_server.store.store import Store
from lagloss_server.store.tap_rows import read_taps_of
from lagloss_server.store.unreadable import RESULTS, UnreadableRow


def read_unreadable(store: Store, definitions: Iterable[UnreadableRow]) -> list[UnreadableRow]:
    """Return the unreadable definitions that are given, the results that this process could not read, and what is
    unreadable of silences and taps, and of tokens and users where the role of this process may read them."""
    with store.engine.connect() as connection:
        return sorted([*definitions, *RESULTS, *_others(connection)])


def _others(connection: Connection) -> Iterator[UnreadableRow]:
    yield from holding_silences(connection).unreadable
    yield from read_taps_of(connection.execute(select(TapRow.tap, TapRow.pipeline, TapRow.node))).unreadable
    for row, read in ((TokenRow, tokens.read), (UserRow, users.read)):
        if connection.execute(select(func.has_table_privilege(row.__tablename__, "SELECT"))).scalar_one():
            yield from read(connection).unreadable
