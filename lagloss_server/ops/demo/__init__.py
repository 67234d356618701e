"""The demo: the whole service, the reference pipeline losing some events on purpose, and what was measured of it."""

from lagloss_server.ops.demo.run import run

__all__ = ["run"]
