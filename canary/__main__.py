"""`python -m canary`: send the canary and judge what becomes of it, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from canary.heartbeat import Heartbeat
from canary.metrics import CanaryMetrics
from canary.service import CanaryService
from lagloss.errors import LaglossError
from lagloss.sdk.emitter import SPOOL_VARIABLE
from lagloss_server.base import logs
from lagloss_server.base.ending import end_in_time
from lagloss_server.base.settings import Settings
from lagloss_server.model.canary import NOTICE_PATH
from lagloss_server.net.health_server import serve_health
from lagloss_server.ops.processes import choose_port
from lagloss_server.ops.signals import run_until_signal

if TYPE_CHECKING:
    from fastapi import FastAPI


def main() -> int:
    try:
        settings = Settings.load()
        logs.configure(settings)
        end_in_time()
        os.environ.pop(SPOOL_VARIABLE, None)  # beacons in a spool count as acknowledged, and the broker may be away
        service = _service(settings)
        port = choose_port("the canary", settings.canary_port)
    except LaglossError as error:
        print(f"canary: {error}", file=sys.stderr)  # noqa: T201  # the log is not set up before the settings are read
        return error.exit_code
    stop = threading.Event()
    end_health = serve_health(
        "lagloss canary",
        service.metrics.registry,
        service.health_problem,
        settings.bind_address,
        port,
        hung=service.turns.hung,
        stands_by=lambda: service.stands_by,
        own_url=settings.canary_url,
        url_setting="LAGLOSS_CANARY_URL",
        more=lambda app: _take_notices(app, service),
    )
    try:
        ended_by_itself = run_until_signal("canary", lambda: service.run(stop), stop.set)
    finally:
        end_health()
    return 1 if ended_by_itself else 0


def _service(settings: Settings) -> CanaryService:
    metrics = CanaryMetrics()
    heartbeat = Heartbeat(settings.heartbeat_url, settings.heartbeat_fail_url, metrics)
    return CanaryService(
        settings.require_kafka(),
        settings.require_database(),
        settings.collector_url,
        heartbeat,
        metrics,
        settings.keep_minutes_days,
        is_on=settings.canary == "on",
    )


def _take_notices(app: FastAPI, service: CanaryService) -> None:
    """Add the route that the alerter notifies."""
    from fastapi import Body, Response

    @app.post(NOTICE_PATH)
    async def notify(body: dict[str, Any] = Body(...)) -> Response:  # noqa: B008
        try:
            await asyncio.to_thread(service.take_notice, body)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return Response(f"expected a notification, found one without {error}", 422)
        except SQLAlchemyError:
            return Response("PostgreSQL does not answer", 503)
        return Response(status_code=204)


if __name__ == "__main__":
    sys.exit(main())
