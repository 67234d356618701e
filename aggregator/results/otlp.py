"""Push of the metrics of results to an OpenTelemetry collector, as OpenTelemetry's variables say."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

import lagloss
from aggregator.results.metrics import RESULTS, PipelineResult, ResultMetric

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
EVERY_MS: Final = 30_000
_UNITS: Final = {"seconds": "s", "ratio": "1", "messages": "{message}"}
Read = Callable[[], Mapping[str, PipelineResult]]


def pushing(read: Read) -> ExitStack:
    """Start to push what `read` returns, if an endpoint is set; closing the stack pushes once more and ends it."""
    stack = ExitStack()
    if any(os.environ.get(name) for name in ENDPOINTS):
        every_ms = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", EVERY_MS))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(), every_ms)
        resource = Resource.create({"service.name": "lagloss", "service.version": lagloss.__version__})
        provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        meter = provider.get_meter("lagloss", lagloss.__version__)
        for metric in RESULTS:
            unit = _UNITS.get(metric.name.rsplit("_", 1)[1], "1")
            meter.create_observable_gauge(metric.name, [partial(_observe, metric, read)], unit, metric.text)
        stack.callback(provider.shutdown)
    return stack


def _observe(metric: ResultMetric, read: Read, _options: CallbackOptions) -> Iterable[Observation]:
    for pipeline, result in read().items():
        for labels, value in metric.samples(result):
            yield Observation(value, {"pipeline": pipeline, **dict(zip(metric.labels, labels, strict=True))})
