"""Nodes of the batch pipeline, the names of its bucket, topic and queues, and its two definitions.

scores.yaml defines the pipeline of records, scores-files.yaml that of files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from lagloss_server.base.fields import parse_duration_ms
from lagloss_server.model.definition import Definition

PIPELINE: Final = "scores"
HOUR_S: Final = 3600

LANDING: Final = "landing"
DB_IMPORT: Final = "db-import"
INDEX_IMPORT: Final = "index-import"
AGGREGATE: Final = "aggregate"
IMPORTERS: Final = (DB_IMPORT, INDEX_IMPORT)

DATABASE: Final = "scores"
"""The pipeline's own, by its name in the definition."""
DAG: Final = "scores_hourly"
TASK: Final = "aggregate"

QUEUE_NODES: Final[Mapping[str, str]] = {DB_IMPORT: "db-queue", INDEX_IMPORT: "index-queue"}
"""The node of the pipeline of files that stands for the queue before each importer."""
DONE_NODES: Final[Mapping[str, str]] = {DB_IMPORT: "db-done", INDEX_IMPORT: "index-done"}
"""The node of the pipeline of files that a file reaches when its message is about to be deleted."""

NOTIFIED_SUFFIX: Final = ".avro"
"""S3 notifies of the objects whose keys end so."""
_LEAST_MS: Final = 120_000
"""A target does not shrink below this, however short the hour: polls, closing and the start of a task do not either."""
_LEAST_GRACE_MS: Final = 20_000


def files_pipeline(pipeline: str) -> str:
    """Return the pipeline of files that belongs to a pipeline of records."""
    return f"{pipeline}-files"


def bucket_of(pipeline: str) -> str:
    """Return the bucket that files are written to."""
    return f"{pipeline}-raw"


def topic_of(pipeline: str) -> str:
    """Return the SNS topic that S3 notifies."""
    return f"{pipeline}-landed"


def queue_of(pipeline: str, importer: str) -> str:
    """Return the SQS queue of an importer."""
    return f"{pipeline}-{importer}"


def dead_queue_of(pipeline: str, importer: str) -> str:
    """Return the dead-letter queue of an importer's queue."""
    return f"{queue_of(pipeline, importer)}-dead"


FILES: Final = files_pipeline(PIPELINE)
BUCKET: Final = bucket_of(PIPELINE)


def hour_of(event_ms: float, span_s: int) -> int:
    """Return the start of the hour, of `span_s`, that an event time lies in; epoch seconds."""
    return int(event_ms) // 1000 // span_s * span_s


def definitions(
    span_s: int = HOUR_S,
    queue_urls: Mapping[str, str] | None = None,
    pipeline: str = PIPELINE,
    *,
    tables: bool = True,
) -> list[Definition]:
    """Return the definitions of records and of files.

    Args:
        span_s: seconds of an "hour", a multiple of 60. Grace, maxWait and targets shrink with it.
        queue_urls: the queue's URL by importer, whose consumer lag is then watched.
        pipeline: the name of the pipeline of records.
        tables: the importers' tables are tapped.
    """
    records, files = _document("scores.yaml"), _document("scores-files.yaml")
    records["metadata"]["name"], files["metadata"]["name"] = pipeline, files_pipeline(pipeline)
    for node in records["spec"]["nodes"] if not tables else ():
        node.pop("taps", None)
    for node in files["spec"]["nodes"]:
        if node["name"] in (queue_urls or {}):
            node["queue"] = (queue_urls or {})[node["name"]]
    for document in (records, files):
        if span_s != HOUR_S:
            _scale(document["spec"], span_s / HOUR_S)
        for job in document["spec"].get("jobs", ()):
            job["span"] = f"{span_s}s"
    return [Definition.model_validate(document) for document in (records, files)]


def _document(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(Path(__file__).with_name(name).read_text())
    return document


def _scale(spec: dict[str, Any], factor: float) -> None:
    """Shrink the durations of a specification in place."""

    def shrunk(text: str, least_ms: int = _LEAST_MS) -> str:
        return f"{max(least_ms, int(parse_duration_ms(text) * factor))}ms"

    spec["grace"] = shrunk(spec["grace"], _LEAST_GRACE_MS)
    spec["maxWait"] = shrunk(spec["maxWait"])
    sla = spec["sla"]
    for target in (sla, *sla.get("destinations", {}).values()):
        target["lag"]["target"] = shrunk(target["lag"]["target"])
    stale = sla["staleness"]
    stale["max"] = shrunk(stale["max"])
    stale["checkpoints"] = {name: shrunk(text) for name, text in stale.get("checkpoints", {}).items()}
    for job in spec.get("jobs", ()):
        job["deadline"] = shrunk(job["deadline"])
