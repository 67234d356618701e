"""One message of a pipeline, found by its id: what is stored of it, and its trail in the log."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NotRequired, TypedDict

from sqlalchemy import select

from dashboard.queries.message_timeline import StayDocument, stays
from dashboard.queries.window_cache import OpenLog
from lagloss.errors import KafkaUnreachable
from lagloss.wire.format import SAMPLE_ALL, WINDOW_S, signed64
from lagloss.wire.traces import TraceContext
from lagloss_server.base.errors import NotConfigured, NotEnoughData
from lagloss_server.base.trace_links import NO_LINKS, TraceDocument, TraceLinks
from lagloss_server.incidents.lost_afterwards import LostAfterwardsMessage, LostAfterwardsMessageDocument
from lagloss_server.incidents.lost_afterwards_store import read_lost_of_ids
from lagloss_server.judging.arithmetic import missing_places
from lagloss_server.model.graph import Graph
from lagloss_server.model.message_ids import hashes_of
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.message_trace import (
    LookedThrough,
    Search,
    SearchLimit,
    Trail,
    TrailDocument,
    read_trail,
    search,
)
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import MissingMessage, Store


class MissingDocument(TraceDocument):
    """A missing message as a closing judged it: see `MissingMessage`."""

    id_hash: str
    message_id: str | None
    kind: str
    places: list[str]
    last_checkpoint: str
    emitter: str | None
    window_start: str
    last_seen: str


class MessageDocument(TypedDict):
    """What is stored of a message, and its trail; null if none was seen. `lost_afterwards`: rows of it that were in a
    tapped table and are not any more. `looked_through`, `oldest` and `cut`: see
    `SearchDocument`; left out if the log could not be read, for the reason in `trouble`. `stays`: where there is a
    trail."""

    pipeline: str
    id: str
    missing: list[MissingDocument]
    missing_at: list[str]
    sampled_out: bool
    trouble: str | None
    trail: TrailDocument | None
    lost_afterwards: list[LostAfterwardsMessageDocument]
    looked_through: NotRequired[LookedThrough]
    oldest: NotRequired[str | None]
    cut: NotRequired[bool]
    stays: NotRequired[list[StayDocument]]


@dataclass(frozen=True, slots=True)
class Where:
    """Where a message is looked for (epoch s): nearest to `around_s` first (None: newest first), and only in windows
    that start before `before_s` and not before `after_s`."""

    around_s: float | None = None
    before_s: float | None = None
    after_s: float | None = None

    @property
    def goes_on(self) -> bool:
        """Whether it begins where an earlier search ended."""
        return self.before_s is not None or self.after_s is not None


@dataclass(frozen=True, slots=True)
class MessageRead:
    """Findings about a message. `known`: nearest first to the time that was asked for, else newest first. `search`
    None: the log could not be read, and `trouble` says why. `graph`: of the version in force in the trail's window.
    `lost_afterwards`: statements that a row of it is gone."""

    pipeline: str
    asked: str
    where: Where
    known: tuple[MissingMessage, ...]
    search: Search | None
    trouble: str | None
    graph: Graph | None
    is_sampled_out: bool
    lost_afterwards: tuple[LostAfterwardsMessage, ...] = ()

    @property
    def trail(self) -> Trail | None:
        return self.search.trail if self.search is not None else None

    @property
    def verdict(self) -> MissingMessage | None:
        """Its verdict by the closing of the trail's window, or of the first of the `known`."""
        if self.trail is None:
            return self.known[0] if self.known else None
        return next((message for message in self.known if message.window_start_s == self.trail.window_start_s), None)

    @property
    def missing_at(self) -> tuple[str, ...]:
        """Return the places that the trail says it is missing at; without a trail, those of its verdict."""
        if self.trail is None or self.graph is None:
            return tuple(self.verdict.places) if self.verdict is not None else ()
        mask = self.graph.mask(beacon.checkpoint for beacon in self.trail.beacons)
        return tuple(place.label for place in missing_places(self.graph, mask))

    @property
    def trace(self) -> TraceContext | None:
        """The trace in which it came in: what the log says, else what its verdict kept."""
        trace = None if self.verdict is None else self.verdict.trace
        return trace if self.trail is None or self.trail.trace is None else self.trail.trace

    def document(self, links: TraceLinks = NO_LINKS) -> MessageDocument:
        document: MessageDocument = {
            "pipeline": self.pipeline,
            "id": self.asked,
            "missing": [_document(message, links) for message in self.known],
            "missing_at": list(self.missing_at),
            "sampled_out": self.is_sampled_out,
            "trouble": self.trouble,
            "trail": None,
            "lost_afterwards": [message.document() for message in self.lost_afterwards],
        }
        if self.search is not None:
            document = {**document, **self.search.document(links)}
        if self.trail is not None and self.graph is not None:
            document["stays"] = [stay.document() for stay in stays(self.graph, self.trail.beacons)]
        return document


