"""The newest closed window of each pipeline, for the metrics of results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, StateSetMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import Row, select, true

from aggregator.results.metrics import RESULTS, PipelineResult, ResultMetric, Sample
from lagloss_server.model.canary import is_listed
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.net.exposition import Recent
from lagloss_server.queries.budgets import read_budgets
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store, closed_window

MAX_SERIES: Final = 50_000
"""About so many series at most: from there on, pipelines have only those without nodes, links and destinations."""


def read_newest(store: Store, pipelines: Sequence[StoredPipeline]) -> dict[str, PipelineResult]:
    """Return the newest closed window of each of these pipelines that has one, with its error budgets; of listed ones:
    the canary's losses are no result of anyone's."""
    pipelines = [pipeline for pipeline in pipelines if is_listed(pipeline.name)]
    window = tables.table_of(tables.WindowRow)
    pipeline = select(tables.PipelineRow.name).where(
        tables.PipelineRow.name.in_([pipeline.name for pipeline in pipelines])
    )
    names = pipeline.distinct().subquery()
    newest = (
        select(window)
        .where(window.c.pipeline == names.c.name)
        .order_by(window.c.window_start.desc())
        .limit(1)
        .lateral("newest")
    )
    with store.engine.connect() as connection:
        rows: Sequence[Row[tuple[object, ...]]] = connection.execute(
            select(newest).select_from(names).join(newest, true())
        ).all()
    budgets = read_budgets(store, pipelines, time.time())
    sla = {pipeline.name: pipeline.definition.spec.sla for pipeline in pipelines}
    windows = [result for row in rows if (result := closed_window(row)) is not None]
    return {
        result.pipeline: PipelineResult(result, budgets.get(result.pipeline, {}), sla[result.pipeline])
        for result in windows
    }


class ResultMetrics(Collector):
    """The families of the table, with what `read` returns; without any while it returns nothing, or fails."""

    def __init__(self, read: Callable[[], Mapping[str, PipelineResult]]) -> None:
        self._recent: Recent[Mapping[str, PipelineResult]] = Recent(read, {})
        self.current = self._recent.get
        self.forget = self._recent.forget

    def describe(self) -> Iterator[Metric]:
        """Name the families without reading anything."""
        return (family_of(metric) for metric in RESULTS)

    def collect(self) -> Iterator[Metric]:
        return families_of(self.current())


def families_of(results: Mapping[str, PipelineResult]) -> Iterator[Metric]:
    """Return every family of the table with the samples of these pipelines."""
    families = [(metric, family_of(metric)) for metric in RESULTS]
    remaining = MAX_SERIES
    for pipeline, result in sorted(results.items()):
        families_with_samples = [(metric, family, list(metric.samples(result))) for metric, family in families]
        has_details = sum(len(samples) for _, _, samples in families_with_samples) <= remaining
        for metric, family, samples in families_with_samples:
            if has_details or not metric.is_detail:
                remaining -= len(samples)
                _add(family, metric, pipeline, samples)
    return (family for _, family in families)


def family_of(metric: ResultMetric) -> GaugeMetricFamily | StateSetMetricFamily:
    """Return a family without samples."""
    if metric.kind == "stateset":
        return StateSetMetricFamily(metric.name, metric.text, labels=("pipeline",))
    return GaugeMetricFamily(metric.name, metric.text, labels=("pipeline", *metric.labels))


def _add(
    family: GaugeMetricFamily | StateSetMetricFamily, metric: ResultMetric, pipeline: str, samples: Sequence[Sample]
) -> None:
    if isinstance(family, StateSetMetricFamily):
        family.add_metric((pipeline,), {labels[0]: bool(value) for labels, value in samples})
        return
    for labels, value in samples:
        family.add_metric((pipeline, *labels), value)
