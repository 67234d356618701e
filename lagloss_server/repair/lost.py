"""The set of a repair: the messages that closed windows say are lost at a place, each by its id.

A closing names up to 1,000 missing messages. Where there are more, the others are in the log, and what the closing
judged of them follows from those that it named: messages of one presence pattern, last seen between the same cuts, have
one fate (`judging.facts.Pattern`). A message whose fate does not follow is counted, and left out.
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
    """A message that is lost at the place, for certain or perhaps. `message_id`: None if the name is unknown;
    `seen_by_ms`: by when it was last seen (epoch ms)."""

    window_start_s: int
    id_hash: int
    message_id: str | None
    kind: LostKind
    seen_by_ms: float

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
    """What a closing judged of a message that it named: its pattern, between which moments it was last seen (epoch ms),
    its kind, and where."""

    mask: int
    seen_from_ms: float
    seen_by_ms: float
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
            fates = [
                NamedFate(int(row.pattern, 16), row.seen_from_ms, row.seen_by_ms, row.kind, tuple(row.places))
                for row in rows
            ]
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
    seen_from, seen_by = last_seen_between(presence)
    messages: list[LostId] = []
    unknown = 0
    for row, name in zip(rows.tolist(), presence.blocks.names(presence.ids[rows]), strict=True):
        id_hash = int(presence.ids[row])
        fate = _fate_of(judged, masks[which[row]], seen_from[row], seen_by[row])
        if fate is None:
            unknown += 1
        elif fate.kind in kinds and label in fate.places:
            message_id = None if name == f"{id_hash:016x}" else name
            kind = cast("LostKind", fate.kind)
            messages.append(LostId(presence.blocks.window_start_s, id_hash, message_id, kind, float(seen_by[row])))
    return messages, unknown


def judge_patterns(patterns: Sequence[Pattern], fates: Iterable[NamedFate]) -> list[tuple[Pattern, NamedFate | None]]:
    """Return each pattern with the one fate that its named messages have; None if none of them is named."""
    by_mask: dict[int, list[NamedFate]] = {}
    for fate in fates:
        by_mask.setdefault(fate.mask, []).append(fate)
    judged: list[tuple[Pattern, NamedFate | None]] = []
    for pattern in patterns:
        inside = [
            fate for fate in by_mask.get(pattern.mask, ()) if _is_inside(pattern, fate.seen_from_ms, fate.seen_by_ms)
        ]
        alike = {(fate.kind, fate.places) for fate in inside}
        judged.append((pattern, inside[0] if len(alike) == 1 else None))
    return judged


def last_seen_between(presence: Presence) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return by row between which moments each message was last seen, live or replayed (epoch ms, rule 4)."""
    seen_from, seen_by = np.full((2, presence.ids.size), -np.inf)
    start_ms = presence.blocks.window_start_s * 1_000.0
    is_known = np.isfinite(presence.event_ms)
    earliest, latest = (np.where(is_known, presence.event_ms, start_ms + late) for late in (0, WINDOW_S * 1_000))
    for name in presence.at:
        for block, rows in presence.blocks.beacons(name):
            at, lags = np.searchsorted(presence.ids, block.id_hash[rows]), block.lag_ms[rows]
            supplied_ms = block.supplied_at
            from_ms, by_ms = earliest[at] + lags, latest[at] + lags
            if supplied_ms is not None:
                from_ms, by_ms = np.minimum(from_ms, supplied_ms), np.full(at.size, float(supplied_ms))
            np.maximum.at(seen_from, at, from_ms)
            np.maximum.at(seen_by, at, by_ms)
    return seen_from, seen_by


def _fate_of(
    judged: Sequence[tuple[Pattern, NamedFate | None]], mask: int, from_ms: float, by_ms: float
) -> NamedFate | None:
    """Return the fate of a message; None if it may be in no pattern, or in several of different or unknown fates."""
    fates = [fate for pattern, fate in judged if pattern.mask == mask and _is_inside(pattern, from_ms, by_ms)]
    alike = {None if fate is None else (fate.kind, fate.places) for fate in fates}
    return fates[0] if len(alike) == 1 else None


def _is_inside(pattern: Pattern, from_ms: float, by_ms: float) -> bool:
    """Return whether a message that was last seen between these moments may be one of the pattern's."""
    return _is_between(from_ms, *pattern.seen_ms) and _is_between(by_ms, *pattern.seen_by_ms)


def _is_between(moment_ms: float, first_ms: float | None, last_ms: float | None) -> bool:
    if first_ms is None or last_ms is None:
        return False
    return first_ms - _SAME_MOMENT_MS <= moment_ms <= last_ms + _SAME_MOMENT_MS


def _of_row(row: Row[Any], label: str, kinds: Collection[str]) -> LostId | None:
    if row.kind not in kinds or label not in row.places:
        return None
    return LostId(row.window_start, row.id_hash % (1 << 64), row.message_id, row.kind, row.seen_by_ms)


def _read_closing(connection: Connection, pipeline: str, start_s: int) -> tuple[WindowFacts, list[Row[Any]]]:
    """Return a closed window's facts, and its rows of missing messages."""
    window, missing = tables.table_of(tables.WindowRow).c, tables.table_of(tables.MissingMessageRow)
    is_window = window.pipeline == pipeline, window.window_start == start_s
    packed = connection.execute(select(window.facts).where(*is_window)).scalar_one_or_none()
    of_window = missing.c.pipeline == pipeline, missing.c.window_start == start_s
    rows = list(connection.execute(select(missing).where(*of_window)))
    return WindowFacts() if packed is None else WindowFacts.unpack(packed), rows
