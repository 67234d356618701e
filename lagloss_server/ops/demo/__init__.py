"""The demo: the whole service, a reference pipeline with injected losses, and the measured losses beside them."""

from lagloss_server.ops.demo.run import run

__all__ = ["run"]
