"""A database of the taps' own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.store.store import Store
from tests.conftest import fresh_database


@pytest.fixture(scope="session")
def tap_engine(postgres: EmbeddedPostgres) -> Iterator[Engine]:
    with fresh_database(postgres) as url:
        store = Store(url)
        try:
            yield store.engine
        finally:
            store.close()
