"""The set of a repair: the messages that closed windows say are lost at a place, each by its id.

A closing names up to 1,000 missing messages. Where there are more, the others are in the log, and what the closing
judged of them follows from those that it named: messages of one presence pattern, last seen between the same two cuts,
have one fate (`judging.facts.Pattern`). A message whose fate does not follow is counted, and left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, Row, select

from lagloss.wire.format import WINDOW_S
from lagloss_server.judging.arithmetic import missing_places
from lagloss_server.judging.facts import Pattern, WindowFacts
from lagloss_server.model.place import Place
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.matrix import Presence
from lagloss_server.queries.window_blocks import read_window
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store

LostKind = Literal["lost", "perhaps"]
_SAME_MOMENT_MS: Final = 1.0
"""Times of beacons are sums of 32-bit lags."""


@dataclass(frozen=True, slots=True)
class LostId:
    """A message that is lost at the place, for certain or perhaps; times in epoch ms. `message_id`: None if the name is
    unknown."""

    window_start_s: int
    id_hash: int
    message_id: str | None
    kind: LostKind
    last_seen_ms: float

    @property
    def key(self) -> tuple[int, int]:
        """The window and the id, which tell it from all others of a pipeline."""
        return self.window_start_s, self.id_hash


@dataclass(frozen=True, slots=True)
class WindowLoss:
    """What a closed window said of loss when the repair was planned."""

    start_s: int
    messages: int
    lost_min: int
    lost_max: int

    def document(self) -> list[int]:
        """Return it as JSON."""
        return [self.start_s, self.messages, self.lost_min, self.lost_max]


@dataclass(frozen=True, slots=True)
class LostSet:
    """The lost messages of some windows. `unnamed`: missing ones beside them whose fate is unknown one by one;
    `open_windows`: windows of the range without a result yet; `sample`: the lowest share of ids that was looked at."""

    messages: tuple[LostId, ...]
    windows: tuple[WindowLoss, ...]
    unnamed: int
    open_windows: int
    sample: float


@dataclass(frozen=True, slots=True)
class NamedFate:
    """What a closing judged of a message that it named: its pattern, when it was last seen, its kind, and where."""

    mask: int
    last_seen_ms: float
    kind: str
    places: tuple[str, ...]


def read_lost(
    store: Store, log: BeaconLog, pipeline: str, from_s: int, to_s: int, place: Place, *, with_perhaps: bool
) -> LostSet:
    """Return what is lost at a place in the windows with from <= start < to.

    Raises:
        NotEnoughData: a window has more missing messages than its closing named, and the log no longer holds it.
        KafkaException: such a window has to be read, and the broker does not answer.
    """
    kinds: tuple[LostKind, ...] = ("lost", "perhaps") if with_perhaps else ("lost",)
    messages: list[LostId] = []
    unnamed, listed = 0, store.windows(pipeline, from_s, to_s)
    closed = [window for window in listed if window.state != "open"]
    for start_s in (window.start_s for window in closed):
        with store.engine.connect() as connection:
            facts, rows = _read_closing(connection, pipeline, start_s)
        graph = store.graph_at(pipeline, start_s)
        messages += (message for row in rows if (message := _of_row(row, place.label, kinds)) is not None)
        patterns = [pattern for pattern in facts.patterns if missing_places(graph, pattern.mask)]
        if sum(pattern.count for pattern in patterns) > len(rows):
            fates = [NamedFate(int(row.pattern, 16), row.last_seen_ms, row.kind, tuple(row.places)) for row in rows]
            presence = Presence(read_window(store, log, pipeline, start_s))
            others, unknown = lost_in_log(
                presence, {row.id_hash % (1 << 64) for row in rows}, patterns, fates, place.label, kinds
            )
            messages += others
            unnamed += unknown
    return LostSet(
        tuple(sorted(messages, key=lambda message: message.key)),
        tuple(
            WindowLoss(window.start_s, window.messages, window.lost.min, window.lost.max)
            for window in closed
            if window.lost is not None
        ),
        unnamed,
        len(listed) - len(closed),
        min((window.sample for window in closed), default=1.0),
    )


def lost_in_log(
    presence: Presence,
    named: Collection[int],
    patterns: Sequence[Pattern],
    fates: Iterable[NamedFate],
    label: str,
    kinds: Collection[str],
) -> tuple[list[LostId], int]:
    """Return the messages in the log, without those `named`, that are lost at a place by the fates of others, and how
    many missing ones have a fate that does not follow."""
    judged = judge_patterns(patterns, fates)
    which, masks = presence.patterns
    _, missing = presence.missing_of
    is_missing = np.array([bool(places) for places in missing], bool)[which] if len(missing) else np.zeros(0, bool)
    rows = np.flatnonzero(is_missing & ~np.isin(presence.ids, np.fromiter(named, np.uint64, len(named))))
    seen_ms = last_seen_ms(presence)
    messages: list[LostId] = []
    unknown = 0
    for row, name in zip(rows.tolist(), presence.blocks.names(presence.ids[rows]), strict=True):
        id_hash = int(presence.ids[row])
        fate = _fate_of(judged, masks[which[row]], seen_ms[row])
        if fate is None:
            unknown += 1
        elif fate.kind in kinds and label in fate.places:
            message_id = None if name == f"{id_hash:016x}" else name
            kind = cast("LostKind", fate.kind)
            messages.append(LostId(presence.blocks.window_start_s, id_hash, message_id, kind, float(seen_ms[row])))
    return messages, unknown


def judge_patterns(patterns: Sequence[Pattern], fates: Iterable[NamedFate]) -> list[tuple[Pattern, NamedFate | None]]:
    """Return each pattern with the one fate that its named messages have; None if none of them is named."""
    by_mask: dict[int, list[NamedFate]] = {}
    for fate in fates:
        by_mask.setdefault(fate.mask, []).append(fate)
    judged: list[tuple[Pattern, NamedFate | None]] = []
    for pattern in patterns:
        inside = [fate for fate in by_mask.get(pattern.mask, ()) if _is_inside(pattern, fate.last_seen_ms)]
        alike = {(fate.kind, fate.places) for fate in inside}
        judged.append((pattern, inside[0] if len(alike) == 1 else None))
    return judged


def last_seen_ms(presence: Presence) -> npt.NDArray[np.float64]:
    """Return by row when each message was last seen (epoch ms): its newest beacon, live or replayed (rule 4)."""
    newest = np.full(presence.ids.size, -np.inf, np.float32)
    for name in presence.at:
        for block, rows in presence.blocks.beacons(name):
            np.maximum.at(newest, np.searchsorted(presence.ids, block.id_hash[rows]), block.lag_ms[rows])
    end_ms = float((presence.blocks.window_start_s + WINDOW_S) * 1_000)
    seen_ms: npt.NDArray[np.float64] = np.where(np.isfinite(presence.event_ms), presence.event_ms, end_ms) + newest
    return seen_ms


def _fate_of(judged: Sequence[tuple[Pattern, NamedFate | None]], mask: int, seen_ms: float) -> NamedFate | None:
    """Return the fate of a message; None if it is in no pattern whose fate is known, or in several."""
    fates = [fate for pattern, fate in judged if pattern.mask == mask and _is_inside(pattern, seen_ms)]
    return fates[0] if len(fates) == 1 else None


def _is_inside(pattern: Pattern, seen_ms: float) -> bool:
    first_ms, last_ms = pattern.seen_first_ms, pattern.seen_last_ms
    if first_ms is None or last_ms is None:
        return False
    return first_ms - _SAME_MOMENT_MS <= seen_ms <= last_ms + _SAME_MOMENT_MS


def _of_row(row: Row[Any], label: str, kinds: Collection[str]) -> LostId | None:
    if row.kind not in kinds or label not in row.places:
        return None
    return LostId(row.window_start, row.id_hash % (1 << 64), row.message_id, row.kind, row.last_seen_ms)


def _read_closing(connection: Connection, pipeline: str, start_s: int) -> tuple[WindowFacts, list[Row[Any]]]:
    """Return a closed window's facts, and its rows of missing messages."""
    window, missing = tables.table_of(tables.WindowRow).c, tables.table_of(tables.MissingMessageRow)
    is_window = window.pipeline == pipeline, window.window_start == start_s
    packed = connection.execute(select(window.facts).where(*is_window)).scalar_one_or_none()
    of_window = missing.c.pipeline == pipeline, missing.c.window_start == start_s
    rows = list(connection.execute(select(missing).where(*of_window)))
    return WindowFacts() if packed is None else WindowFacts.unpack(packed), rows
