"""A lagloss of Kafka, PostgreSQL, taps and what closes windows, in which pipelines lose messages and are repaired."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lagloss.broker.topics import BEACONS, REPORTS, create_topics
from lagloss_server.model.definition import parse_definition
from lagloss_server.net.table_urls import variable_of
from lagloss_server.ops.processes import choose_port, spawn, terminate
from lagloss_server.store.partitions import make_days_ahead
from lagloss_server.store.store import Store
from tests.support.closers import driven
from tests.support.repairs import SINK, Chain, Repairer, TappedChain, closing_all

MINUTES_AGO = 5


@contextmanager
def tapping(environment: dict[str, str], folder: Path) -> Iterator[None]:
    """A process of the taps."""
    port = {"LAGLOSS_TAPS_PORT": str(choose_port("the taps"))}
    process = spawn([sys.executable, "-m", "taps"], folder / "taps.log", env={**environment, **port})
    try:
        yield
    finally:
        terminate(process, 20)


@dataclass(frozen=True)
class World:
    """A database whose windows are closed by an aggregator's parts, and repairers on it."""

    store: Store
    bootstrap: str
    repairer: Repairer

    def chain(
        self, word: str, fates: dict[str, str], topic: str = "", kind: Callable[..., Chain] = Chain, **more: Any
    ) -> Any:
        """A running pipeline, defined."""
        start_s = int(time.time()) // 60 * 60 - 60 * MINUTES_AGO
        chain = kind(self.bootstrap, f"{word}-{uuid.uuid4().hex[:6]}", start_s, fates, topic, **more)
        self.store.apply(parse_definition(chain.definition), None if isinstance(chain, TappedChain) else 0)
        chain.start()
        return chain


@pytest.fixture(scope="module")
def world(
    spark: SparkSession, kafka_bootstrap: str, module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    create_topics(kafka_bootstrap)
    store = Store(module_database_url)
    make_days_ahead(store.engine, time.time())
    folder = tmp_path_factory.mktemp("repairers")
    servers = {"LAGLOSS_KAFKA_BOOTSTRAP": kafka_bootstrap, "LAGLOSS_DATABASE_URL": module_database_url}
    with (
        driven(spark, kafka_bootstrap, store, BEACONS, REPORTS) as parts,
        closing_all(parts),
        tapping({**servers, variable_of(SINK): module_database_url, "LAGLOSS_DATA_DIR": str(folder)}, folder),
    ):
        yield World(store, kafka_bootstrap, Repairer(kafka_bootstrap, module_database_url, folder))
    store.close()
