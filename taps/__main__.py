"""`python -m taps`: run the taps of all pipelines until SIGTERM or Ctrl-C."""

from __future__ import annotations

import sys
import threading
from typing import Any

from lagloss.errors import LaglossError
from lagloss_server.base import logs
from lagloss_server.base.ending import end_in_time
from lagloss_server.base.settings import Settings
from lagloss_server.net.health_server import serve_health
from lagloss_server.ops.processes import choose_port
from lagloss_server.ops.signals import run_until_signal
from taps.service import TapService


def main() -> int:
    try:
        settings = Settings.load()
        logs.configure(settings)
        end_in_time()
        spark = _spark(settings) if settings.taps_spark_master else None
        service = TapService(settings.require_kafka(), settings.require_database(), spark)
        port = choose_port("taps", settings.taps_port)
    except LaglossError as error:
        print(f"taps: {error}", file=sys.stderr)  # noqa: T201  # the log is not set up before the settings are read
        return error.exit_code
    stop = threading.Event()
    end_health = serve_health(
        "lagloss taps",
        service.metrics.registry,
        service.health_problem,
        settings.bind_address,
        port,
        service.unreadable.health_note,
        hung=service.turns.hung,
        own_url=settings.taps_url,
        url_setting="LAGLOSS_TAPS_URL",
    )
    try:
        ended_by_itself = run_until_signal("taps", lambda: service.run(stop), stop.set)
    except LaglossError as error:
        print(f"taps: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    finally:
        end_health()
    return 1 if ended_by_itself else 0


def _spark(settings: Settings) -> Any:
    from lagloss_server.ops.spark_session import start_session
    from taps.spark_engine import TAPS

    scratch, memory = settings.data_dir / "spark-taps", settings.spark_driver_memory
    return start_session(TAPS, settings.taps_spark_master, memory, scratch, settings.spark_driver_host)


if __name__ == "__main__":
    sys.exit(main())
