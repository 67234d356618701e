"""Answers of a catalog of Iceberg have a limit, at each step."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from lagloss_server.base.errors import TableUnreadable
from lagloss_server.model.tables import TableSpec
from lagloss_server.net import iceberg_tables
from lagloss_server.net.iceberg_tables import load_table, naming, open_catalog
from lagloss_server.net.table_urls import variable_of
from tests.fakes.http_receiver import HttpReceiver, Reply

SPEC = TableSpec(database="lake", table="raw.orders", id="id", event_time="at")
LIMIT = 1_000
GZIP = {"content-encoding": "gzip"}


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpReceiver]:
    """A catalog that knows no table."""
    monkeypatch.setattr(iceberg_tables, "MAX_CATALOG_BYTES", LIMIT)
    with HttpReceiver() as receiver:
        monkeypatch.setenv(variable_of("lake"), f"iceberg+{receiver.url}?token=t")
        yield receiver


def load() -> None:
    with naming(SPEC):
        load_table(open_catalog("lake"), SPEC)


def padded(document: bytes, size: int) -> bytes:
    return document + b" " * (size - len(document))


CONFIG = b'{"defaults": {}, "overrides": {}}'
NO_TABLE = b'{"error": {"message": "no", "type": "NoSuchTableException", "code": 404}}'


def test_answers_of_a_catalog_are_read_up_to_their_limit(catalog: HttpReceiver) -> None:
    catalog.replies = [Reply(200, padded(CONFIG, LIMIT)), Reply(404, gzip.compress(padded(NO_TABLE, LIMIT)), GZIP)]
    with pytest.raises(TableUnreadable, match="the catalog does not have it"):
        load()
    for replies in (
        [Reply(200, padded(CONFIG, LIMIT + 1))],
        [Reply(200, CONFIG), Reply(404, gzip.compress(padded(NO_TABLE, LIMIT + 1)), GZIP)],
    ):
        catalog.replies = replies
        with pytest.raises(TableUnreadable, match=f"expected up to {LIMIT} bytes"):
            load()
    assert not catalog.replies
