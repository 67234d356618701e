"""What /healthz names of several troubles at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.outage import Outage
from aggregator.service import Aggregator
from lagloss_server.base.settings import Settings
from lagloss_server.base.turns import ServerLoop

MET = Outage("kafka", "the leader is elsewhere", 1_800_000_000.0)
LEASE = Outage("lease", "another aggregator holds the lease", 1_800_000_000.0)


@pytest.mark.parametrize(
    ("met", "hung", "named"),
    [
        (None, "Spark", "spark"),
        (MET, "Spark", "spark"),  # the work hangs there since, and cannot take back what it met before
        (MET, "Kafka", "kafka"),
        (LEASE, "PostgreSQL", "postgresql"),
    ],
)
def test_the_server_that_hangs_now_is_named(tmp_path: Path, met: Outage | None, hung: str, named: str) -> None:
    aggregator = Aggregator(Settings(data_dir=tmp_path))
    aggregator.trouble = met
    assert aggregator.outage() == met
    with aggregator.turns.running(ServerLoop(hung, 0.0)):
        outage = aggregator.outage()
    assert outage is not None
    assert outage.server == named
    assert (outage is met) == (met is MET and hung == "Kafka")
    assert aggregator.outage() == met
