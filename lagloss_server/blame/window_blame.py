"""Blame of windows: what PostgreSQL holds of their picked messages and of the processes that saw them.

Nothing is read from the log: a closing has picked the messages, and the reports have described the processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypedDict, get_args

from sqlalchemy import Connection, select

from lagloss.wire.format import SAMPLE_ALL
from lagloss_server.blame.causes import Blame, blame
from lagloss_server.blame.sentences import BlameDocument, document, text
from lagloss_server.blame.traits import LOST, EmitterFacts, Of, Population, SuspectWindow
from lagloss_server.judging.freshness import SILENT_AFTER_MS
from lagloss_server.judging.picked import CORRUPTED, DEAD, LATE, PickedMessages
from lagloss_server.model.definition import in_force
from lagloss_server.model.window import rfc3339
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store

MAX_WINDOWS: Final = 5
"""At most this many windows, the newest with picked messages, are analysed together."""
KINDS: Final[tuple[Of, ...]] = get_args(Of)
NOT_PICKED: Final = (
    "No message of this window was examined individually: the window is good, its tallies alone prove that "
    "nothing is missing, or the names of its messages have expired. `lagloss recompute` reads a window's blocks."
)


class WindowBlameDocument(TypedDict):
    """What the bad messages of a window have in common, by their kinds."""

    pipeline: str
    window_start: str
    blame: list[BlameDocument]
    text: str


@dataclass(frozen=True)
class WindowBlame:
    """What was found out about one kind of bad messages. `count`: how many there are in these windows, about, where a
    sample was looked at."""

    blame: Blame
    count: int

    @property
    def text(self) -> str:
        return text(self.blame, self.count)

    def document(self) -> BlameDocument:
        return document(self.blame, self.count)


def read_blame(
    store: Store, pipeline: str, starts_s: Iterable[int], kinds: Sequence[Of] = KINDS, now_ms: int | None = None
) -> list[WindowBlame]:
    """Return what the bad messages of some windows, together, have in common; of each kind that there is. For whom
    message ids are hidden, their beginnings are no trait.

    Raises:
        UnknownPipeline: with the names there are.
    """
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    versions = store.versions_of(pipeline)
    with store.engine.connect() as connection:
        picked = _read_picked(connection, pipeline, starts_s)
        fates = _read_fates(connection, pipeline, list(picked))
        facts = read_emitter_facts(
            connection, pipeline, {emitter for of_it in picked.values() for emitter in of_it.emitters}, now_ms
        )
    if not store.may_see_ids(pipeline):
        picked = {start: replace(messages, names=(None,) * len(messages.names)) for start, messages in picked.items()}
    graphs = {start: versions[in_force(versions, start)].definition.graph for start in picked}
    windows = [SuspectWindow(start, graphs[start], picked[start], fates.get(start, {})) for start in picked]
    counts = {kind: _count(kind, windows) for kind in kinds}
    return [
        WindowBlame(blame(Population.of_windows(kind, windows, facts)), counts[kind]) for kind in kinds if counts[kind]
    ]


def blame_document(pipeline: str, window_start_s: int, blames: Sequence[WindowBlame]) -> WindowBlameDocument:
    """Return one window's blame as the command line and the API have it."""
    return {
        "pipeline": pipeline,
        "window_start": rfc3339(window_start_s),
        "blame": [blame_.document() for blame_ in blames],
        "text": " ".join(blame_.text for blame_ in blames) or NOT_PICKED,
    }


def _read_picked(connection: Connection, pipeline: str, starts_s: Iterable[int]) -> dict[int, PickedMessages]:
    """Return the picked messages of the newest of these windows that have any, by their starts, oldest first."""
    row = tables.PickedMessagesRow
    rows = connection.execute(
        select(row.window_start, row.packed)
        .where(row.pipeline == pipeline, row.window_start.in_(sorted(starts_s)))
        .order_by(row.window_start.desc())
        .limit(MAX_WINDOWS)
    ).all()
    return {row.window_start: PickedMessages.unpack(row.packed) for row in reversed(rows)}


def _read_fates(
    connection: Connection, pipeline: str, starts_s: Sequence[int]
) -> dict[int, dict[int, tuple[str, Sequence[str]]]]:
    """Return what was judged of missing messages, by window and id."""
    row = tables.MissingMessageRow
    statement = select(row.window_start, row.id_hash, row.kind, row.places)
    fates: dict[int, dict[int, tuple[str, Sequence[str]]]] = {}
    for fate_row in connection.execute(statement.where(row.pipeline == pipeline, row.window_start.in_(starts_s))):
        fates.setdefault(fate_row.window_start, {})[fate_row.id_hash % (1 << 64)] = fate_row.kind, fate_row.places
    return fates


def read_emitter_facts(
    connection: Connection, pipeline: str, emitters: Iterable[bytes], now_ms: int
) -> dict[bytes, EmitterFacts]:
    """Return what the reports say of these emitters, of those that are still known."""
    row = tables.EmitterRow
    statement = select(tables.table_of(row)).where(row.pipeline == pipeline, row.emitter.in_(sorted(emitters)))
    return {row.emitter: _facts(row, now_ms) for row in connection.execute(statement)}


def _facts(row: Any, now_ms: int) -> EmitterFacts:
    is_silent = not row.closed and now_ms - row.appended_at > SILENT_AFTER_MS
    return EmitterFacts(
        host=row.host,
        started_at=row.started_at,
        ended_at=row.sent_at if row.closed else row.appended_at if is_silent else None,
        has_closed=row.closed,
        labels=row.labels,
        inputs=tuple(row.inputs),
    )


def _count(suffered: Of, windows: Sequence[SuspectWindow]) -> int:
    """Count the bad messages of a kind; of missing ones, by the share of those named that are lost."""
    kinds: Mapping[Of, tuple[int, str]] = {
        "lag": (LATE, "late"),
        "dead": (DEAD, "dead"),
        "corruption": (CORRUPTED, "corrupted"),
    }
    total = 0.0
    for window in windows:
        factor = SAMPLE_ALL / window.picked.sample
        if suffered != "loss":
            kind, name = kinds[suffered]
            total += factor * window.picked.totals.get(name, 0) if window.picked.rows(kind).size else 0
            continue
        lost = sum(kind in LOST for kind, _ in window.fates.values())
        share = lost / max(1, len(window.fates))
        total += factor * max(lost, share * window.picked.totals.get("missing", 0))
    return round(total)
