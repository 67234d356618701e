"""Watches of servers: threads that ask each a small question every few seconds, so that health knows when one hangs.

A server that hangs keeps its connections open, and its kernel acknowledges what it is sent: no time-out of TCP or of a
statement ends a call to it. What a service wants of it may take long for good reasons; the small question may not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo
from sqlalchemy import Engine, text

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.broker.errors import BrokerRefusals, kafka_error
from lagloss.broker.topics import BEACONS
from lagloss_server.base.database_url import PATIENCE, connection_options
from lagloss_server.base.turns import ServerLoop, Turns

ASK_EVERY_S: Final = 2.0
ANSWER_LIMIT_S: Final = 10.0
"""A server without an answer for longer hangs, or is away."""
KAFKA_TIMEOUT_S: Final = 3.0
"""Of a cluster that answers, one broker can hang: the next question goes to another."""
PAUSE_S: Final = 0.5
"""After a question that failed."""
CLOSE_S: Final = 1.0
"""How long an end waits for the question under way."""

Answers = Callable[[], Generator[None]]
"""Begins to ask a server: each `next` asks once and returns with the answer, or raises. After an error it begins
anew."""


class ServerWatch:
    """Thread that asks a server between `start` and `stop`; `loop` has the age of its last answer."""

    def __init__(self, server: str, answers: Answers) -> None:
        self.loop = ServerLoop(server, ANSWER_LIMIT_S)
        self._answers = answers
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"health check of {server}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it; a question that hangs is left to the end of the process."""
        self._stopped.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._ask_on()
            except Exception as error:  # whatever it is, the server is asked again
                self.loop.failed(error)
                self._stopped.wait(PAUSE_S)

    def _ask_on(self) -> None:
        """Ask until stopped, or until a question fails."""
        answers = self._answers()
        try:
            while not self._stopped.is_set():
                next(answers)
                self.loop.finished()
                self._stopped.wait(ASK_EVERY_S)
        finally:
            answers.close()


@contextmanager
def watching(turns: Turns, servers: Mapping[str, Answers]) -> Iterator[None]:
    """Watch these servers, by name, while the block lasts, and count them in."""
    watches = [ServerWatch(server, answers) for server, answers in servers.items()]
    with turns.running(*(watch.loop for watch in watches)):
        for watch in watches:
            watch.start()
        try:
            yield
        finally:
            for watch in watches:
                watch.stop()


def postgresql(database_url: str) -> Answers:
    """Return the question to a database, on a connection of its own."""
    conninfo = make_conninfo(**connection_options(database_url, **PATIENCE))

    def answers() -> Generator[None]:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            while True:
                connection.execute("SELECT 1")
                yield

    return answers


def postgresql_of(engine: Engine) -> Answers:
    """Return the question to an engine's database, on one of its connections."""

    def answers() -> Generator[None]:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            while True:
                connection.execute(text("SELECT 1"))
                yield

    return answers


def kafka(cluster: Cluster) -> Answers:
    """Return the question to a Kafka cluster, which any of its brokers answers."""
    connection = KafkaConnection.of(cluster)
    properties = connection.client({"client.id": "lagloss-watch", "log_level": 0})

    def answers() -> Generator[None]:
        refusals = BrokerRefusals()
        admin = AdminClient({**properties, "error_cb": refusals.take})
        while True:
            try:
                admin.list_topics(BEACONS, timeout=KAFKA_TIMEOUT_S)  # of one topic: there may be thousands
            except KafkaException as error:
                admin.poll(0)  # for the refusals
                raise KafkaException(refusals.explain(kafka_error(error))) from error
            yield

    return answers
