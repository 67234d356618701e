"""The definitions of the batch pipeline go together with its names, and shrink with its hour."""

from __future__ import annotations

import pytest

from pipeline_under_test.batch import topology
from pipeline_under_test.batch.topology import definitions


def test_the_constants_are_the_nodes_of_the_definitions() -> None:
    records, files = definitions()
    assert [node.name for node in records.spec.nodes] == [
        topology.LANDING,
        *topology.IMPORTERS,
        topology.AGGREGATE,
    ]
    named = {topology.LANDING, *topology.IMPORTERS, *topology.QUEUE_NODES.values(), *topology.DONE_NODES.values()}
    assert {node.name for node in files.spec.nodes} == named
    assert (records.name, files.name) == (topology.PIPELINE, topology.FILES)
    [job] = records.spec.jobs
    assert (job.dag, job.task, job.span) == (topology.DAG, topology.TASK, 3_600_000)


def test_tables_are_tapped_unless_the_pipeline_runs_without() -> None:
    tapped, plain = (definitions(tables=tables)[0] for tables in (True, False))
    sources = {tap.node: tap.source for tap in tapped.table_taps}
    assert sources == {
        topology.DB_IMPORT: "table public.event of scores",
        topology.INDEX_IMPORT: "table public.search_entry of scores",
    }
    assert not plain.table_taps


def test_an_hour_of_two_minutes_shrinks_targets_but_not_below_what_polls_and_closing_take() -> None:
    records, files = definitions(120, {topology.DB_IMPORT: "http://queues/1/db"}, "demo")
    assert (records.name, files.name) == ("demo", "demo-files")
    assert records.spec.jobs[0].span == 120_000
    assert records.spec.jobs[0].deadline == 120_000
    assert (records.spec.grace, records.spec.max_wait) == (20_000, 240_000)
    assert records.spec.sla.staleness.checkpoints["landing.out:db-import"] == 120_000
    assert files.groups == {topology.DB_IMPORT: "http://queues/1/db"}


@pytest.mark.parametrize(("event_ms", "hour"), [(7_199_999, 3600), (7_200_000, 7200), (7_200_000.5, 7200)])
def test_an_event_belongs_to_the_hour_that_it_lies_in(event_ms: float, hour: int) -> None:
    assert topology.hour_of(event_ms, 3600) == hour
