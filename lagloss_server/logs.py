"""Logging of the services: structured lines on stderr, from the level that LAGLOSS_LOG_LEVEL names."""

from __future__ import annotations

import logging

import structlog

from lagloss_server.settings import Settings


def configure(settings: Settings) -> None:
    """Set the level of our own lines.

    Libraries log from warnings on: httpx logs whole URLs at info, and a webhook's URL is its secret.
    """
    level = logging.getLevelNamesMapping().get(settings.log_level.upper(), logging.INFO)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s [%(levelname)s] %(name)s: %(message)s")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))
