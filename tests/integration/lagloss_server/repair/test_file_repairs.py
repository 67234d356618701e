"""Repairs of files on S3 and SQS, the repairer killed wherever it can be: each lost file is notified of once.

LAGLOSS_REPAIR_HISTORIES and LAGLOSS_REPAIR_SEED as in test_repairs.py.
"""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest

from lagloss_server.ops.embedded.localstack import EmbeddedLocalStack
from tests.integration.lagloss_server.repair.conftest import World
from tests.support.file_repairs import PLACE, FilesChain
from tests.support.repairs import FILE_POINTS, NOWHERE, Ended

COUNT = int(os.environ.get("LAGLOSS_REPAIR_HISTORIES", "3"))
FIRST_SEED = int(os.environ.get("LAGLOSS_REPAIR_SEED", "1"))
AT_ONCE = int(os.environ.get("LAGLOSS_REPAIR_AT_ONCE", "8"))
WINDOWS = 2
PATIENCE = ("--timeout", "20s")


@pytest.fixture(scope="module")
def files(world: World, localstack: EmbeddedLocalStack) -> World:
    """The world whose repairers reach S3 and SQS."""
    return replace(world, repairer=replace(world.repairer, variables=localstack.variables))


def chain_of(world: World, word: str, lost: int, arriving: int = 5, **options: Any) -> FilesChain:
    fates = {f"lost-{number}": PLACE for number in range(lost)} | {
        f"fine-{number}": NOWHERE for number in range(arriving)
    }
    variables = world.repairer.variables
    chain: FilesChain = world.chain(word, fates, kind=partial(FilesChain, variables=variables, **options))
    return chain


def lose(world: World, chain: FilesChain, seed: int) -> set[str]:
    """Let the chain lose what it is to lose; return the ids."""
    chain.send(WINDOWS, Random(seed))
    chain.wait_for_losses(world.store, WINDOWS)
    return chain.lost_at(PLACE)


def name_of(ended: Ended) -> str:
    assert ended.document is not None
    name: str = ended.document["repair"]
    return name


def check(chain: FilesChain, ended: Ended, expected: set[str]) -> None:
    """The ledger's word on a repair that is over: one message of each file, none of another; all arrived."""
    document = ended.document
    assert document is not None
    assert chain.notified(document["repair"]) == Counter(expected)
    count = len(expected)
    figures = {"sent": count, "arrived": count, "missing": [], "state": "finished", "topic": chain.url}
    assert {key: document[key] for key in figures} == figures
    assert chain.notified(None) == Counter(chain.lost_at(NOWHERE))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("has_versions", [False, True], ids=["etags", "versions"])
def test_lost_files_are_notified_of_once_and_those_that_were_deleted_are_gone(files: World, has_versions: bool) -> None:
    chain = chain_of(files, "files", 14, has_versions=has_versions)
    try:
        lost = lose(files, chain, 1)
        gone = set(sorted(lost)[:2])
        for name in gone:
            chain.s3.delete_object(**chain.files[name])
        planned = files.repairer.run(chain.command(PLACE, WINDOWS, "--dry-run"))
        assert planned.document is not None
        assert planned.code == 0
        expected = {"lost": 14, "found": 12, "gone": 2, "topic": chain.url, "repair": None}
        assert {key: planned.document[key] for key in expected} == expected
        assert files.repairer.run(chain.command(PLACE, WINDOWS, "--from-topic", "orders")) == Ended(2, None)

        ended = files.repairer.run(chain.command(PLACE, WINDOWS))
        assert ended.code == 4, ended
        assert ended.document is not None
        assert set(ended.document["gone_ids"]) == gone
        check(chain, ended, lost - gone)
        again = files.repairer.run(chain.command(PLACE, WINDOWS))
        assert (again.code, name_of(again)) == (4, name_of(ended))
        check(chain, again, lost - gone)
    finally:
        chain.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_what_a_kill_leaves_unknown_is_missing_until_what_is_perhaps_lost_is_sent_too(
    files: World, suffix: str
) -> None:
    chain = chain_of(files, "unknown", 15, suffix=suffix)
    try:
        lost = lose(files, chain, 2)
        command = chain.command(PLACE, WINDOWS, *PATIENCE)
        assert files.repairer.run(command, "QueueTransport.send before").code == -9
        assert files.repairer.run(command, "QueueTransport.send after").code == -9
        ended = files.repairer.run(command)
        document = ended.document
        assert document is not None
        assert (ended.code, document["state"], document["sent"], document["arrived"]) == (1, "finished", 15, 5)
        unknown = set(document["missing"])
        assert chain.notified(document["repair"]) == Counter(lost - unknown)
        again = files.repairer.run(command)
        assert (again.code, name_of(again)) == (1, name_of(ended))

        perhaps = files.repairer.run([*command, "--include-perhaps"])
        assert perhaps.code == 0, perhaps
        assert name_of(perhaps) != name_of(ended)
        check(chain, perhaps, unknown)
        assert chain.notified(name_of(ended)) == Counter(lost - unknown)
    finally:
        chain.close()


@pytest.mark.slow
@pytest.mark.timeout(300 + 30 * COUNT)
def test_a_repairer_that_is_killed_anywhere_notifies_of_each_file_at_most_once(files: World) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for outcome in [pool.submit(live, files, seed) for seed in range(FIRST_SEED, FIRST_SEED + COUNT)]:
            outcome.result()


def live(world: World, seed: int) -> None:
    """A history: a repair of files with kills, and one of what these leave unknown."""
    random = Random(seed)
    chain = chain_of(world, f"f{seed}", random.randint(1, 40), has_versions=bool(seed % 2))
    try:
        lost = lose(world, chain, seed)
        command = chain.command(PLACE, WINDOWS, *PATIENCE, "--rate", str(random.choice((5, 50, 500))))
        kills = [(random.choice(FILE_POINTS), random.choice((1, 1, 2, 3))) for _ in range(random.randint(1, 4))]
        ends = [world.repairer.run(command, point, nth) for point, nth in kills]
        print(seed, len(lost), [(*kill, ended.code) for kill, ended in zip(kills, ends, strict=True)])
        assert {ended.code for ended in ends} <= {0, 1, -9}
        ended = world.repairer.run(command)
        document = ended.document
        assert document is not None
        unknown = set(document["missing"])
        print(seed, "unknown", len(unknown))
        assert (ended.code, document["state"], document["sent"]) == (bool(unknown), "finished", len(lost))
        assert chain.notified(document["repair"]) == Counter(lost - unknown)
        if unknown:
            perhaps = world.repairer.run([*command, "--include-perhaps"])
            assert perhaps.code == 0, perhaps
            check(chain, perhaps, unknown)
        assert sum(
            count for name in {name for _, name, _ in chain.taken} if name for count in chain.notified(name).values()
        ) == len(lost)
        assert chain.notified(None) == Counter(chain.lost_at(NOWHERE))
    finally:
        chain.close()
