"""Messages of a window that something is wrong with, one by one, as its closing kept them: the lost, the late, the dead
and the corrupted.

A closing keeps up to 1,000 names of missing messages, and samples of the others with the latest of the late
(`rules.picked`). All of them are in the log: `queries.logged_messages`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, NotRequired, TypedDict

import numpy as np
from sqlalchemy import Connection, Row, select

from lagloss.wire.traces import TraceContext
from lagloss_server.base.errors import UnknownPipeline, UnreadableDefinition
from lagloss_server.base.trace_links import NO_LINKS, TraceLinks
from lagloss_server.judging.picked import CORRUPTED, DEAD, LATE, LATEST, MISSING, NOWHERE, SEEN_MS, PickedMessages
from lagloss_server.model.graph import Graph, node_of
from lagloss_server.model.message_ids import unescape_id
from lagloss_server.model.place import Place, node_label
from lagloss_server.model.window import rfc3339
from lagloss_server.store.results import unpack_window
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.repair import RepairMessageRow
from lagloss_server.store.store import MISSING_KINDS, MissingMessage, Store

PickedKind = Literal["late", "dead", "corrupted"]
What = Literal["lost", "late", "dead", "all"]
"""All: lost, pending, dead, late and corrupted ones."""
LOST_KINDS: Final = ("lost", "perhaps", "overdue")
MAX_MISSING: Final = 1_000
"""Names of missing messages that a closing keeps."""
_SAMPLES: Final[Mapping[PickedKind, int]] = {"late": LATE | LATEST, "dead": DEAD, "corrupted": CORRUPTED}
_PICKED: Final[Mapping[What, tuple[PickedKind, ...]]] = {
    "lost": (),
    "late": ("late",),
    "dead": ("dead",),
    "all": ("dead", "late", "corrupted"),
}
COLUMNS: Final = (
    *("message_id", "id_hash", "kind", "places", "event_time", "last_checkpoint", "last_seen", "lag_ms"),
    *("hop", "hop_ms", "reason", "emitter", "host", "trace_id", "span_id", "topic", "partition", "offset"),
)
"""Fields of a message, in every format."""


class NamedMessageDocument(TypedDict):
    """The fields of `COLUMNS`; `trace_url`: the trace's address, if it is known."""

    message_id: str | None
    id_hash: str
    kind: str
    places: list[str]
    event_time: str | None
    last_checkpoint: str
    last_seen: str
    lag_ms: float | None
    hop: str | None
    hop_ms: float | None
    reason: str | None
    emitter: str | None
    host: str | None
    trace_id: str | None
    span_id: str | None
    topic: str | None
    partition: int | None
    offset: int | None
    trace_url: NotRequired[str]


class LocatedRecord(NamedTuple):
    """Where the record of a message is in Kafka."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class NamedMessage:
    """A message that something is wrong with. Times in epoch ms, those of picked messages to a tenth of a second.

    `kind`: that of a missing message (`MissingMessage`), else late, dead or corrupted; `places`: where it is missing,
    died or was corrupted, or the hop that held a late one. `lag_ms`: from its event time until it was last seen, of a
    late one until it arrived where it was latest; `hop`: what held a late one longest, for `hop_ms`. `emitter`: that
    saw it last, `host` its host and process. `record`: where its record is. None: not known, or there is none.
    """

    window_start_s: int
    id_hash: int
    message_id: str | None
    kind: str
    places: tuple[str, ...]
    event_ms: float | None
    last_checkpoint: str
    last_seen_ms: float
    lag_ms: float | None
    hop: str | None = None
    hop_ms: float | None = None
    reason: str | None = None
    emitter: bytes | None = None
    host: str | None = None
    trace: TraceContext | None = None
    record: LocatedRecord | None = None

    def document(self, links: TraceLinks = NO_LINKS) -> NamedMessageDocument:
        """Return the fields of `COLUMNS`, the id as it was sent, and the trace's address if it is known."""
        document = self._own_fields()
        if self.message_id is not None:
            document["message_id"] = unescape_id(self.message_id)
        if (url := links.url(self.trace, self.window_start_s)) is not None:
            document["trace_url"] = url
        return document

    def cells(self) -> list[Any]:
        """Return the values of `COLUMNS` as single texts and numbers; control characters in the id are escaped."""
        return [*{**self._own_fields(), "places": ", ".join(self.places)}.values()]

    def _own_fields(self) -> NamedMessageDocument:
        return {
            "message_id": self.message_id,
            "id_hash": f"{self.id_hash:016x}",
            "kind": self.kind,
            "places": list(self.places),
            "event_time": None if self.event_ms is None else rfc3339(round(self.event_ms) / 1_000),
            "last_checkpoint": self.last_checkpoint,
            "last_seen": rfc3339(round(self.last_seen_ms) / 1_000),
            "lag_ms": None if self.lag_ms is None else round(self.lag_ms, 3),
            "hop": self.hop,
            "hop_ms": None if self.hop_ms is None else round(self.hop_ms, 3),
            "reason": self.reason,
            "emitter": None if self.emitter is None else self.emitter.hex(),
            "host": self.host,
            "trace_id": self.trace and self.trace.trace_id,
            "span_id": self.trace and self.trace.span_id,
            "topic": self.record and self.record.topic,
            "partition": None if self.record is None else self.record.partition,
            "offset": None if self.record is None else self.record.offset,
        }


