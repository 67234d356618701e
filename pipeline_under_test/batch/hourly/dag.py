"""The DAG `scores_hourly`, in Airflow's own environment: wait until the hour is whole, aggregate, load, check, publish.

The tasks run in lagloss's environment, which has Spark. What varies is in the environment of the scheduler:

SCORES_SPAN_S      seconds of an "hour", a divisor of an hour or a multiple of one
SCORES_STEP        the command of a task, to which its name and hour are added
SCORES_PIPELINE    pipeline of records
SCORES_RETRY_S     pause before the second try; each later one is twice as long
SCORES_WHEN_LOSSY  what to do with an hour of which more is lost than the SLA allows: wait, run or fail
SCORES_START_S     start of the first hour that is scheduled (epoch s); by default the hour before this one
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import cast

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, CronDataIntervalTimetable

from lagloss.airflow.facts import span_of
from lagloss.airflow.sensor import WhenLossy, WholeSpanSensor

SPAN = timedelta(seconds=int(os.environ.get("SCORES_SPAN_S", "3600")))
RETRY = timedelta(seconds=float(os.environ.get("SCORES_RETRY_S", "60")))
START_S = float(os.environ.get("SCORES_START_S", "0"))
STEP = os.environ.get("SCORES_STEP", "python -m pipeline_under_test.batch.hourly")
POKE_S = 2.0
RETRIES = 2


def cron_of(span: timedelta) -> str:
    """Return the schedule of a job each `span`.

    Raises:
        ValueError: cron has none of this length.
    """
    minutes = int(span.total_seconds()) // 60
    if minutes and 60 % minutes == 0:
        return f"*/{minutes} * * * *" if minutes < 60 else "0 * * * *"
    if minutes and minutes % 60 == 0 and 24 % (minutes // 60) == 0:
        return f"0 */{minutes // 60} * * *"
    raise ValueError(f"expected a duration that divides an hour, or whole hours that divide a day, found {span}")


def step(name: str) -> BashOperator:
    """Return the task that does one step for the run's hour. Airflow ends it with its process."""
    return BashOperator(task_id=name, bash_command=f"exec {STEP} {name} --hour {{{{ hour_of(dag_run) }}}}")


with DAG(
    "scores_hourly",
    schedule=CronDataIntervalTimetable(cron_of(SPAN), timezone="UTC"),
    start_date=datetime.fromtimestamp(START_S, UTC),
    catchup=bool(START_S),
    max_active_runs=1,
    dagrun_timeout=4 * SPAN,
    user_defined_macros={"hour_of": lambda dag_run: int(span_of(dag_run, SPAN)[0].timestamp())},
    default_args={
        "retries": RETRIES,
        "retry_delay": RETRY,
        "retry_exponential_backoff": 2,
        "max_retry_delay": SPAN,
    },
    doc_md=__doc__,
):
    whole = WholeSpanSensor(
        task_id="whole",
        pipeline=os.environ.get("SCORES_PIPELINE", "scores"),
        node="db-import",
        span=SPAN,
        when_lossy=cast("WhenLossy", os.environ.get("SCORES_WHEN_LOSSY", "wait")),
        poke_interval=POKE_S,
        timeout=2 * SPAN.total_seconds(),
    )
    whole >> step("aggregate") >> step("load") >> step("check") >> step("publish")
