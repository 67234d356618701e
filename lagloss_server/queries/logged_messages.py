"""Messages of a window that something is wrong with, as the log has them: all of them, however many there are.

What became of a missing message is not in the log but in the window's result, which names up to 1,000 of them. Others
of the same presence pattern have the same kind where those named have only one, else they are `missing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from lagloss.wire.format import WINDOW_S
from lagloss_server.judging.arithmetic import Fate, good_fate
from lagloss_server.model.graph import node_of
from lagloss_server.model.place import node_label
from lagloss_server.queries.matrix import Presence
from lagloss_server.queries.named_messages import LOST_KINDS, KeptMessages, NamedMessage, What

_SLICE: Final = 1_000
_Rows = npt.NDArray[np.intp]
_Bools = npt.NDArray[np.bool_]
Kind = tuple[str, tuple[str, ...]]
"""A missing message's kind, and where it is missing."""


def logged_messages(presence: Presence, kept_messages: KeptMessages, what: What) -> Iterator[NamedMessage]:
    """Yield the messages that are asked for: missing ones by event time, then dead ones, late ones (worst first), and
    the corrupted ones that the closing kept."""
    return LoggedMessages(presence, kept_messages).named(what)


@dataclass(frozen=True)
class LoggedMessages:
    """The messages of a window's blocks with what its closing kept."""

    presence: Presence
    kept: KeptMessages

    def named(self, what: What) -> Iterator[NamedMessage]:
        """Yield messages as `logged_messages` does, each once."""
        missing, dead, late = self._missing, self._dead, self.presence.lateness_ms > 0
        if what in ("lost", "all"):
            of_kind = self._described(np.flatnonzero(missing), "missing")
            yield from (message for message in of_kind if what == "all" or message.kind in (*LOST_KINDS, "missing"))
        if what in ("dead", "all"):
            yield from self._described(np.flatnonzero(dead), "dead")
        if what in ("late", "all"):
            rows = np.flatnonzero(late & ~(missing | dead)) if what == "all" else np.flatnonzero(late)
            yield from self._described(rows[np.argsort(-self.presence.lateness_ms[rows], kind="stable")], "late")
        if what == "all":
            named = self.presence.ids[missing | dead | late]
            corrupted = [message for message in self.kept.named("all") if message.kind == "corrupted"]
            yield from (message for message in corrupted if np.uint64(message.id_hash) not in named)

    @property
    def _missing(self) -> _Bools:
        which, places = self.presence.missing_of
        return np.array([bool(place) for place in places], bool)[which]

    @property
    def _dead(self) -> _Bools:
        graph, (which, masks) = self.presence.graph, self.presence.patterns
        is_dead = [bool(mask & graph.dead_mask) and good_fate(graph, mask) is Fate.DEAD for mask in masks]
        return np.array(is_dead, bool)[which] & ~self._missing

    def _described(self, rows: _Rows, kind: str) -> Iterator[NamedMessage]:
        if kind == "missing":
            rows = rows[np.argsort(self.presence.event_ms[rows], kind="stable")]
        for index in range(0, rows.size, _SLICE):
            yield from self._slice(rows[index : index + _SLICE], kind)

    def _slice(self, rows: _Rows, kind: str) -> Iterator[NamedMessage]:
        presence, (which, masks) = self.presence, self.presence.patterns
        lags = np.stack([least[rows] for least in presence.lags_ms.values()])
        last_lags = np.where(np.isfinite(lags), lags, -np.inf).max(axis=0)
        ends = (presence.blocks.window_start_s + WINDOW_S) * 1_000
        events_ms = presence.event_ms[rows]
        since_ms = np.where(np.isfinite(events_ms), events_ms, ends)
        emitters, codes = self._last_emitters
        for index, message in enumerate(presence.messages(rows)):
            row, code = int(rows[index]), int(codes[rows[index]])
            last = presence.graph.checkpoints[masks[which[row]].bit_length() - 1]
            own_kind, places = self._fate(row, message.id_hash, message.missing_at) if kind == "missing" else (kind, ())
            late = message.late if kind == "late" else None
            if kind == "dead":
                places = (node_label(node_of(last)),)
            elif late is not None and late.hop is not None:
                places = (late.hop,)
            lag_ms = float(last_lags[index]) if message.event_time_ms is not None else None
            is_named = message.message_id != f"{message.id_hash:016x}"
            yield NamedMessage(
                window_start_s=presence.blocks.window_start_s,
                id_hash=message.id_hash,
                message_id=message.message_id if is_named else None,
                kind=own_kind,
                places=places,
                event_ms=message.event_time_ms,
                last_checkpoint=last,
                last_seen_ms=float(since_ms[index] + last_lags[index]),
                lag_ms=lag_ms if late is None else late.lag_ms,
                hop=None if late is None else late.hop,
                hop_ms=None if late is None else late.hop_ms,
                reason=self._reasons.get(row),
                emitter=emitters[code] if code >= 0 else None,
                host=self.kept.hosts.get(emitters[code]) if code >= 0 else None,
                trace=message.trace,
            )

    def _fate(self, row: int, id_hash: int, missing_at: tuple[str, ...]) -> Kind:
        kind = self._kept_kinds.get(id_hash)
        if kind is not None:
            return kind
        of_pattern = self._kinds_of_patterns.get(int(self.presence.patterns[0][row]), frozenset())
        return next(iter(of_pattern)) if len(of_pattern) == 1 else ("missing", missing_at)

    @cached_property
    def _kept_kinds(self) -> Mapping[int, Kind]:
        return {message.id_hash: (message.kind, tuple(message.places)) for message in self.kept.missing}

    @cached_property
    def _kinds_of_patterns(self) -> Mapping[int, frozenset[Kind]]:
        """The kinds that the closing named, by the number of the pattern."""
        ids, kinds_by_id = self.presence.ids, dict[int, set[Kind]]()
        for id_hash, kind in self._kept_kinds.items():
            row = int(np.searchsorted(ids, np.uint64(id_hash)))
            if row < ids.size and int(ids[row]) == id_hash:
                kinds_by_id.setdefault(int(self.presence.patterns[0][row]), set()).add(kind)
        return {pattern: frozenset(kinds) for pattern, kinds in kinds_by_id.items()}

    @cached_property
    def _last_emitters(self) -> tuple[list[bytes], npt.NDArray[np.int32]]:
        """The emitters, and by row the number of the one that saw it at the last checkpoint it reached, of live beacons
        before replayed ones."""
        numbers: dict[bytes, int] = {}
        codes = np.full(self.presence.ids.size, -1, np.int32)
        for name in self.presence.at:
            for is_live in (False, True):
                for block, taken in self.presence.blocks.beacons(name):
                    if (block.replay is None) == is_live:
                        rows = np.searchsorted(self.presence.ids, block.id_hash[taken])
                        codes[rows] = numbers.setdefault(block.emitter, len(numbers))
        return list(numbers), codes

    @cached_property
    def _reasons(self) -> Mapping[int, str]:
        """Why messages died, by row."""
        reasons: dict[int, str] = {}
        for name in self.presence.graph.names(self.presence.graph.dead_mask):
            for block, taken in self.presence.blocks.beacons(name):
                if block.reason is not None:
                    rows = np.searchsorted(self.presence.ids, block.id_hash[taken]).tolist()
                    reasons.update(dict.fromkeys(rows, block.reason))
        return reasons
