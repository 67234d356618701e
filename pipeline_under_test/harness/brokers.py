"""Brokers of a pipeline's own, in its data directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lagloss.broker.topics import create_topics
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from pipeline_under_test.harness.broker_faults import BrokerFaults
from pipeline_under_test.stream.settings import ReferenceSettings

FILE: Final = "brokers.json"
HEAP_MB: Final = 192


@contextmanager
def own_brokers(settings: ReferenceSettings, count: int) -> Iterator[tuple[ReferenceSettings, BrokerFaults]]:
    """Run this many brokers, with lagloss's topics, while the block lasts; `brokers.json` has their addresses.

    Gives the settings with their address, and what carries out their faults. With a count of 0 nothing is started, the
    settings are as they were, and no fault finds a broker.
    """
    kafka = EmbeddedKafka(settings.data_dir / "kafka", brokers=count, heap_mb=HEAP_MB)
    faults = BrokerFaults(settings.injections(), kafka)
    if not count:
        yield settings, faults
        return
    with kafka:
        create_topics(kafka.bootstrap, replication=0)
        (settings.data_dir / FILE).write_text(json.dumps({"kafka": kafka.bootstrap}))
        yield settings.model_copy(update={"bootstrap": kafka.bootstrap}), faults
