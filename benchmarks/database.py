"""Servers of a benchmark's own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lagloss.broker.topics import BEACONS_PARTITIONS, create_topics
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.store.migrate import migrate
from lagloss_server.store.store import Store


@dataclass(frozen=True, slots=True)
class Servers:
    """A broker with lagloss's topics and a database with its tables, whose data lie in `folder`."""

    folder: Path
    kafka: EmbeddedKafka
    postgres: EmbeddedPostgres
    store: Store

    @property
    def env(self) -> dict[str, str]:
        """Return the settings by which services find them."""
        return {"LAGLOSS_KAFKA_BOOTSTRAP": self.kafka.bootstrap, "LAGLOSS_DATABASE_URL": self.postgres.url}


@contextmanager
def fresh_servers(partitions: int = BEACONS_PARTITIONS) -> Iterator[Servers]:
    """Yield a broker and a database that are empty; `partitions` of the beacons topic."""
    with fresh_database() as (folder, postgres, store), EmbeddedKafka(folder / "kafka") as kafka:
        create_topics(kafka.bootstrap, partitions)
        yield Servers(folder, kafka, postgres, store)


@contextmanager
def fresh_database() -> Iterator[tuple[Path, EmbeddedPostgres, Store]]:
    """Yield an empty folder, a server whose data lies there, and a store on its newest tables."""
    with tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder:
        Path(folder).chmod(0o711)  # where its user cannot reach it, the server would put its data elsewhere, for good
        with EmbeddedPostgres(Path(folder) / "postgres") as postgres:
            migrate(postgres.url)
            with closing(Store(postgres.url)) as store:
                yield Path(folder), postgres, store
