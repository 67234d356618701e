"""OpenLineage events as the integrations of dbt, Spark, Flink and Dagster send them.

Written after their sources, with the members that every event has (`producer`, `schemaURL`, job, run):

- dbt: `dbt_run_event` of openlineage-dbt 1.54.0 for the command, and `integration/common/tests/dbt/*/result.json` for
  the models, whose facet `parent` is the command.
- Spark: `integration/spark/app/integrations/container/applicationLevel*.json` and `pysparkHive*Event.json`: one run for
  the application, and one for each action, whose parent it is.
- Flink: `integration/flink/flink1/src/test/resources/events/expected_kafka*.json` and `expected_failed.json`: one run a
  job, with a `RUNNING` event for each checkpoint.
- Dagster: `OpenLineageAdapter` of openlineage-dagster 1.38.0: one run for the pipeline, and one for each step, whose
  facet `parent` has no `root`.
"""

from __future__ import annotations

import json
from typing import Any, Final

REPOSITORY: Final = "https://github.com/OpenLineage/OpenLineage/tree"
SCHEMA: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
COMMAND_RUN, MODEL_RUN = "01994d35-6a6d-7d24-8b25-b4a1d1ba0001", "01994d35-6a6d-7d24-8b25-b4a1d1ba0002"


def event(
    kind: str | None, at: str, producer: str, job: str, run: str, *, facets: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "eventTime": at,
        "producer": f"{REPOSITORY}/{producer}",
        "schemaURL": SCHEMA,
        "run": {"runId": run, "facets": facets or {}},
        "job": {"namespace": "prod", "name": job, "facets": {}},
        "inputs": [],
        "outputs": [],
        **more,
    }
    return whole if kind is None else {"eventType": kind, **whole}


def parent(job: str, run: str, root: dict[str, Any] | None = None) -> dict[str, Any]:
    facet: dict[str, Any] = {
        "_producer": REPOSITORY,
        "_schemaURL": "https://openlineage.io/spec/facets/1-1-0/ParentRunFacet.json#/$defs/ParentRunFacet",
        "run": {"runId": run},
        "job": {"namespace": "prod", "name": job},
    }
    return {"parent": facet if root is None else {**facet, "root": root}}


def dbt_command(kind: str, at: str) -> dict[str, Any]:
    return event(kind, at, "1.54.0/integration/dbt", "dbt-run-jaffle_shop", COMMAND_RUN)


def dbt_model(kind: str, at: str) -> dict[str, Any]:
    facets = {
        **parent("dbt-run-jaffle_shop", COMMAND_RUN),
        "processing_engine": {"name": "dbt", "version": "1.10.1", "openlineageAdapterVersion": "1.54.0"},
        "dbt_run": {"invocation_id": "8c814240-637d-4a36-937e-43787f5c79e0"},
    }
    return event(kind, at, "1.54.0/integration/dbt", "db.main.jaffle_shop.customers", MODEL_RUN, facets=facets)


def spark_application(kind: str, at: str) -> dict[str, Any]:
    facets = {"spark_applicationDetails": {"master": "yarn", "appName": "hourly scores"}}
    return event(kind, at, "1.54.0/integration/spark", "hourly_scores", COMMAND_RUN, facets=facets)


def spark_action(kind: str, at: str) -> dict[str, Any]:
    name = "hourly_scores.execute_insert_into_hadoop_fs_relation_command.warehouse_scores"
    facets = parent(
        "hourly_scores",
        COMMAND_RUN,
        {"run": {"runId": COMMAND_RUN}, "job": {"namespace": "prod", "name": "hourly_scores"}},
    )
    return event(kind, at, "1.54.0/integration/spark", name, MODEL_RUN, facets=facets)


def flink_job(kind: str, at: str, name: str = "flink_examples_stateful") -> dict[str, Any]:
    facets = {
        "checkpoints": {"completed": 3, "failed": 0, "in-progress": 0, "restored": 0, "total": 3},
        "processing_engine": {"version": "1.20.2", "name": "flink", "openlineageAdapterVersion": "1.54.0"},
        "flink_job": {"jobId": "a2f1"},
    }
    return event(kind, at, "1.54.0/integration/flink", name, COMMAND_RUN, facets=facets)


def dagster_pipeline(kind: str, at: str) -> dict[str, Any]:
    return event(kind, at, "1.38.0/integration/dagster", "scores_job", COMMAND_RUN)


def dagster_step(kind: str, at: str) -> dict[str, Any]:
    facets = parent("scores_job", COMMAND_RUN)
    return event(kind, at, "1.38.0/integration/dagster", "scores_job.publish", MODEL_RUN, facets=facets)


def written(event_: dict[str, Any]) -> bytes:
    return json.dumps(event_).encode()
