"""The newest messages that something is wrong with, by name: lost at once or afterwards, late, dead-lettered and
corrupted ones.

A closing keeps the names of a window's missing messages and samples of the others (`queries.named_messages`), only if
there are any: the newest such windows are looked at, however long ago they are, and no more than a bounded number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import BigInteger, Row, Text, select, true

from lagloss_server.incidents.lost_afterwards import CAUSES
from lagloss_server.incidents.lost_afterwards_store import read_newest_messages
from lagloss_server.judging.picked import PickedMessages
from lagloss_server.model.place import node_label
from lagloss_server.queries.named_messages import LOST_KINDS, MAX_MISSING, KeptMessages, NamedMessage
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import MissingMessage, Store

WINDOWS: Final = 20
"""Windows that are looked at: up to 1,000 missing messages each."""
LOST_AFTERWARDS: Final = "lost-afterwards"
KINDS: Final = (*LOST_KINDS, LOST_AFTERWARDS, "corrupted", "dead", "late")
"""Kinds of such messages; in a window, in this order."""
_OF_KIND: Final = 10
"""Messages of each kind that are listed of a window, unless the filters name the kind."""
_LISTED: Final = 200


@dataclass(frozen=True, slots=True)
class MessageFilters:
    """None: any. `kind`: one of `KINDS`; `place`: its label; `reason`: why it was dead-lettered."""

    kind: str | None = None
    place: str | None = None
    reason: str | None = None

    def match(self, message: NamedMessage, *but: str) -> bool:
        """Return whether a message matches all filters `but` these."""
        return (
            (self.kind in (None, message.kind) or "kind" in but)
            and (self.place is None or self.place in message.places or "place" in but)
            and (self.reason in (None, message.reason) or "reason" in but)
        )


@dataclass(frozen=True, slots=True)
class ProblemMessage:
    """A message of a pipeline; `further`: so many more of its kind are kept of its window, and not listed."""

    pipeline: str
    message: NamedMessage
    further: int = 0


@dataclass(frozen=True, slots=True)
class ProblemMessages:
    """Those of the newest windows that match, newest window first. `kinds`, `places`, `reasons`: how many match the
    other filters, by kind, place and reason. `from_s`, `to_s`: starts of the oldest and newest window that was looked
    at, None if there is none; `is_cut`: whether there are older ones; `older_s`: where a list of older messages
    goes on."""

    rows: Sequence[ProblemMessage]
    kinds: Mapping[str, int]
    places: Mapping[str, int]
    reasons: Mapping[str, int]
    from_s: int | None = None
    to_s: int | None = None
    is_cut: bool = False
    older_s: int | None = None
    hidden: Sequence[str] = field(default_factory=tuple)
    """Pipelines whose message ids the reader may not see."""


def read_problem_messages(
    store: Store, pipeline: str | None, filters: MessageFilters, before_s: int | None = None
) -> ProblemMessages:
    """Read the newest messages of a pipeline, by default of all whose message ids the reader may see; of windows that
    start before a time (epoch s).

    Raises:
        UnknownPipeline: there is none of this name.
        IdsHidden: the reader may not see message ids of this pipeline.
    """
    if pipeline is not None:
        store.demand(pipeline)
    names = store.names() if pipeline is None else [pipeline]
    hidden = [name for name in names if not store.may_see_ids(name)]
    if pipeline is not None and hidden:
        store.look_at_ids("ids.list", pipeline, "")
    shown = [name for name in names if name not in hidden]
    windows = _read_windows(store, shown, before_s)
    is_cut, windows = len(windows) > WINDOWS, windows[:WINDOWS]
    from_s = windows[-1].window_start if is_cut and filters.kind != LOST_AFTERWARDS else 0
    lost_afterwards = _read_lost_afterwards(store, shown, from_s, before_s)
    for name in sorted({window.pipeline for window in windows} | {name for name, _ in lost_afterwards}):
        store.look_at_ids("ids.list", name, "")
    missing = _read_missing(store, windows)
    messages = [
        (window.pipeline, message)
        for window in windows
        for message in _named(window, missing.get((window.pipeline, window.window_start), ()))
    ]
    messages += lost_afterwards
    messages.sort(key=lambda named: (-named[1].window_start_s, named[0], KINDS.index(named[1].kind)))
    rows = list(_listed(messages, filters))
    starts = [*(window.window_start for window in windows), *(message.window_start_s for _, message in lost_afterwards)]
    oldest_s = windows[-1].window_start if windows else None
    if len(rows) == _LISTED:
        oldest_s = rows[-1].message.window_start_s
    return ProblemMessages(
        rows,
        Counter(message.kind for _, message in messages if filters.match(message, "kind")),
        Counter(place for _, message in messages if filters.match(message, "place") for place in message.places),
        Counter(message.reason for _, message in messages if message.reason and filters.match(message, "reason")),
        min(starts, default=None),
        max(starts, default=None),
        is_cut,
        oldest_s if is_cut or len(rows) == _LISTED else None,
        hidden,
    )


def _read_windows(store: Store, names: Sequence[str], before_s: int | None) -> list[Row[Any]]:
    """Return the newest windows of which messages are kept, one more than are looked at. Of several pipelines by an
    index on the start alone, of one by the primary key."""
    row = tables.PickedMessagesRow
    earlier = () if before_s is None else (row.window_start < before_s,)
    query = (
        select(row.pipeline, row.window_start, row.packed)
        .where(tables.is_any(row.pipeline, names), *earlier)
        .order_by(row.window_start.desc(), row.pipeline)
        .limit(WINDOWS + 1)
    )
    with store.engine.connect() as connection:
        return list(connection.execute(query))


def _read_missing(store: Store, windows: Sequence[Row[Any]]) -> dict[tuple[str, int], list[MissingMessage]]:
    if not windows:
        return {}
    row = tables.table_of(tables.MissingMessageRow)
    listed = tables.rows_of(
        ((window.pipeline, window.window_start) for window in windows), name=Text(), start=BigInteger()
    )
    of_window = (
        select(row)
        .where(row.c.pipeline == listed.c.name, row.c.window_start == listed.c.start, row.c.kind.in_(LOST_KINDS))
        .limit(MAX_MISSING)
        .lateral("missing")
    )
    missing: dict[tuple[str, int], list[MissingMessage]] = {}
    with store.engine.connect() as connection:
        for line in connection.execute(select(of_window).select_from(listed.join(of_window, true()))):
            missing.setdefault((line.pipeline, line.window_start), []).append(MissingMessage.of(line))
    return missing


def _read_lost_afterwards(
    store: Store, names: Sequence[str], from_s: int, before_s: int | None
) -> list[tuple[str, NamedMessage]]:
    with store.engine.connect() as connection:
        lost = read_newest_messages(connection, names, from_s, before_s, _LISTED)
    return [
        (
            message.pipeline,
            NamedMessage(
                message.window_start_s,
                message.id_hash % (1 << 64),
                message.message_id,
                LOST_AFTERWARDS,
                (node_label(message.node),),
                message.event_ms,
                message.checkpoint,
                message.seen_ms,
                None,
                reason=CAUSES[message.cause],
            ),
        )
        for message in lost
    ]


def _named(window: Row[Any], missing: Sequence[MissingMessage]) -> list[NamedMessage]:
    """Return the messages of a window by kind, those of a kind that were seen last first, late ones worst first."""
    kept = KeptMessages(window.window_start, missing, PickedMessages.unpack(window.packed))
    messages = kept.named("all")
    return sorted(
        messages,
        key=lambda message: (
            KINDS.index(message.kind),
            -(message.lag_ms or 0.0) if message.kind == "late" else -message.last_seen_ms,
        ),
    )


def _listed(messages: Iterable[tuple[str, NamedMessage]], filters: MessageFilters) -> Iterable[ProblemMessage]:
    matching = [ProblemMessage(name, message) for name, message in messages if filters.match(message)]
    room, of_kind = _LISTED, _OF_KIND if filters.kind is None else _LISTED
    for _, group in groupby(matching, attrgetter("pipeline", "message.window_start_s", "message.kind")):
        rows = list(group)
        shown = rows[: min(room, of_kind)]
        room -= len(shown)
        for row in shown:
            is_last = row is shown[-1]
            yield ProblemMessage(row.pipeline, row.message, len(rows) - len(shown) if is_last else 0)
