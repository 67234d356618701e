"""Where an emitter's records go: to Kafka, or to a collector."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from lagloss.sdk.outlets.kafka import KafkaOutlet, Outlet

BOOTSTRAP_VARIABLE: Final = "LAGLOSS_KAFKA_BOOTSTRAP"
COLLECTOR_VARIABLE: Final = "LAGLOSS_COLLECTOR_URL"
TOKEN_VARIABLE: Final = "LAGLOSS_COLLECTOR_TOKEN"


def outlet_maker(
    pipeline: str,
    bootstrap: str | None,
    kafka_config: Mapping[str, Any] | None,
    collector: str | None,
    token: str | None,
) -> Callable[[], Outlet] | None:
    """Return what makes the outlet: settings in code come before the environment, Kafka before the collector; None
    without either."""
    address = bootstrap or (None if collector else os.environ.get(BOOTSTRAP_VARIABLE))
    if address:
        return lambda: KafkaOutlet(address, kafka_config)
    url = collector or os.environ.get(COLLECTOR_VARIABLE)
    if not url:
        return None
    try:
        from lagloss.sdk.outlets.http import HttpOutlet  # httpx is for those who use it
    except ModuleNotFoundError as error:
        problem = f"beacons over HTTP need {error.name}: run `pip install 'lagloss[http]'`"
        raise ModuleNotFoundError(problem, name=error.name) from error

    return lambda: HttpOutlet(url, pipeline, token or os.environ.get(TOKEN_VARIABLE))
