"""A PostgreSQL of a benchmark's own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.store.migrate import migrate
from lagloss_server.store.store import Store


@contextmanager
def fresh_database() -> Iterator[tuple[Path, EmbeddedPostgres, Store]]:
    """Yield an empty folder, a server whose data lies there, and a store on its newest tables."""
    with (
        tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder,
        EmbeddedPostgres(Path(folder) / "postgres") as postgres,
    ):
        Path(folder).chmod(0o711)
        migrate(postgres.url)
        with closing(Store(postgres.url)) as store:
            yield Path(folder), postgres, store
