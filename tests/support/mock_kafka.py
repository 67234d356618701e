"""A cluster in memory that librdkafka simulates, for tests of clients without a server.

Topics are created when they are first named, with 4 partitions; groups, commits and transactions work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer


@contextmanager
def mock_kafka() -> Iterator[str]:
    """HOST:PORT of a cluster that lives as long as the block."""
    cluster = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = cluster.list_topics(timeout=10).brokers.values()
    yield f"{broker.host}:{broker.port}"
    del cluster
