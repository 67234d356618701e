"""Messages that are lost afterwards, as incidents, pages and reports show them: their rows were in a tapped table, and
are not any more. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypedDict

from lagloss.wire.format import WINDOW_S, share_of
from lagloss_server.base import format as fmt
from lagloss_server.base.times import moment
from lagloss_server.model.message_ids import unescape_id
from lagloss_server.model.time_range import FromTo
from lagloss_server.model.window import rfc3339

CAUSES: Final = {
    "deleted": "deleted",
    "rewritten": "gone since the table was truncated or rewritten",
    "recreated": "gone since the table was created again",
}
"""What became of the rows, by `cause`."""


class LostMinuteDocument(TypedDict):
    """A minute of event time at a checkpoint: see `LostMinute`. `share`: of the minute's rows, those that were
    compared."""

    window_start: str
    node: str
    checkpoint: str
    table: str
    lost: int
    accepted: int
    accepted_at: str | None
    accepted_by: str | None
    accepted_why: str | None
    compared: int
    share: float
    cause: str
    missed_at: str
    compared_until: str


class LostAtNodeDocument(FromTo):
    """Messages of a node over some minutes, from the first to the last with any: see `LostAtNode`."""

    node: str
    tables: list[str]
    lost: int
    accepted: int
    share: float
    causes: list[str]
    text: str


class LostAfterwardsMessageDocument(TypedDict):
    """A message: see `LostAfterwardsMessage`."""

    message_id: str
    id_hash: str
    window_start: str
    event_time: str
    table: str
    cursor: int
    last_seen: str
    missed_at: str
    cause: str


class LostAfterwardsDocument(TypedDict):
    """Messages of a range that are lost afterwards: their number, those that someone accepted, the minutes, and the
    names of the newest; null if the caller is not allowed to see message ids."""

    pipeline: str
    lost: int
    accepted: int
    minutes: list[LostMinuteDocument]
    messages: list[LostAfterwardsMessageDocument] | None


@dataclass(frozen=True, slots=True)
class LostMinute:
    """Messages of a minute whose rows a table has no more.

    Attributes:
        source: the table, as people read it.
        lost: without those whose row is there again.
        accepted: of them, those that someone has accepted as deleted on purpose.
        compared, sample: rows of the minute that are compared; ids whose hash modulo 2^32 is below it are.
        cause: of the newest: a key of `CAUSES`.
        missed_ms: the first look that missed the newest of them (epoch ms).
        until_ms: the minute is compared up to then (epoch ms).
    """

    window_start_s: int
    node: str
    checkpoint: str
    source: str
    lost: int
    accepted: int
    accepted_at: datetime | None
    accepted_by: str | None
    accepted_why: str | None
    compared: int
    sample: int
    cause: str
    missed_ms: int
    until_ms: int

    @property
    def outstanding(self) -> int:
        """Messages that no one has accepted."""
        return self.lost - self.accepted

    def document(self) -> LostMinuteDocument:
        return {
            "window_start": rfc3339(self.window_start_s),
            "node": self.node,
            "checkpoint": self.checkpoint,
            "table": self.source,
            "lost": self.lost,
            "accepted": self.accepted,
            "accepted_at": moment(self.accepted_at),
            "accepted_by": self.accepted_by,
            "accepted_why": self.accepted_why,
            "compared": self.compared,
            "share": share_of(self.sample),
            "cause": self.cause,
            "missed_at": rfc3339(self.missed_ms / 1_000),
            "compared_until": rfc3339(self.until_ms / 1_000),
        }


@dataclass(frozen=True, slots=True)
class LostAfterwardsMessage:
    """A message whose row a table has no more. `cursor`: of the row, when it was seen last. Times in epoch ms."""

    pipeline: str
    message_id: str
    id_hash: int
    window_start_s: int
    node: str
    checkpoint: str
    event_ms: int
    cursor: int
    seen_ms: int
    missed_ms: int
    cause: str
    source: str

    def document(self) -> LostAfterwardsMessageDocument:
        return {
            "message_id": unescape_id(self.message_id),
            "id_hash": f"{self.id_hash:016x}",
            "window_start": rfc3339(self.window_start_s),
            "event_time": rfc3339(self.event_ms / 1_000),
            "table": self.source,
            "cursor": self.cursor,
            "last_seen": rfc3339(self.seen_ms / 1_000),
            "missed_at": rfc3339(self.missed_ms / 1_000),
            "cause": self.cause,
        }


@dataclass(frozen=True, slots=True)
class LostAtNode:
    """Messages of a node that are lost afterwards, over some minutes: their number, and that of the accepted ones."""

    node: str
    lost: int
    accepted: int
    minutes: tuple[LostMinute, ...]

    @property
    def outstanding(self) -> int:
        """Messages that no one has accepted."""
        return self.lost - self.accepted

    @property
    def words(self) -> str:
        """`12 messages lost afterwards at warehouse: their rows in table public.orders of shop are deleted, minutes
        2026-11-21 10:02 to 2026-11-21 10:05 UTC`."""
        sources, causes = " and ".join(self.sources), " or ".join(CAUSES[cause] for cause in self.causes)
        first, last = (fmt.clock(start_s, date=True) for start_s in (self.from_s, self.to_s - WINDOW_S))
        times = f"minute {first}" if first == last else f"minutes {first} to {last}"
        lost = f"{fmt.counted(self.outstanding or self.lost, 'message')} lost afterwards at {self.node}"
        share = "" if self.share == 1 else f" (of a sample: {fmt.percent(self.share)} of the rows)"
        return f"{lost}{share}: their rows in {sources} are {causes}, {times} UTC"

    @property
    def sources(self) -> list[str]:
        """Tables, as people read them."""
        return [*dict.fromkeys(minute.source for minute in self.minutes)]

    @property
    def causes(self) -> list[str]:
        """Keys of `CAUSES`."""
        return [*dict.fromkeys(minute.cause for minute in self.minutes)]

    @property
    def share(self) -> float:
        """Share of the rows that was compared, in the minute with the smallest."""
        return share_of(min(minute.sample for minute in self.minutes))

    @property
    def from_s(self) -> int:
        return min(minute.window_start_s for minute in self.minutes)

    @property
    def to_s(self) -> int:
        return max(minute.window_start_s for minute in self.minutes) + WINDOW_S

    def document(self) -> LostAtNodeDocument:
        return {
            "node": self.node,
            "from": rfc3339(self.from_s),
            "to": rfc3339(self.to_s),
            "tables": self.sources,
            "lost": self.lost,
            "accepted": self.accepted,
            "share": self.share,
            "causes": self.causes,
            "text": self.words,
        }


def by_node(minutes: Iterable[LostMinute]) -> list[LostAtNode]:
    """Return what these minutes come to for each node, the one with the most first."""
    minutes_by_node: dict[str, list[LostMinute]] = {}
    for minute in minutes:
        minutes_by_node.setdefault(minute.node, []).append(minute)
    nodes = [
        LostAtNode(node, sum(minute.lost for minute in own), sum(minute.accepted for minute in own), tuple(own))
        for node, own in minutes_by_node.items()
    ]
    return sorted(nodes, key=lambda node: (-node.lost, node.node))


def lost_document(
    pipeline: str, minutes: Sequence[LostMinute], messages: Sequence[LostAfterwardsMessage] | None
) -> LostAfterwardsDocument:
    """Return what is lost afterwards as JSON; `messages` None: the caller is not allowed to see message ids."""
    return {
        "pipeline": pipeline,
        "lost": sum(minute.lost for minute in minutes),
        "accepted": sum(minute.accepted for minute in minutes),
        "minutes": [minute.document() for minute in minutes],
        "messages": None if messages is None else [message.document() for message in messages],
    }
