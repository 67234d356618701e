"""Outages: which server is away when something fails that a later try may do, and since when.

An outage concerns everything: nothing is followed or closed until it is over. What fails for another reason concerns
only itself, and is set aside alone (set_aside.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import psycopg
from confluent_kafka import KafkaException
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from lagloss.broker.errors import kafka_error
from lagloss_server.base.turns import WatchedLoop
from lagloss_server.model.window import rfc3339

Server = Literal["kafka", "postgresql", "spark", "lease", "aggregator"]
"""What is waited for; the lease is what another aggregator holds, the aggregator a fault of its own."""

_SERVERS: Final[Mapping[str, Server]] = {"Kafka": "kafka", "PostgreSQL": "postgresql", "Spark": "spark"}
"""By the name of the loop that asks it."""


class LeaseHeld(Exception):
    """Another aggregator is active."""


class DatabaseRestored(RuntimeError):
    """PostgreSQL is behind the committed position: an older backup was restored. Consume again from its position."""


class ReportsLost(RuntimeError):
    """The log no longer has reports that were to be followed. That is noted; go on behind them."""


class TopicRecreated(RuntimeError):
    """A topic was deleted and recreated, so all stored offsets are invalid. Start again from its beginning."""


_SERVER_STATES: Final = ("08", "40", "53", "57", "58")
"""Classes of SQLSTATE: connection, rollback (deadlock, serialisation), resources (disk full, too many connections),
intervention (statement time-out, shutdown), system error."""
_SERVER_CODES: Final = ("25006", "25P03", "42501", "42703", "42P01", "55P03")
"""Others that are the same for every window: a stand-by that only reads, a transaction that stood idle too long (we
were paused), rights, a column or table that is not there (tables are behind, or being restored), a lock that was not to
be had."""
_AWAY_IN_SPARK: Final = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(?!Serialization|CorruptRecord|InvalidRecord|RecordTooLarge)"
    r"|org\.apache\.kafka\.common\.KafkaException: Failed to (?:construct|create)"
    r"|java\.(?:net|nio\.channels)\.\w+Exception|java\.util\.concurrent\.TimeoutException"
    r"|No space left on device|Disk quota exceeded|Read-only file system"
    r"|SPARK_JOB_CANCELLED"
    r"|ExecutorLostFailure|SparkContext (?:was|has been) shut ?down|SparkContext was stopped|stopped SparkContext"
)
"""What a message of Spark's holds where a server or a machine is away, or we end, and the read is not to blame."""


def is_outage(error: BaseException) -> bool:
    """Return whether a later try may do what failed: the connection to a server broke, a lock or a time ran out, a disk
    takes no more. Anything else will fail again in the same way."""
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or _is_outage_of_postgresql(error.orig)
    if isinstance(error, PySparkException | Py4JJavaError):
        return _AWAY_IN_SPARK.search(str(error)) is not None
    lost = (Py4JError, KafkaException, PoolTimeout, OSError)  # the first: Spark's process does not answer
    return isinstance(error, (DatabaseRestored, ReportsLost, TopicRecreated, LeaseHeld, *lost))


def _is_outage_of_postgresql(error: BaseException | None) -> bool:
    state = getattr(error, "sqlstate", None)
    if state is None:  # the client's own: it has no connection, or it refuses a value
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state[:2] in _SERVER_STATES or state in _SERVER_CODES


_CAUSE: Final = re.compile(r"org\.apache\.kafka\.[\w.]+: [^\n]*")
"""First cause, in the traces that Spark puts into one message."""


@dataclass(frozen=True)
class Outage:
    """Why nothing is followed or closed; `since_s` in epoch s."""

    server: Server
    text: str
    since_s: float

    def lasting(self, before: Outage | None) -> Outage:
        """Return this outage as the continuation of the one before: since the first, if it is the same server's."""
        return replace(self, since_s=before.since_s) if before is not None and before.server == self.server else self

    def __str__(self) -> str:
        return f"waiting for {self.server} since {rfc3339(self.since_s)}: {self.text}"


def hang(loop: WatchedLoop, problem: str, now_s: float) -> Outage:
    """Return the outage of a loop that is not well: its server's, or ours."""
    return Outage(_SERVERS.get(loop.name, "aggregator"), f"{loop.name} {problem}", now_s - loop.age_s)


def outage_of(error: BaseException, now_s: float) -> Outage:
    """Attribute an error to a server. Spark passes on the errors of its tasks."""
    message = kafka_error(error).str() if isinstance(error, KafkaException) else str(error)
    if isinstance(error, LeaseHeld):
        return Outage("lease", message, now_s)
    server: Server = "spark" if is_outage(error) or isinstance(error, PySparkException | Py4JError) else "aggregator"
    if isinstance(error, DBAPIError | psycopg.Error | DatabaseRestored):
        server = "postgresql"
    elif isinstance(error, KafkaException | ReportsLost | TopicRecreated) or "org.apache.kafka" in message:
        server = "kafka"
    causes = _CAUSE.findall(message)
    first_line = message.strip().partition("\n")[0]
    return Outage(server, causes[-1] if causes else f"{type(error).__name__}: {first_line}", now_s)
