"""Recomputation by the running aggregator: request it, and wait for the answer."""

from __future__ import annotations

import time
from typing import Any

import httpx2

from lagloss_server.base.errors import NotEnoughData, ServerNotReady
from lagloss_server.base.settings import Settings
from lagloss_server.model.window import rfc3339
from lagloss_server.net.http_answers import BOUNDED
from lagloss_server.ops.supervisor import Say
from lagloss_server.store import recompute_requests
from lagloss_server.store.store import Store

ANSWER_TIMEOUT_S = 3_600
ABSENT_AT_MOST_S = 120.0
"""Longest absence of the aggregator after a request: it is restarted, and then continues."""
POLL_S = 0.1


def recompute(settings: Settings, store: Store, pipeline: str, from_s: int, to_s: int, say: Say) -> dict[str, Any]:
    """Have the running aggregator close the windows with from <= start < to again, and return its answer when it is
    done.

    `say` is called with the progress.

    Raises:
        ServerNotReady: no aggregator answers, or not in time. The request is still carried out once one runs.
        NotEnoughData: there is no closed window in the range.
    """
    check_aggregator(settings)
    request = recompute_requests.add(store, pipeline, from_s, to_s)
    requested_s = seen_s = time.monotonic()
    while (answer := recompute_requests.answer_to(store, request)) is None:
        now = time.monotonic()
        if now - requested_s > ANSWER_TIMEOUT_S:
            raise ServerNotReady(
                server="the aggregator", detail=f"no response within {ANSWER_TIMEOUT_S} s", log="its own"
            )
        say(_progress_text(recompute_requests.progress_of(store, request)))
        try:
            check_aggregator(settings)
            seen_s = now
        except ServerNotReady:
            if now - seen_s > ABSENT_AT_MOST_S:
                raise
            say("the aggregator does not respond; recomputing continues once it runs again")
        time.sleep(POLL_S)
    if not answer["windows"] and not answer["sealed"]:
        raise NotEnoughData(detail=f"{pipeline} has no closed window from {rfc3339(from_s)} to {rfc3339(to_s)}.")
    return answer


def _progress_text(progress: dict[str, Any] | None) -> str:
    return "waiting for the aggregator" if progress is None else f"{progress['done']} of {progress['of']} windows"


def check_aggregator(settings: Settings) -> None:
    """Raise ServerNotReady if the aggregator, if its address is known, does not answer."""
    if not settings.aggregator_url:
        return
    try:
        with httpx2.Client(timeout=10, event_hooks=BOUNDED) as client:
            client.get(f"{settings.aggregator_url}/healthz")
    except httpx2.HTTPError as error:
        log = settings.data_dir / "logs" / "aggregator.log"
        raise ServerNotReady(server="the aggregator", detail=str(error), log=log) from error
