"""Measured = injected for the batch pipeline: faults of each kind, an aggregator, and the verdict on both pipelines."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import select

from lagloss import Emitter
from lagloss.broker.connection import BOOTSTRAP_VARIABLE
from lagloss_server.base.settings import Settings
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.localstack import EmbeddedLocalStack
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.store.store import Store
from pipeline_under_test.batch.operator import bury
from pipeline_under_test.batch.schema import EVENT
from pipeline_under_test.batch.topology import AGGREGATE, DB_IMPORT, IMPORTERS, INDEX_IMPORT, definitions
from pipeline_under_test.batch.verdict import verdicts_of
from pipeline_under_test.harness.verdict import Verdict
from tests.integration.aggregator.test_aggregator_process import aggregator
from tests.support.batch_pipeline import BatchPipeline, batch_pipeline

FAULTS = (
    "lose:notification:0.1",
    "duplicate:notification:0.06",
    "truncate:0.05",
    "corrupt:0.05",
    "schema:0.05",
    "empty:0.05",
    "enlarge:100:0.03",
    "overwrite:0.05",
    "late:3m:0.05",
    "bad:0.01",
    "kill:db-import:before:0.06",
    "kill:index-import:after:0.06",
    "fail:db-import:0.06",
)
FILES = 80
PATIENCE_S = 300.0


def aggregate(batch: BatchPipeline) -> None:
    """What the hourly job does with the rows that there are."""
    with batch.engine.connect() as connection:
        rows = connection.execute(select(EVENT.c.id, EVENT.c.event_ms)).all()
    ids, times = [row.id for row in rows], [row.event_ms for row in rows]
    with batch.settings.ledger_of(AGGREGATE) as ledger:
        ledger.write("aggregated", hour=0, ids=ids)
    with Emitter(batch.settings.pipeline, AGGREGATE, batch.env[BOOTSTRAP_VARIABLE]) as emitter:
        emitter.observe_all("received", ids, times)
        emitter.observe_all("sent", ids, times)


def await_verdicts(batch: BatchPipeline, lagloss: Settings) -> list[Verdict]:
    """The verdicts once they agree and nothing is left open; the last ones after the patience."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = verdicts_of(batch.settings, lagloss)
        if all(each.agrees and not each.waiting for each in found) or time.monotonic() > deadline:
            return found
        time.sleep(2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_injected_is_measured_record_by_record_and_file_by_file(
    kafka: EmbeddedKafka,
    localstack: EmbeddedLocalStack,
    postgres: EmbeddedPostgres,
    database_url: str,
    tmp_path: Path,
) -> None:
    with batch_pipeline(kafka.bootstrap, localstack, postgres, tmp_path / "scores", {DB_IMPORT: 2}) as batch:
        store = Store(database_url)
        for definition in definitions(60, pipeline=batch.settings.pipeline, tables=False):
            store.apply(definition)
        store.close()
        with aggregator(kafka.bootstrap, database_url, tmp_path / "aggregator"):
            batch.inject(*FAULTS)
            batch.start_landing()
            batch.await_facts(FILES, "landed", timeout_s=180)
            batch.stop_landing()
            batch.await_drained()
            batch.inject()
            for importer in IMPORTERS:
                batch.command("redrive", importer)
            batch.await_drained()
            with batch.settings.ledger_of("operator") as ledger:
                bury(batch.aws, batch.infrastructure, ledger)
            aggregate(batch)
            lagloss = Settings.load(data_dir=tmp_path, kafka_bootstrap=kafka.bootstrap, database_url=database_url)
            verdicts = await_verdicts(batch, lagloss)
        injected = Counter(fact["fault"].rpartition(":")[0] for fact in batch.facts("fault"))
        assert {"lose:notification", "kill:db-import:before"} <= injected.keys()
        for verdict in verdicts:
            assert verdict.differences == ()
            assert verdict.waiting == ()
        records, files = (verdict.document()["injected"] for verdict in verdicts)
        assert records["lost_at"].keys() == {f"link landing->{importer}" for importer in IMPORTERS}
        assert files["lost_at"].keys() == {"link landing->db-queue", "link landing->index-queue"}
        assert min(records["dead"], records["delivered"], files["dead"], files["delivered"]) > 0
        assert INDEX_IMPORT in {fact["node"] for fact in batch.facts("writing")}
