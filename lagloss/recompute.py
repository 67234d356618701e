"""Asking the running aggregator to close windows again, and waiting for its answer."""

from __future__ import annotations

import time
from typing import Any

import httpx

from lagloss.errors import NotEnoughData, ServerNotReady
from lagloss.result import rfc3339
from lagloss.settings import Settings
from lagloss.store import Store

ANSWER_TIMEOUT_S = 3_600
POLL_S = 0.1


def recompute(settings: Settings, store: Store, pipeline: str, from_s: int, to_s: int) -> dict[str, Any]:
    """Have the running aggregator close the windows with from <= start < to again; returns when it has.

    Raises:
        ServerNotReady: no aggregator answers.
        NotEnoughData: there is no closed window in the range.
    """
    check_aggregator(settings)
    request = store.request_recompute(pipeline, from_s, to_s)
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while (answer := store.recompute_answer(request)) is None:
        if time.monotonic() > deadline:
            raise ServerNotReady(
                server="the aggregator", detail=f"no answer within {ANSWER_TIMEOUT_S} s", log="its own"
            )
        time.sleep(POLL_S)
        check_aggregator(settings)
    if not answer["windows"] and not answer["sealed"]:
        raise NotEnoughData(detail=f"{pipeline} has no closed window from {rfc3339(from_s)} to {rfc3339(to_s)}.")
    return answer


def check_aggregator(settings: Settings) -> None:
    """Raises ServerNotReady where the aggregator, if its address is known, does not answer at all."""
    if not settings.aggregator_url:
        return
    try:
        httpx.get(f"{settings.aggregator_url}/healthz", timeout=10)
    except httpx.HTTPError as error:
        log = settings.data_dir / "logs" / "aggregator.log"
        raise ServerNotReady(server="the aggregator", detail=str(error), log=log) from error
