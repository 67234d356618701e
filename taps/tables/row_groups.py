"""Row groups of Parquet, whose columns are read only if they unpack to a bounded size.

A small file can unpack to any: a dictionary is unpacked whole, however few rows are read.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import pyarrow.parquet as pq

from lagloss_server.model.tables import TableSpec
from lagloss_server.net.table_urls import unreadable

MAX_COLUMN_BYTES: Final = 256 << 20
"""Of a column of a row group. Writers end a row group at 128 MiB of all columns, or at a million rows."""


def unpacked_bytes(group: pq.RowGroupMetaData, names: Collection[str], spec: TableSpec, path: str) -> int:
    """Return the size of some columns of a row group, as the file says.

    Raises:
        TableUnreadable: one of them has more than `MAX_COLUMN_BYTES`.
    """
    columns = [group.column(index) for index in range(group.num_columns)]
    sizes = {column.path_in_schema: column.total_uncompressed_size for column in columns}
    for name, size in sizes.items():
        if name in names and size > MAX_COLUMN_BYTES:
            problem = f"expected up to {MAX_COLUMN_BYTES:,} bytes of {name} in a row group, found {size:,} in {path}"
            raise unreadable(spec, f"{problem}; write smaller row groups")
    return sum(size for name, size in sizes.items() if name in names)
