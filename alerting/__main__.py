"""`python -m alerting`: run the alerter until SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading

import structlog

from alerting.assembly import AlertingSetup, build
from lagloss.errors import LaglossError
from lagloss_server import logs
from lagloss_server.ending import end_in_time
from lagloss_server.net.health_server import serve_health
from lagloss_server.ops.processes import choose_port
from lagloss_server.settings import Settings

_log = structlog.get_logger("lagloss.alerting")


def main() -> int:
    try:
        settings = Settings.load()
        logs.configure(settings)
        end_in_time()
        alerting = build(settings)
        port = choose_port("the alerter", settings.alerting_port)
    except LaglossError as error:
        print(f"alerting: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    end_health = serve_health(
        "lagloss alerting",
        alerting.metrics.registry,
        lambda: alerting.alerter.trouble,
        settings.bind_address,
        port,
        alerting.alerter.unreadable.health_note,
        own_url=settings.alerting_url,
        url_setting="LAGLOSS_ALERTING_URL",
    )
    _log.info(
        "alerting_started", receivers=alerting.receivers or "none: incidents are recorded, no notifications are sent"
    )
    ended_by_itself = _run_until_signal(alerting)
    end_health()
    alerting.close()
    _log.info("alerting_stopped")
    return 1 if ended_by_itself else 0


def _run_until_signal(alerting: AlertingSetup) -> bool:
    """Run the alerter until a signal; return True if it ended without one (a fault, whose traceback is logged)."""
    # The handler only writes a byte: setting an Event there may interrupt a wait on it in this thread and lock up.
    # Blocking the signals and sigwait would not do: libraries have started threads before that do not block them.
    wake_read, wake_write = os.pipe()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: os.write(wake_write, b"."))
    ended = threading.Event()

    def run() -> None:
        try:
            alerting.alerter.run()
        finally:
            ended.set()
            os.write(wake_write, b".")

    worker = threading.Thread(target=run, name="alerter")
    worker.start()
    os.read(wake_read, 1)
    by_itself = ended.is_set()
    alerting.alerter.stop()
    worker.join()
    return by_itself


if __name__ == "__main__":
    sys.exit(main())
