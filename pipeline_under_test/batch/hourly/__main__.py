"""One task of the hourly job, as Airflow runs it: `python -m pipeline_under_test.batch.hourly TASK --hour EPOCH_S`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from typing import Final

from pipeline_under_test.batch.hourly import publication
from pipeline_under_test.batch.hourly.faults import TASKS, InjectedFailure, faults_of
from pipeline_under_test.batch.schema import create_tables, open_database
from pipeline_under_test.batch.settings import BatchSettings

log = logging.getLogger(__name__)

EXIT_TERMINATED: Final = 128 + signal.SIGTERM
"""By an exception, so that an emitter with work in hand does not say that it is done."""


def main() -> None:
    """Do one task for one hour; any failure ends the process with a traceback, and Airflow tries again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--hour", type=int, required=True, help="start of the hour, in epoch seconds")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    run(BatchSettings(), arguments.task, arguments.hour, int(os.environ.get("AIRFLOW_CTX_TRY_NUMBER", "1")))


def run(settings: BatchSettings, task: str, hour: int, number: int) -> None:
    """Do a task, in its try `number`.

    Raises:
        InjectedFailure: a fault hits this try.
    """
    fault = faults_of(settings.data_dir).hitting(task, hour, number)
    if fault is not None:
        with settings.ledger_of(task) as ledger:
            ledger.write("fault", fault=fault.text, node=task, hour=hour, number=number)
        raise InjectedFailure(f"{fault.text} fails attempt {number} of {task}")
    if task == "aggregate":
        from pipeline_under_test.batch.hourly.aggregate import aggregate  # pulls in Spark

        log.info("%d events aggregated", aggregate(settings, hour))
        return
    engine = open_database(settings.database_url)
    create_tables(engine)
    with engine.begin() as connection:
        {"load": publication.load, "check": publication.check, "publish": publication.publish}[task](connection, hour)
    engine.dispose()


if __name__ == "__main__":
    main()
