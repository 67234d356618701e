"""Trouble: which server is away when something fails that a later try may do, and since when."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

from confluent_kafka import KafkaException
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from sqlalchemy.exc import DBAPIError

from aggregator.reports.consumer import DatabaseRestored
from lagloss_server.model.window_result import rfc3339

Server = Literal["kafka", "postgresql", "spark", "lease"]
"""Server that is waited for; another aggregator holds the lease."""


class LeaseHeld(Exception):
    """Another aggregator works."""


TRANSIENT: Final = (
    DBAPIError,
    DatabaseRestored,
    KafkaException,
    PySparkException,
    Py4JJavaError,
    ConnectionError,
    TimeoutError,
)
"""Errors that a later try may not meet again."""


_CAUSE: Final = re.compile(r"(?:sqlalchemy\.exc|aggregator|org\.apache\.kafka)\.[\w.]+: [^\n]*")
"""First cause, in the traces of Python and Java that Spark puts into one message."""


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


def outage_of(error: BaseException, now_s: float) -> Outage:
    """Attribute a TRANSIENT error to a server. Spark passes on the errors of its tasks and of its stream of reports."""
    message = str(error)
    if isinstance(error, LeaseHeld):
        return Outage("lease", message, now_s)
    server: Server = "spark"
    if isinstance(error, DBAPIError | DatabaseRestored) or "psycopg" in message or "DatabaseRestored" in message:
        server = "postgresql"
    elif isinstance(error, KafkaException) or "org.apache.kafka" in message:
        server = "kafka"
    causes = _CAUSE.findall(message)
    first_line = message.strip().partition("\n")[0]
    return Outage(server, causes[-1] if causes else f"{type(error).__name__}: {first_line}", now_s)
