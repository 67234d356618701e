"""Taps in the database, as the tap service stores them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, insert

from lagloss_server.model.taps import Tap
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.taps import TapRow, TapUnreadableRow
from taps.plan import TapPlan


def store_tap(
    connection: Connection,
    tap: Tap,
    *,
    since_ms: int,
    through_ms: int,
    owner: str = "",
    unreadable: Mapping[str, tuple[int, int, int, int]] | None = None,
    **more: Any,
) -> None:
    """Store a tap that has read everything observed before `through_ms`, with what it could not read: by reason the
    count, and an example's partition, offset and time. `owner`: a session's name."""
    emitter = hashlib.sha256(f"{tap.pipeline} {tap.node} {tap.source} {since_ms}".encode()).digest()[:16]
    values = {
        "emitter": emitter,
        "pipeline": tap.pipeline,
        "node": tap.node,
        "tap": tap.document(),
        "since": since_ms,
        "number": 7,
        "plan": TapPlan(7, through_ms, 8, 1, through_ms=through_ms).document(),
        "owner": owner,
        **dict.fromkeys(("seen", "left_out", "early", "gone"), 0),
        "commits": "",
        **dict.fromkeys(("trouble", "recheck_trouble"), ""),
        **more,
    }
    connection.execute(insert(table_of(TapRow)).values(values))
    for reason, (count, partition, offset, at_ms) in (unreadable or {}).items():
        example = {"partition": partition, "offset": offset, "at": at_ms}
        row = {"emitter": emitter, "reason": reason, "count": count, **example}
        connection.execute(insert(table_of(TapUnreadableRow)).values(row))
