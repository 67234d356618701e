"""A database of the taps' own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import Engine

from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.store.store import Store
from tests.conftest import fresh_database


@pytest.fixture(scope="session")
def tap_database(postgres: EmbeddedPostgres) -> Iterator[str]:
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture(scope="session")
def tap_engine(tap_database: str) -> Iterator[Engine]:
    with closing(Store(tap_database)) as store:
        yield store.engine
