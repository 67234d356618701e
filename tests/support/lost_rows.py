"""Messages that are lost afterwards in the database, as the tap service states them."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from sqlalchemy import Connection, insert

from lagloss.wire.format import SAMPLE_ALL, hash_id, signed64
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.taps import LostAfterwardsMessageRow, LostAfterwardsRow


def store_lost(
    connection: Connection, pipeline: str, start_s: int, *message_ids: str, node: str = "snk", **more: Any
) -> None:
    """State that these messages of a window are lost afterwards at a node, and are compared for a day from now."""
    now_ms = int(time.time() * 1_000)
    own = {
        "emitter": hashlib.sha256(f"{pipeline} {node}".encode()).digest()[:16],
        "window_start": start_s,
        "pipeline": pipeline,
    }
    values = {
        **own,
        "node": node,
        "checkpoint": f"{node}.out",
        "source": "table public.orders of shop",
        "lost": len(message_ids),
        "accepted": 0,
        "compared": 60,
        "sample": SAMPLE_ALL,
        "cause": "deleted",
        "missed_at": now_ms,
        "until": now_ms + 86_400_000,
        **more,
    }
    connection.execute(insert(table_of(LostAfterwardsRow)).values(values))
    for place, message_id in enumerate(message_ids):
        name = {
            **own,
            "id_hash": signed64(hash_id(message_id)),
            "message_id": message_id,
            "event_ms": start_s * 1_000 + place,
            "place": place,
            "seen_at": values["missed_at"] - 60_000,
            "missed_at": values["missed_at"],
            "cause": values["cause"],
        }
        connection.execute(insert(table_of(LostAfterwardsMessageRow)).values(name))