def read_message(
    store: Store,
    open_log: OpenLog,
    pipeline: str,
    id_text: str,
    where: Where,
    limit: SearchLimit | None = None,
) -> MessageRead:
    """Find a message by its id, or by the hash of it in 16 hex digits.

    First among the messages that closings named as missing: those have its window. Else in the log; there, too, where
    a time to look around is asked for, and it was not missing then: an id may be used again.

    Raises:
        UnknownPipeline: there is none of this name.
        IdsHidden: whoever asks may not see its message ids.
    """
    sample = store.pipeline(pipeline).definition.sample
    ids = hashes_of(id_text)
    store.look_at_ids("ids.search", pipeline, f"{ids[-1]:016x}")
    missing = _known_missing(store, pipeline, ids, where.around_s)
    with store.engine.connect() as connection:
        lost_afterwards = read_lost_of_ids(connection, pipeline, ids)
    result, trouble = None, None
    try:
        with open_log() as log:
            if missing and _names_window(missing[0], where):
                start_s = missing[0].window_start_s
                trail = read_trail(store, log, pipeline, start_s, missing[0].id_hash)
                result = Search(trail, start_s, start_s + WINDOW_S, None)
            else:
                result = search(store, log, pipeline, ids, **asdict(where), limit=limit)
    except (KafkaUnreachable, NotConfigured, NotEnoughData) as error:
        trouble = str(error)
    trail = result.trail if result is not None else None
    return MessageRead(
        pipeline=pipeline,
        asked=id_text,
        where=where,
        known=missing,
        search=result,
        trouble=trouble,
        graph=None if trail is None else store.graph_at(pipeline, trail.window_start_s),
        is_sampled_out=all(id_hash % SAMPLE_ALL >= sample for id_hash in ids),
        lost_afterwards=tuple(lost_afterwards),
    )


def _document(message: MissingMessage, links: TraceLinks) -> MissingDocument:
    return {
        "id_hash": f"{message.id_hash:016x}",
        "message_id": message.message_id,
        "kind": message.kind,
        "places": list(message.places),
        "last_checkpoint": message.last_checkpoint,
        "emitter": None if message.emitter is None else message.emitter.hex(),
        "window_start": rfc3339(message.window_start_s),
        "last_seen": rfc3339(round(message.last_seen_ms) / 1000),
        **links.document(message.trace, message.window_start_s),
    }


def _names_window(message: MissingMessage, where: Where) -> bool:
    if where.goes_on:
        return False
    return where.around_s is None or message.window_start_s <= where.around_s < message.window_start_s + WINDOW_S


def _known_missing(store: Store, pipeline: str, ids: list[int], around_s: float | None) -> tuple[MissingMessage, ...]:
    missing = tables.table_of(tables.MissingMessageRow)
    signed = [signed64(id_hash) for id_hash in ids]
    with store.engine.connect() as connection:
        rows = connection.execute(
            select(missing)
            .where(missing.c.pipeline == pipeline, missing.c.id_hash.in_(signed))
            .order_by(missing.c.window_start.desc())
        ).all()
    messages = [MissingMessage.of(row) for row in rows]
    if around_s is None:
        return tuple(messages)
    return tuple(sorted(messages, key=lambda message: abs(message.window_start_s + WINDOW_S // 2 - around_s)))
