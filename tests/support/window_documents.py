"""Window documents for tests of what reads them: made from a few numbers, in the shape `windows --json` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import xxhash
from msgspec import to_builtins
from sqlalchemy import Connection, text

from lagloss.wire.sketch import Sketch, bin_keys
from lagloss.wire.traces import TraceContext
from lagloss_server.judging.facts import CheckpointFacts, WindowFacts
from lagloss_server.judging.picked import MISSING, PickedMessages, blank
from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.model.window import Interval, ListedWindow, Window, loss_ratio, on_time_counts, rfc3339
from lagloss_server.store.engine import WINDOWS_CHANNEL
from lagloss_server.store.partitions import ensure_days
from lagloss_server.store.schema import core as tables

CHAIN = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: chain}
spec:
  nodes:
    - {name: src, to: [mid]}
    - {name: mid, to: [snk]}
    - {name: snk}
  sla: {loss: {max: 0.01}, lag: {percentile: 95, target: 5s}}
"""
CLICKS = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: clicks}
spec:
  nodes:
    - {name: col-service, to: [event-norm]}
    - {name: event-norm, to: [event-router]}
    - {name: event-router, to: [conn-ga, conn-fb]}
    - {name: conn-ga}
    - {name: conn-fb}
  sla: {loss: {max: 0.01}, lag: {percentile: 95, target: 1200ms}}
