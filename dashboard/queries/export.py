"""Exports of a window's messages, for those who may see their ids."""

from __future__ import annotations

from dashboard.queries.services import Services
from dashboard.queries.window_cache import UNREADABLE
from lagloss.wire.format import WINDOW_S
from lagloss_server.base.errors import UnknownWindow
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.export import WindowExport
from lagloss_server.queries.matrix import Presence
from lagloss_server.queries.named_messages import What, read_kept


def read_export(services: Services, pipeline: str, start_s: int, what: What) -> WindowExport:
    """Read the log, or what the closing kept: to be called in the threads that read the log.

    Raises:
        UnknownPipeline, UnknownWindow.
        IdsHidden: whoever asks may not see the window's message ids.
    """
    store = services.store
    store.demand(pipeline)
    store.look_at_ids("ids.export", pipeline, rfc3339(start_s))
    presence: Presence | None = None
    try:
        presence = services.logged.read(store, services.log, pipeline, start_s, "ids.export")
    except UNREADABLE as error:
        if not store.windows(pipeline, start_s, start_s + WINDOW_S):
            raise UnknownWindow(pipeline=pipeline, start=rfc3339(start_s)) from error
    return WindowExport.of(pipeline, what, read_kept(store, pipeline, start_s), presence)
