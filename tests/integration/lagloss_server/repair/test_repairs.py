"""Repairs of real pipelines, the repairer killed wherever it can be: what was lost is sent, and nothing else, once.

LAGLOSS_REPAIR_HISTORIES is how many random histories are lived through (4 by default), LAGLOSS_REPAIR_SEED the seed of
the first, LAGLOSS_REPAIR_MOST how many messages one loses at most, LAGLOSS_REPAIR_AT_ONCE how many go on side by side.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

import pytest
from pyspark.sql import SparkSession

from lagloss.broker.topics import BEACONS, REPORTS, create_topics
from lagloss_server.model.definition import parse_definition
from lagloss_server.store.partitions import make_days_ahead
from lagloss_server.store.store import Store
from tests.support.closers import driven
from tests.support.repairs import GONE, NOWHERE, PLACES, POINTS, Chain, Ended, Repairer, closing_all, committed

COUNT = int(os.environ.get("LAGLOSS_REPAIR_HISTORIES", "4"))
FIRST_SEED = int(os.environ.get("LAGLOSS_REPAIR_SEED", "1"))
MOST = int(os.environ.get("LAGLOSS_REPAIR_MOST", "60"))
AT_ONCE = int(os.environ.get("LAGLOSS_REPAIR_AT_ONCE", "8"))
MINUTES_AGO = 5
WINDOWS = 2


@dataclass(frozen=True)
class World:
    """A database whose windows are closed by an aggregator's parts, and repairers on it."""

    store: Store
    bootstrap: str
    repairer: Repairer

    def chain(self, word: str, fates: dict[str, str], topic: str = "") -> Chain:
        """A running pipeline, defined."""
        start_s = int(time.time()) // 60 * 60 - 60 * MINUTES_AGO
        chain = Chain(self.bootstrap, f"{word}-{uuid.uuid4().hex[:6]}", start_s, fates, topic)
        self.store.apply(parse_definition(chain.definition), 0)
        chain.start()
        return chain


@pytest.fixture(scope="module")
def world(
    spark: SparkSession, kafka_bootstrap: str, module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    create_topics(kafka_bootstrap)
    store = Store(module_database_url)
    make_days_ahead(store.engine, time.time())
    with driven(spark, kafka_bootstrap, store, BEACONS, REPORTS) as parts, closing_all(parts):
        folder = tmp_path_factory.mktemp("repairers")
        yield World(store, kafka_bootstrap, Repairer(kafka_bootstrap, module_database_url, folder))
    store.close()


def fates_of(random: Random, place: str, lost: int, prefix: str = "") -> dict[str, str]:
    """Messages that are lost at a place, some at others, and some that arrive."""
    fates = {f"{prefix}{place.replace(' ', '-')}-{number}": place for number in range(lost)}
    others = random.choices([NOWHERE, *PLACES], k=random.randint(5, 30))
    return fates | {f"{prefix}other-{number}": fate for number, fate in enumerate(others)}


def check(world: World, chain: Chain, place: str, ended: Ended) -> None:
    """The ledger's word on a repair that is over: sent = lost exactly, arrived = sent, 0 others, 0 twice."""
    lost, document = chain.lost_at(place), ended.document
    assert document is not None
    name = document["repair"]
    copies = committed(world.bootstrap, chain.input_of(place))
    originals = {copy.message_id: copy for copy in copies if copy.replay is None}
    sent = [copy for copy in copies if copy.replay == name]
    assert Counter(copy.message_id for copy in sent) == Counter(lost)
    assert [copy.content for copy in sent] == [originals[copy.message_id].content for copy in sent]
    assert {copy.replay for copy in copies} <= {None, name}
    for node in ("b", "c") if place in ("link a->b", "node b") else ("c",):
        received = {key[1]: count for key, count in chain.received.items() if key[0] == node and key[2] == name}
        assert received == dict.fromkeys(lost, 1)
    expected = {"sent": len(lost), "arrived": len(lost), "missing": [], "found": len(lost), "state": "finished"}
    assert {key: document[key] for key in expected} == expected
    assert document["arrived_meanwhile"] == 0


@pytest.mark.timeout(240)
def test_a_repair_sends_what_is_lost_at_the_place_and_states_that_it_arrived(world: World) -> None:
    place, random = "link a->b", Random(1)
    chain = world.chain("whole", fates_of(random, place, 25) | {"never-sent": GONE})
    try:
        chain.send(WINDOWS, random)
        chain.wait_for_losses(world.store, WINDOWS)
        lost = chain.lost_at(place)
        topic = chain.input_of(place)

        planned = world.repairer.run(chain.command(place, WINDOWS, "--dry-run"))
        assert planned.document is not None
        assert planned.code == 0
        expected = {"lost": len(lost) + 1, "found": len(lost), "gone": 1, "topic": topic, "gone_ids": ["never-sent"]}
        assert {key: planned.document[key] for key in expected} == expected
        assert (planned.document["repair"], planned.document["state"]) == (None, "planned")
        assert not any(copy.replay for copy in committed(world.bootstrap, topic))

        ended = world.repairer.run(chain.command(place, WINDOWS, "--rate", "1000"))
        assert ended.code == 4  # one is gone
        check(world, chain, place, ended)
        again = world.repairer.run(chain.command(place, WINDOWS))
        assert again.document is not None
        assert again.code == 4
        assert again.document["repair"] == ended.document["repair"]  # type: ignore[index]
        check(world, chain, place, again)

        behind = world.repairer.run(chain.command("node b", WINDOWS))
        assert behind.code == 0
        assert behind.document is not None
        assert behind.document["sent"] == behind.document["arrived"] == len(chain.lost_at("node b"))
    finally:
        chain.close()


@pytest.mark.timeout(300 + 30 * COUNT)
def test_a_repairer_that_is_killed_anywhere_sends_each_record_once(world: World) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for outcome in [pool.submit(live, world, seed) for seed in range(FIRST_SEED, FIRST_SEED + COUNT)]:
            outcome.result()


def live(world: World, seed: int) -> None:
    """A history: losses at random places, one of which is repaired, with kills."""
    random = Random(seed)
    place = PLACES[seed % len(PLACES)]
    lost = max(1, round(MOST ** random.random()))
    chains = [world.chain(f"h{seed}", fates_of(random, place, lost, "p-"))]
    try:
        if seed % 2:  # another pipeline in the same topic
            other = fates_of(random, random.choice(PLACES), random.randint(1, 10), "q-")
            chains.append(world.chain(f"h{seed}-q", other, chains[0].topic))
        for chain in chains:
            chain.send(WINDOWS, random)
        for chain in chains:
            chain.wait_for_losses(world.store, WINDOWS)
        rate = str(random.choice((20, 200, 5_000)) if lost < 100 else 5_000)
        command = chains[0].command(place, WINDOWS, "--rate", rate)
        kills = [(random.choice(POINTS), random.randint(1, 3)) for _ in range(random.randint(1, 4))]
        ends = [world.repairer.run(command, point, nth) for point, nth in kills]
        print(seed, place, lost, rate, [(*kill, ended.code) for kill, ended in zip(kills, ends, strict=True)])
        assert {ended.code for ended in ends} <= {0, -9}
        ended = world.repairer.run(command)
        assert ended.code == 0, ended
        check(world, chains[0], place, ended)
        assert not any(key[2] for chain in chains[1:] for key in chain.received)
    finally:
        for chain in chains:
            chain.close()
