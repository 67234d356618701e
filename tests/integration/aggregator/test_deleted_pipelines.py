"""A deleted pipeline is unknown to all who read definitions, until it is applied again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aggregator.closing.definitions import DefinitionRegistry
from aggregator.metrics import AggregatorMetrics
from lagloss_server.base.errors import UnknownPipeline
from lagloss_server.model.definition import parse_definition
from lagloss_server.store.store import Store
from tests.support.stored_windows import DEFINITION, NOW_MS, Stored, days_ago
from tests.support.window_documents import documents


def test_the_aggregator_forgets_a_deleted_pipeline_and_takes_it_up_again(store: Store) -> None:
    stored = Stored(store=store)
    watch = DefinitionRegistry(store.engine, store, AggregatorMetrics())
    watch.refresh()
    stored.report("one", days_ago(0) * 1000, [days_ago(0)])
    store.delete("chain", NOW_MS)
    watch.refresh()
    assert (watch.versions, watch.schedules, watch.checkpoints) == ({}, {}, {})
    watch.refresh()  # nothing is new
    assert store.apply(parse_definition(DEFINITION)) == 2
    watch.refresh()
    assert list(watch.schedules) == list(watch.checkpoints) == ["chain"]
    assert [version.version for version in store.versions()] == [1, 2]
    assert watch.schedules["chain"].entry(days_ago(0)).changed_at > 0  # what came before is to be closed


def test_deleted_and_applied_between_two_looks_it_has_its_next_version(store: Store) -> None:
    Stored(store=store)
    watch = DefinitionRegistry(store.engine, store, AggregatorMetrics())
    watch.refresh()
    store.delete("chain")
    store.apply(parse_definition(DEFINITION))
    watch.refresh()
    assert len(watch.versions["chain"]) == 2


def test_readers_do_not_know_a_deleted_pipeline(store: Store, database_url: str) -> None:
    stored = Stored(store=store)
    stored.close(days_ago(1))
    store.delete("chain")
    assert (store.pipelines(), store.versions(), store.names()) == ([], [], [])
    assert len(documents(store.windows("chain", days_ago(2), days_ago(0)))) == 1  # its windows stay
    for read in (store.pipeline, store.delete):
        with pytest.raises(UnknownPipeline):
            read("chain")
    done = subprocess.run(
        [sys.executable, "-m", "lagloss_server.cli.main", "windows", "chain"],
        capture_output=True,
        text=True,
        env={"LAGLOSS_DATABASE_URL": database_url, "PATH": ""},
    )
    assert (done.returncode, "No pipeline is named chain" in done.stderr) == (2, True)