"""


def chain() -> Definition:
    return parse_definition(CHAIN)


def clicks() -> Definition:
    return parse_definition(CLICKS)


def document(
    definition: Definition,
    start_s: int,
    *,
    verdict: str | None = "ok",
    messages: int = 1_000,
    lags_ms: dict[str, float] | None = None,
    lost: dict[str, tuple[int, int]] | None = None,
    pending: int = 0,
    reasons: tuple[str, ...] = (),
    counts: dict[str, int] | None = None,
    due: dict[str, int] | None = None,
    history: bool = False,
    revision: int = 1,
    closed_s: int | None = None,
) -> dict[str, Any]:
    """`lags_ms`: p95 by checkpoint (a node's Lag_out is its first out's). `lost`: (min, max) by place name, `mid` or
    `src->mid`. `due`: messages due at destinations, all of them delivered; others have what the window has. Without it
    the document lists none. `verdict` None makes an open window."""
    graph = definition.graph
    lags = lags_ms or {}
    lost = lost or {}
    least, most = (sum(bounds[side] for bounds in lost.values()) for side in (0, 1))
    counts = counts or {}
    is_open = verdict is None

    def loss(place: str) -> dict[str, int] | None:
        return None if is_open else dict(zip(("min", "max"), lost.get(place, (0, 0)), strict=True))

    def minus(later: float | None, earlier: float | None) -> float | None:
        return None if later is None or earlier is None else later - earlier

    outs = {node: max((lags[out] for out in graph.outs(node) if out in lags), default=None) for node in graph.nodes}
    e2e = max((lags[name] for name in graph.delivery if name in lags), default=None)
    found = {
        "pipeline": definition.name,
        "window_start": rfc3339(start_s),
        "state": "open" if is_open else "closed",
        "revision": 0 if is_open else revision,
        "verdict": verdict,
        "reasons": list(reasons),
        "sample": 1.0,
        "proof": "tallies" if is_open else "beacons",
        "closed_at": None if is_open else rfc3339(closed_s if closed_s is not None else start_s + 121),
        "messages": messages,
        "delivered": messages - most - pending,
        "filtered": 0,
        "dead": 0,
        "pending": None if is_open else pending,
        "unexplained": None if is_open else 0,
        "clock_skew_ms": None if is_open else 0,
        "lost": None if is_open else {"min": least, "max": most},
        "loss_ratio": None
        if is_open
        else {"min": least / messages if messages else None, "max": most / messages if messages else None},
        "on_time_share": None if is_open or not messages else (messages - most - pending) / messages,
        "on_time_of": messages,
        "e2e_lag_ms": {"p50": e2e and e2e / 3, "p95": e2e, "p99": e2e and e2e * 1.4, "max": e2e and e2e * 2},
        "checkpoints": [
            {
                "name": name,
                "beacons": counts.get(name, messages),
                "distinct": None if is_open else counts.get(name, messages),
                "duplicates": None if is_open else 0,
                "replayed": 0,
                "lag_ms": {"p50": lags.get(name), "p95": lags.get(name), "p99": lags.get(name)},
            }
            for name in graph.checkpoints
            if name in lags or name in counts
        ],
        "nodes": [
            {
                "name": node,
                "lag_in_p95_ms": lags.get(f"{node}.in"),
                "lag_out_p95_ms": outs[node],
                "process_duration_p95_ms": minus(outs[node], lags.get(f"{node}.in")),
                "process_duration_ms": dict.fromkeys(("p50", "p95", "p99")),
                "lost": loss(node),
                "complete": f"evidence:{node}" not in reasons,
            }
            for node in graph.nodes
        ],
        "links": [
            {
                "from": link.source,
                "to": link.target,
                "queue_time_p95_ms": minus(lags.get(f"{link.target}.in"), lags.get(link.out)),
                "queue_time_ms": dict.fromkeys(("p50", "p95", "p99")),
                "lost": loss(link.name),
                "corrupted": None if is_open else 0,
                "checked": None if is_open else 0,
            }
            for link in graph.links
        ],
        "destinations": [],
        "reasons_by_node": None,
        "staleness_ms": {},
        "crashes": [],
        "unknown_checkpoints": [],
        "history": history,
    }
    if due is not None:
        reached = {name.removesuffix(".out"): due.get(name.removesuffix(".out"), messages) for name in graph.delivery}
        found["destinations"] = [_destination(name, count, lags.get(f"{name}.out")) for name, count in reached.items()]
        found["on_time_of"] = sum(reached.values())
    return found


_LAGS: dict[str, Any] = dict.fromkeys(("p50", "p95", "p99"))
_NO_COUNTS: dict[str, Any] = {
    "name": "",
    **dict.fromkeys(("messages", "delivered", "filtered", "dead", "pending", "unexplained"), 0),
    "lost": None,
    "loss_ratio": None,
}
_ON_TIME: dict[str, Any] = {"on_time_share": None, "on_time_of": None, "e2e_lag_ms": {**_LAGS, "max": None}}
_AT: dict[str, dict[str, Any]] = {
    "checkpoints": {"beacons": 0, "distinct": None, "duplicates": None, "replayed": 0, "lag_ms": _LAGS},
    "nodes": {
        **dict.fromkeys(("lag_in_p95_ms", "lag_out_p95_ms", "process_duration_p95_ms", "lost")),
        "process_duration_ms": _LAGS,
        "complete": True,
    },
    "links": {**dict.fromkeys(("queue_time_p95_ms", "lost", "corrupted", "checked")), "queue_time_ms": _LAGS},
    "destinations": {**_NO_COUNTS, "due": 0, **_ON_TIME},
    "sources": {**_NO_COUNTS, **_ON_TIME},
    "sides": {**_NO_COUNTS, "nodes": (), "verdict": None},
}
"""What a row of a list in a window has where a test says nothing of it."""
_NOTHING: dict[str, Any] = {
    **_NO_COUNTS,
    "pipeline": "",
    "window_start": "2026-01-01T00:00:00Z",
    "verdict": None,
    "proof": "beacons",
    "sample": 1.0,
    "clock_skew_ms": None,
    **_ON_TIME,
    **dict.fromkeys(("reasons", "checkpoints", "nodes", "links", "destinations", "crashes", "unknown_checkpoints"), ()),
    "reasons_by_node": None,
    "staleness_ms": {},
    "state": "closed",
    "revision": 1,
    "closed_at": None,
    "history": False,
}


def window_of(fields: Mapping[str, Any] | Window) -> ListedWindow:
    """Return the window with these fields; those that are left out say nothing."""
    document = fields.document() if isinstance(fields, Window) else fields
    rows = {kind: [_filled(row, nothing) for row in document.get(kind, ())] for kind, nothing in _AT.items()}
    for side in rows["sides"]:
        side["loss_ratio"] = side["lost"] and to_builtins(loss_ratio(Interval(**side["lost"]), side["messages"]))
    return msgspec.convert({**_filled(document, _NOTHING), **rows}, ListedWindow)


def result_of(window: ListedWindow) -> Window:
    """Return the window as it is stored."""
    return msgspec.convert(window, Window, from_attributes=True)


def documents(windows: Iterable[Window]) -> list[dict[str, Any]]:
    """Return the fields of windows, as JSON objects have them."""
    return [window.document() for window in windows]


def _filled(row: Mapping[str, Any], nothing: Mapping[str, Any]) -> dict[str, Any]:
    lags = {
        name: {**nothing[name], **row[name]} for name in ("lag_ms", "e2e_lag_ms") if name in row and name in nothing
    }
    return {**nothing, **row, **lags}


def _destination(name: str, due: int, lag_ms: float | None) -> dict[str, Any]:
    return {
        "name": name,
        "due": due,
        "delivered": due,
        "filtered": 0,
        "dead": 0,
        "pending": 0,
        "lost": {"min": 0, "max": 0},
        "on_time_share": 1.0 if due else None,
        "e2e_lag_ms": dict.fromkeys(("p50", "p95", "p99", "max"), lag_ms),
    }


def facts(window: dict[str, Any]) -> WindowFacts:
    """Facts that fit a document: every lag of a checkpoint or a destination is its p95."""

    def lags(p95_ms: float | None, count: int) -> Sketch:
        return Sketch() if p95_ms is None else Sketch.from_bins({int(bin_keys(np.array([p95_ms]))[0]): count})

    checkpoints = {
        there["name"]: CheckpointFacts(
            there["beacons"], 0, there["distinct"] or 0, 0, lags(there["lag_ms"]["p95"], there["beacons"])
        )
        for there in window["checkpoints"]
    }
    arrivals = window["destinations"] or [window]
    each = tuple(lags(there["e2e_lag_ms"]["p95"], there["delivered"] or 0) for there in arrivals)
    return WindowFacts(checkpoints=checkpoints, arrivals=each)


def store_window(connection: Connection, window: dict[str, Any], start_s: int, notify: bool = True) -> None:
    """Writes a closed window as the closer does: over the older revision, and NOTIFY with the commit."""
    ensure_days(connection, [start_s])
    connection.execute(
        tables.WindowRow.__table__.delete().where(
            tables.WindowRow.pipeline == window["pipeline"], tables.WindowRow.window_start == start_s
        )
    )
    closed_ms = (start_s + 121) * 1000
    listed = window_of(window)
    on_time, on_time_of = on_time_counts(listed)
    connection.execute(
        tables.WindowRow.__table__.insert().values(
            pipeline=window["pipeline"],
            window_start=start_s,
            state=window["state"],
            revision=window["revision"],
            verdict=window["verdict"],
            messages=window["messages"],
            delivered=window["delivered"],
            pending=window["pending"],
            lost_min=window["lost"]["min"],
            lost_max=window["lost"]["max"],
            on_time=on_time,
            on_time_of=on_time_of,
            e2e_p95_ms=window["e2e_lag_ms"]["p95"],
            history=window["history"],
            closed_at=closed_ms,
            judged_at=closed_ms,
            basis=1,
            deadline=None,
            log_start=[],
            document=result_of(listed).pack(),
            facts=facts(window).pack(),
        )
    )
    if notify:
        payload = f"{window['pipeline']}/{start_s}"
        connection.execute(
            text("SELECT pg_notify(:channel, :payload)"), {"channel": WINDOWS_CHANNEL, "payload": payload}
        )


def store_named(connection: Connection, pipeline: str, start_s: int, message_id: str, **missing: Any) -> None:
    """As `store_missing`, with what a closing that read the log keeps beside it."""
    store_missing(connection, pipeline, start_s, message_id, **missing)
    numbers = {**blank(1, 1), "what": np.array([MISSING], np.uint8)}
    numbers["ids"] = np.array([xxhash.xxh3_64_intdigest(message_id.encode())], np.uint64)
    picked = PickedMessages(
        checkpoints=(missing["last"],), names=(message_id,), masks=(1,), numbers=numbers, totals={"missing": 1}
    )
    row = {"pipeline": pipeline, "window_start": start_s, "packed": picked.pack()}
    connection.execute(tables.PickedMessagesRow.__table__.insert().values(**row))


def store_missing(
    connection: Connection,
    pipeline: str,
    start_s: int,
    message_id: str,
    *,
    kind: str,
    place: str,
    last: str,
    named: bool = True,
    trace: TraceContext | None = None,
) -> None:
    ensure_days(connection, [start_s])
    hashed = xxhash.xxh3_64_intdigest(message_id.encode())
    connection.execute(
        tables.MissingMessageRow.__table__.insert().values(
            pipeline=pipeline,
            window_start=start_s,
            id_hash=hashed - (1 << 64) if hashed >> 63 else hashed,
            message_id=message_id if named else None,
            pattern="03",
            kind=kind,
            places=[place],
            last_checkpoint=last,
            last_seen_ms=start_s * 1000 + 12_345.0,
            seen_from_ms=start_s * 1000 + 12_345.0,
            seen_by_ms=start_s * 1000 + 12_345.0,
            trace_id=trace and trace.trace_id,
            span_id=trace and trace.span_id,
        )
    )
