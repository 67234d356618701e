"""`python -m aggregator`, or this file under `spark-submit`: runs until SIGTERM, SIGINT, or its terminal is closed."""

from __future__ import annotations

import sys
import threading

from aggregator.service import Aggregator
from lagloss.errors import LaglossError
from lagloss_server.base import logs
from lagloss_server.base.ending import end_in_time
from lagloss_server.base.settings import Settings
from lagloss_server.net.health_server import serve_health
from lagloss_server.ops.signals import run_until_signal


def main() -> int:
    try:
        settings = Settings.load()
    except LaglossError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    logs.configure(settings)
    end_in_time()
    aggregator, stop = Aggregator(settings), threading.Event()
    end = serve_health(
        "lagloss aggregator",
        aggregator.metrics.registry,
        aggregator.health_problem,
        settings.bind_address,
        settings.metrics_port,
        aggregator.health_note,
        aggregator.turns.hung,
        aggregator.stands_by,
        settings.aggregator_url,
        "LAGLOSS_AGGREGATOR_URL",
    )
    try:
        run_until_signal("aggregator", lambda: aggregator.run(stop), stop.set)
    except LaglossError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    finally:
        end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
