"""`python -m alerting`: runs the alerter until SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading

import structlog

from alerting.incidents import Incidents
from alerting.outbox import Outbox
from alerting.webhook import Webhook
from alerting.worker import Alerter
from lagloss import logs
from lagloss.errors import LaglossError
from lagloss.settings import Settings
from lagloss.store import Store

_log = structlog.get_logger("lagloss.alerting")


def main() -> int:
    settings = Settings.load()
    logs.configure(settings)
    try:
        database_url = settings.require_database()
    except LaglossError as error:
        print(f"alerting: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    store = Store(database_url)
    webhook = Webhook(settings.alert_webhook_url) if settings.alert_webhook_url else None
    incidents = Incidents(store, notify=webhook is not None, dashboard_url=_dashboard_url(settings))
    alerter = Alerter(database_url, incidents, Outbox(store.engine, webhook) if webhook else None)

    _log.info("alerting_started", webhook="set" if webhook else "not set: incidents are recorded, nobody is told")
    ended_by_itself = _run_until_signal(alerter)
    if webhook is not None:
        webhook.close()
    _log.info("alerting_stopped")
    return 1 if ended_by_itself else 0


def _run_until_signal(alerter: Alerter) -> bool:
    """Whether the alerter ended without being told to (it should not; its traceback is in the log)."""
    # The handler only writes a byte: setting an Event there may interrupt a wait on it in this thread and lock up.
    # Blocking the signals and sigwait would not do: libraries have started threads before that do not block them.
    heard, told = os.pipe()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: os.write(told, b"."))
    ended = threading.Event()

    def run() -> None:
        try:
            alerter.run()
        finally:
            ended.set()
            os.write(told, b".")

    worker = threading.Thread(target=run, name="alerter")
    worker.start()
    os.read(heard, 1)
    by_itself = ended.is_set()
    alerter.stop()
    worker.join()
    return by_itself


def _dashboard_url(settings: Settings) -> str:
    if settings.dashboard_url or not settings.dashboard_port:
        return settings.dashboard_url
    return f"http://{settings.bind_address}:{settings.dashboard_port}"


if __name__ == "__main__":
    sys.exit(main())
