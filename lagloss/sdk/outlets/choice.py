"""The choice of an emitter's outlet: Kafka or a collector."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from lagloss.broker.connection import BOOTSTRAP_VARIABLE, Cluster
from lagloss.environment import secret
from lagloss.sdk.outlets.kafka import KafkaOutlet, Outlet

COLLECTOR_VARIABLE: Final = "LAGLOSS_COLLECTOR_URL"
TOKEN_VARIABLE: Final = "LAGLOSS_COLLECTOR_TOKEN"


def outlet_maker(
    pipeline: str,
    cluster: Cluster | None,
    kafka_config: Mapping[str, Any] | None,
    collector: str | None,
    token: str | None,
) -> Callable[[], Outlet] | None:
    """Return a factory of the chosen outlet, None if no address is given.

    Arguments take precedence over the environment, Kafka over the collector.

    Raises:
        ModuleNotFoundError: a collector is given and httpx2 is not installed.
        BadSetting: the token's file cannot be read, or the token is given in both ways.
    """
    address = cluster or (None if collector else os.environ.get(BOOTSTRAP_VARIABLE))
    if address:
        return lambda: KafkaOutlet(address, kafka_config)
    url = collector or os.environ.get(COLLECTOR_VARIABLE)
    if not url:
        return None
    try:
        from lagloss.sdk.outlets.http import HttpOutlet  # httpx2 is an optional dependency
    except ModuleNotFoundError as error:
        problem = f"sending beacons over HTTP needs {error.name}: run `pip install 'lagloss[http]'`"
        raise ModuleNotFoundError(problem, name=error.name) from error

    shown = token or secret(os.environ, TOKEN_VARIABLE) or None
    return lambda: HttpOutlet(url, pipeline, shown)
