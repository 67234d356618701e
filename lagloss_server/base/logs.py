"""Logging of the services to stderr: readable lines, or one JSON object a line, from the level of LAGLOSS_LOG_LEVEL.

A traceback never shows local variables: a database's password and a webhook's address stand in them.
"""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final, TextIO, cast

import structlog
from structlog.typing import Processor

from lagloss_server.base.settings import Settings

_FACTS: Final[tuple[Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
)
_log = structlog.get_logger("lagloss")


def configure(settings: Settings) -> None:
    """Set the level and form of our own lines and of those that libraries log.

    Libraries log from warnings on: httpx2 logs whole URLs at info, and a webhook's URL is its secret.
    """
    level = logging.getLevelNamesMapping().get(settings.log_level.upper(), logging.INFO)
    renderers, stream = _renderers(settings), cast("TextIO", _Lossy(sys.stderr))
    structlog.configure(
        processors=[*_FACTS, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(stream),
    )
    handler = logging.StreamHandler(stream)
    named = (structlog.stdlib.add_logger_name, structlog.stdlib.ExtraAdder())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*named, *_FACTS],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    sys.excepthook = _log_crash
    threading.excepthook = lambda hook_arguments: _log_crash(
        hook_arguments.exc_type, hook_arguments.exc_value, hook_arguments.exc_traceback
    )


class _Lossy:
    """A stream that drops what its disk has no room for: a service goes on without its log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def _renderers(settings: Settings) -> tuple[Processor, ...]:
    if settings.log == "json":
        return structlog.processors.format_exc_info, structlog.processors.JSONRenderer()
    colours = sys.stderr.isatty()
    return (structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=structlog.dev.plain_traceback),)


def _log_crash(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    """Log what nothing has caught, as every other event."""
    if not issubclass(kind, KeyboardInterrupt | SystemExit) and error is not None:
        _log.critical("crashed", exc_info=(kind, error, trace))
