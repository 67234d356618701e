"""Servers of a benchmark's own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import text

from benchmarks.timing import Stopwatch
from lagloss.broker.topics import BEACONS_PARTITIONS, create_topics
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.packing.packed_json import unpack_text
from lagloss_server.store.migrate import migrate
from lagloss_server.store.store import Store

START_S: Final = 300.0
"""Time for a broker to start, on a machine that is busy with other work, too."""
TOPICS_AT_ONCE: Final = 100
_SMALL: Final = {"segment.index.bytes": "4096", "segment.bytes": "1048576"}
PATIENT: Final = {"topic.metadata.propagation.max.ms": 120_000}
"""Option of a producer to many new topics, which a broker shows late."""


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
    with fresh_database() as (folder, postgres, store), ExitStack() as stack:
        kafka = EmbeddedKafka(folder / "kafka").start(START_S)
        stack.callback(kafka.stop)
        create_topics(kafka.bootstrap, partitions)
        yield Servers(folder, kafka, postgres, store)


@contextmanager
def fresh_kafka(partitions: int = BEACONS_PARTITIONS) -> Iterator[tuple[Path, EmbeddedKafka]]:
    """Yield an empty folder, and a broker with lagloss's topics whose data lie there."""
    with tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder, EmbeddedKafka(Path(folder) / "kafka") as kafka:
        create_topics(kafka.bootstrap, partitions)
        yield Path(folder), kafka


def make_topics(bootstrap: str, names: Sequence[str], partitions: int) -> None:
    """Create topics with small segments, as many at once as a broker takes: it refuses 10,000 partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topics = [NewTopic(name, partitions, 1, config=dict(_SMALL)) for name in names]
    for start in range(0, len(topics), TOPICS_AT_ONCE):
        for future in admin.create_topics(topics[start : start + TOPICS_AT_ONCE], request_timeout=300).values():
            future.result(300)


def prepare_groups(bootstrap: str, topic: str) -> None:
    """Commit an offset as a consumer, so that the broker has its topic of offsets: an admin client that alters offsets
    before can wait for its answer until it times out."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "first", "log_level": 0})
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()


@contextmanager
def fresh_database() -> Iterator[tuple[Path, EmbeddedPostgres, Store]]:
    """Yield an empty folder, a server whose data lies there, and a store on its newest tables."""
    with tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder:
        Path(folder).chmod(0o711)  # where its user cannot reach it, the server would put its data elsewhere, for good
        with EmbeddedPostgres(Path(folder) / "postgres") as postgres:
            migrate(postgres.url)
            with closing(Store(postgres.url)) as store:
                yield Path(folder), postgres, store


def transactions(store: Store) -> int:
    """Return how many transactions of the database have ended so far."""
    counted = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    with store.engine.connect() as connection:
        connection.execute(text("SELECT pg_stat_clear_snapshot()"))
        return int(connection.execute(text(counted)).scalar_one())


def copied_s(store: Store, query: str, table: str) -> float:
    """Return how long (s) a bare COPY of these rows into an empty table like theirs takes, its indexes and the commit
    included."""
    with store.engine.begin() as connection:
        connection.execute(text(f'CREATE TABLE bare (LIKE "{table}" INCLUDING ALL)'))
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT BINARY)") as copy:
            rows = [bytes(row) for row in copy]
    with Stopwatch() as spent, store.engine.begin() as connection:
        driver = connection.connection.driver_connection
        with driver.cursor() as cursor, cursor.copy("COPY bare FROM STDIN (FORMAT BINARY)") as copy:
            for row in rows:
                copy.write(row)
    with store.engine.begin() as connection:
        connection.execute(text("DROP TABLE bare"))
    return spent.wall_s


def read_documents(connection: psycopg.Connection[Any], names: Sequence[str], start_s: int, together: int) -> None:
    """Read and parse the windows of these pipelines that start then, so many by a statement, and do no more."""
    query = 'SELECT document FROM "window" WHERE pipeline = ANY(%s) AND window_start = %s'
    for first in range(0, len(names), together):
        for (document,) in connection.execute(query, [names[first : first + together], start_s]):
            msgspec.json.decode(unpack_text(document))