@dataclass(frozen=True)
class KeptMessages:
    """What the closing of a window kept of single messages. `hosts`: of the emitters that are still known; `counts`:
    the messages that the result counts as `lost` (at most), `pending`, `dead` and `late`; empty where it is not
    closed. `records`: where records are, as repairs have located them; `origins`: topics whose positions are ids."""

    window_start_s: int
    missing: Sequence[MissingMessage]
    picked: PickedMessages
    hosts: Mapping[bytes, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    records: Mapping[int, LocatedRecord] = field(default_factory=dict)
    origins: frozenset[str] = frozenset()

    def placed(self, message: NamedMessage) -> NamedMessage:
        """Return a message with the place of its record, if that is known."""
        record = self.records.get(message.id_hash)
        parts = (message.message_id or "").split("/")
        if record is None and len(parts) == 3 and parts[0] in self.origins:
            record = LocatedRecord(parts[0], int(parts[1]), int(parts[2]))
        return message if record is None else replace(message, record=record)

    def named(self, what: What) -> list[NamedMessage]:
        """Return the messages that were asked for, each once: lost ones first, then dead, late (worst first) and
        corrupted ones."""
        start_s = self.window_start_s
        kinds = {"lost": LOST_KINDS, "all": MISSING_KINDS}.get(what, ())
        missing = [message for message in self.missing if message.kind in kinds]
        events_ms = dict(_event_times(start_s, self.picked)) if missing else {}
        messages = {message.id_hash: _of_missing(message, events_ms.get(message.id_hash)) for message in missing}
        for kind in _PICKED[what]:
            for message in of_kind(start_s, self.picked, kind):
                messages.setdefault(message.id_hash, message)
        return [replace(message, host=self.hosts.get(message.emitter or b"")) for message in messages.values()]

    def is_truncated(self, what: What) -> bool:
        """Return whether the window has more such messages than are named."""
        named = Counter("lost" if message.kind in LOST_KINDS else message.kind for message in self.missing)
        named.update({kind: self.picked.rows(sample).size for kind, sample in _SAMPLES.items()})
        counts = Counter({**self.counts, "corrupted": self.picked.totals.get("corrupted", 0)})
        kinds = ("lost", "pending", *_PICKED["all"]) if what == "all" else (what,)
        return any(counts[kind] > named[kind] for kind in kinds)


def read_kept(store: Store, pipeline: str, window_start_s: int) -> KeptMessages:
    """Read what is kept of single messages of a window; nothing where it is not closed."""
    window, emitter = tables.table_of(tables.WindowRow), tables.EmitterRow
    result = select(window).where(window.c.pipeline == pipeline, window.c.window_start == window_start_s)
    hosts = select(emitter.emitter, emitter.host).where(emitter.pipeline == pipeline)
    with store.engine.connect() as connection:
        picked = read_picked(connection, pipeline, window_start_s)
        closed = connection.execute(result).one_or_none()
        hosts_of = {row.emitter: row.host for row in connection.execute(hosts)}
        records = _records(connection, pipeline, window_start_s)
    missing = store.missing(pipeline, window_start_s, MAX_MISSING)
    counts = {} if closed is None else _counts(closed)
    origins = _origins(store, pipeline, window_start_s)
    return KeptMessages(window_start_s, missing, picked, hosts_of, counts, records, origins)


def _records(connection: Connection, pipeline: str, window_start_s: int) -> dict[int, LocatedRecord]:
    """Return by id where repairs have located records of a window."""
    table = tables.table_of(RepairMessageRow)
    row = table.c
    is_known = row.pipeline == pipeline, row.window_start == window_start_s, row.topic.is_not(None)
    rows = connection.execute(select(table).where(*is_known).order_by(row.repair, row.position))
    return {row.id_hash % (1 << 64): LocatedRecord(row.topic, row.topic_partition, row.topic_offset) for row in rows}


def _origins(store: Store, pipeline: str, window_start_s: int) -> frozenset[str]:
    """Return the topics whose positions are ids of a window's messages."""
    try:
        taps = store.definition_at(pipeline, window_start_s).taps
    except (UnknownPipeline, UnreadableDefinition):
        return frozenset()
    return frozenset(topic for tap in taps if tap.extraction.id.form == "position" for topic in tap.extraction.origins)


def read_picked(connection: Connection, pipeline: str, window_start_s: int) -> PickedMessages:
    row = tables.PickedMessagesRow
    query = select(row.packed).where(row.pipeline == pipeline, row.window_start == window_start_s)
    return PickedMessages.unpack(connection.execute(query).scalar_one_or_none() or b"")


def _counts(row: Row[Any]) -> dict[str, int]:
    """Return the counts of a closed window. One that is lost or pending is not on time either, and not late."""
    late = max(0, row.on_time_of - row.on_time - row.lost_max - row.pending)
    result = unpack_window(row.pipeline, row.window_start, row.document)
    dead = {} if result is None else {"dead": result.dead}
    return {"lost": row.lost_max, "pending": row.pending, **dead, "late": late}


def of_kind(
    window_start_s: int,
    picked: PickedMessages,
    kind: PickedKind,
    *,
    graph: Graph | None = None,
    place: Place | None = None,
    above_ms: float = 0.0,
) -> list[NamedMessage]:
    """Return the picked messages of one kind, late ones worst first. With a `place` of a `graph`, only those that are
    so there, of late ones at a destination or checkpoint those that came `above_ms` late."""
    rows = picked.rows(_SAMPLES[kind])
    if not rows.size:
        return []
    seen_ms = picked["seen"][rows].astype(np.float64) * SEEN_MS
    seen_ms[picked["seen"][rows] == NOWHERE] = -np.inf
    last_ms = seen_ms.max(axis=1)
    event_ms = picked["event_ms"][rows].astype(np.float64)
    event_ms[event_ms < 0] = np.nan
    lags = picked["lag_ms"][rows].astype(np.float64) if kind == "late" else last_ms - event_ms
    is_chosen = np.ones(rows.size, bool)
    if place is not None and kind == "late" and place.kind in ("destination", "checkpoint"):
        name = _arrival_at(place, graph)
        index = picked.checkpoints.index(name) if name in picked.checkpoints else None
        lags = np.full(rows.size, np.nan) if index is None else seen_ms[:, index] - event_ms
        is_chosen = lags > above_ms
    elif place is not None and graph is not None:
        is_chosen = np.array([_is_at(picked, row, kind, graph, place) for row in rows.tolist()], bool)
    order = np.argsort(-lags, kind="stable") if kind == "late" else np.arange(rows.size)
    emitters = picked.last_emitters()
    start_ms = window_start_s * 1_000
    return [
        _of_picked(
            picked,
            int(rows[row]),
            kind,
            window_start_s,
            event_ms=None if np.isnan(event_ms[row]) else start_ms + float(event_ms[row]),
            last_seen_ms=start_ms + float(last_ms[row]),
            lag_ms=None if np.isnan(lags[row]) else float(lags[row]),
            emitter=emitters[int(rows[row])],
        )
        for row in order.tolist()
        if is_chosen[row]
    ]


def _arrival_at(place: Place, graph: Graph | None) -> str:
    """Return the checkpoint at which messages arrive at a destination, or that a place is."""
    if place.kind != "destination":
        return place.name
    return f"{place.name}.out" if graph is None else graph.delivery_of(place.name)


def _of_missing(missing: MissingMessage, event_ms: float | None) -> NamedMessage:
    return NamedMessage(
        missing.window_start_s,
        missing.id_hash,
        missing.message_id,
        missing.kind,
        tuple(missing.places),
        event_ms,
        missing.last_checkpoint,
        missing.last_seen_ms,
        None if event_ms is None else missing.last_seen_ms - event_ms,
        emitter=missing.emitter,
        trace=missing.trace,
    )


def _of_picked(picked: PickedMessages, row: int, kind: PickedKind, window_start_s: int, **times: Any) -> NamedMessage:
    last = _last_checkpoint(picked, row)
    hop, link, reason = (int(picked[name][row]) for name in ("hop", "link", "reason"))
    hop_name = picked.hops[hop] if kind == "late" and hop >= 0 else None
    corrupted_at = Place("link", picked.links[link]).label if link >= 0 else None
    place = {"late": hop_name, "dead": node_label(node_of(last)), "corrupted": corrupted_at}[kind]
    return NamedMessage(
        window_start_s=window_start_s,
        id_hash=int(picked["ids"][row]),
        message_id=picked.names[row],
        kind=kind,
        places=() if place is None else (place,),
        last_checkpoint=last,
        hop=hop_name,
        hop_ms=float(picked["hop_ms"][row]) if hop_name is not None and picked["hop_ms"][row] >= 0 else None,
        reason=picked.reasons[reason] if reason >= 0 else None,
        **times,
    )


def _last_checkpoint(picked: PickedMessages, row: int) -> str:
    return picked.checkpoints[picked.masks[row].bit_length() - 1]


def _is_at(picked: PickedMessages, row: int, kind: PickedKind, graph: Graph, place: Place) -> bool:
    """Return whether a message is so at a place: held there, dead there, or corrupted on this link."""
    if kind == "corrupted":
        return picked.links[int(picked["link"][row])] == place.name
    if kind == "late":
        return picked.hops[int(picked["hop"][row])] == place.label
    if place.kind == "destination":
        return any(
            destination.is_dead(picked.masks[row])
            for destination in graph.destinations
            if destination.name == place.name
        )
    return place.name in (last := _last_checkpoint(picked, row), node_of(last))


def _event_times(window_start_s: int, picked: PickedMessages) -> Iterator[tuple[int, float]]:
    rows = picked.rows(MISSING)
    for id_hash, event_ms in zip(picked["ids"][rows].tolist(), picked["event_ms"][rows].tolist(), strict=True):
        if event_ms >= 0:
            yield id_hash, window_start_s * 1_000 + event_ms
