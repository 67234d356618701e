"""Which class reads a table: that of the kind which the URL of its database names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lagloss.errors import LaglossError
from lagloss_server.model.tables import TableSpec
from lagloss_server.net.table_urls import TableKind, kind_of, unreadable
from taps.tables.reading import MissingRows, SeenRow, TableRead, TableReader

AGAIN_S: Final = 1.0
"""Between two looks for the URL, as long as it names no kind."""


def _postgresql(spec: TableSpec) -> TableReader:
    from taps.tables.postgres import PostgresTable

    return PostgresTable(spec)


def _iceberg(spec: TableSpec) -> TableReader:
    from taps.tables.iceberg import IcebergTable

    return IcebergTable(spec)


def _parquet(spec: TableSpec) -> TableReader:
    from taps.tables.parquet import ParquetFolder

    return ParquetFolder(spec)


READERS: Final[Mapping[TableKind, Callable[[TableSpec], TableReader]]] = {
    "postgresql": _postgresql,
    "iceberg": _iceberg,  # imports pyiceberg, an extra
    "parquet": _parquet,
}


class TableOfUrl:
    """Reads one table, of whatever kind. The URL is looked at once there is something to read: until then the
    environment need not have it."""

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self._reader: TableReader | None = None

    @property
    def interval_s(self) -> float:
        return AGAIN_S if self._reader is None else self._reader.interval_s

    def read(self, position: Mapping[str, Any], since_ms: int) -> TableRead:
        """Return the rows that are new since a position. Raises TableUnreadable."""
        return self._known().read(position, since_ms)

    def missing(self, rows: Sequence[SeenRow]) -> MissingRows:
        """Return the ids of those of these rows that the table does not have. Raises TableUnreadable."""
        return self._known().missing(rows)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _known(self) -> TableReader:
        if self._reader is None:
            try:
                self._reader = READERS[kind_of(self._spec.database)](self._spec)
            except LaglossError as error:
                raise unreadable(self._spec, str(error)) from error
        return self._reader
