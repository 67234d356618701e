"""`python -m alerting`: run the alerter until SIGTERM or Ctrl-C."""

from __future__ import annotations

import sys

import structlog

from alerting.assembly import build
from lagloss.errors import LaglossError
from lagloss_server.base import logs
from lagloss_server.base.ending import end_in_time
from lagloss_server.base.settings import Settings
from lagloss_server.net.health_server import serve_health
from lagloss_server.ops.processes import choose_port
from lagloss_server.ops.signals import run_until_signal

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
    alerter = alerting.alerter
    end_health = serve_health(
        "lagloss alerting",
        alerting.metrics.registry,
        alerter.health_problem,
        settings.bind_address,
        port,
        alerter.unreadable.health_note,
        hung=alerter.turns.hung,
        own_url=settings.alerting_url,
        url_setting="LAGLOSS_ALERTING_URL",
    )
    _log.info(
        "alerting_started", receivers=alerting.receivers or "none: incidents are recorded, no notifications are sent"
    )
    ended_by_itself = run_until_signal("alerter", alerter.run, alerter.stop)
    end_health()
    alerting.close()
    _log.info("alerting_stopped")
    return 1 if ended_by_itself else 0


if __name__ == "__main__":
    sys.exit(main())
