"""Random faults, alone and two at a time, on a cluster of hosts of its own: after each, everything is right again.

LAGLOSS_FAULTS is how many histories (1 by default), LAGLOSS_FAULTS_SEED the seed of the first; `python -m
tests.histories` runs more of them, and chosen ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.histories.cluster import READY_S, cluster, wait
from tests.histories.history import Observer, Plan, run
from tests.histories.net import missing
from tests.programs import need
from tests.support.kafka_log import PATIENCE

COUNT = int(os.environ.get("LAGLOSS_FAULTS", "1"))
FIRST_SEED = int(os.environ.get("LAGLOSS_FAULTS_SEED", "101"))
A_HISTORY_S = 400


@pytest.fixture
def observer(jars: None, own_dir: Path) -> Iterator[Observer]:
    for program in ("cc", "iproute2", "nftables"):
        need(program)
    if why := missing():
        pytest.skip(why)
    with cluster(own_dir) as made:
        wait(lambda: 200 in (made.health("ag1"), made.health("ag2")), READY_S, "an aggregator", made)
        yield Observer(made)


@pytest.mark.slow
@pytest.mark.timeout((600 + COUNT * A_HISTORY_S) * PATIENCE)
def test_after_random_faults_are_healed_nothing_is_wrong(observer: Observer) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + COUNT):
        outcome = run(observer, Plan.draw(seed))
        print(outcome.text())
        assert outcome.problems == []
