"""Taps that definitions want or wanted, each with its id as an emitter and its windows. Pure."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from lagloss.wire.format import RETENTION_MS, WINDOW_S
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.model.tables import AnyTap, TableTap
from lagloss_server.model.taps import Tap

_NAMESPACE: Final = uuid.UUID("6f1e6f0e-0c0a-5d0b-9a0e-1a9105500a9d")
WINDOW_MS: Final = WINDOW_S * 1_000
LINGER_MS: Final = 3_600_000
"""How long a tap that a later version replaces goes on with the windows before that version: messages are late."""


@dataclass(frozen=True, slots=True)
class RunningTap:
    """A tap at work, which makes beacons of the windows that start in [`since_ms`, `until_ms`) (epoch ms).

    `emitter`: its id. `until_ms`: None while the newest version wants it. `is_moved`: taps take its node in since it
    was replaced, and none of them reads its topic. `is_deleted`: its pipeline is, or what wanted it. `after`: the
    emitters of those that it and others have replaced.
    """

    tap: AnyTap
    emitter: bytes
    since_ms: int
    until_ms: int | None = None
    is_moved: bool = False
    is_deleted: bool = False
    after: frozenset[bytes] = frozenset()

    def may_wait(self, now_ms: int) -> bool:
        """Return whether it does not begin before the taps that it replaces have said that they ended."""
        return now_ms < self.since_ms + LINGER_MS + WINDOW_MS

    def is_wanted(self, now_ms: int) -> bool:
        return self.until_ms is None or now_ms < self.until_ms + LINGER_MS


@dataclass(frozen=True, slots=True)
class PipelineTaps:
    """The taps of a pipeline's newest version, each with the start of its first window (epoch ms), and those that it or
    a version in the week before replaced."""

    version: int = 0
    since_ms: Mapping[AnyTap, int] = field(default_factory=dict)
    replaced: tuple[RunningTap, ...] = ()

    def running(self) -> Iterator[RunningTap]:
        for tap, since_ms in self.since_ms.items():
            after = frozenset(replaced.emitter for replaced in self.replaced if replaced.tap.node == tap.node)
            yield RunningTap(tap, _emitter(tap, since_ms), since_ms, after=after)


def taps_after(before: PipelineTaps | None, stored: Iterable[StoredPipeline]) -> PipelineTaps:
    """Return the taps after later versions, oldest first. A tap that the version before had goes on; where that version
    is missing, because it is unreadable, all begin anew."""
    taps = before or PipelineTaps()
    for version in stored:
        since_ms = taps.since_ms if version.version == taps.version + 1 else {}
        # windows before a later version are those of the taps before it
        first_ms = first_window_ms(version, version.definition.spec.lookback if taps.version == 0 else 0)
        wanted = version.definition.all_taps
        ended = {tap: at_ms for tap, at_ms in taps.since_ms.items() if tap not in wanted or tap not in since_ms}
        replaced = (
            *(
                replace(tap, is_moved=tap.is_moved and _is_moved(tap.tap, wanted))
                for tap in taps.replaced
                if (tap.until_ms or 0) > version.applied_at_ms - RETENTION_MS
            ),
            *(
                RunningTap(tap, _emitter(tap, at_ms), at_ms, first_ms, _is_moved(tap, wanted))
                for tap, at_ms in ended.items()
                if at_ms < first_ms
            ),
        )
        taps = PipelineTaps(version.version, {tap: since_ms.get(tap, first_ms) for tap in wanted}, replaced)
    return taps


def _is_moved(tap: AnyTap, wanted: Iterable[AnyTap]) -> bool:
    """Return whether taps now stand where this one took its node's messages in, and none of them reads its topic."""
    topics = {None if isinstance(other, TableTap) else other.topic for other in wanted if _takes_in(other, tap.node)}
    return isinstance(tap, Tap) and _takes_in(tap, tap.node) and bool(topics) and tap.topic not in topics


def _takes_in(tap: AnyTap, node: str) -> bool:
    return tap.node == node and "in" in tap.places


def by_emitter(pipelines: Iterable[PipelineTaps]) -> dict[bytes, RunningTap]:
    """Return the taps of these pipelines by their ids, those that were replaced among them."""
    return {tap.emitter: tap for taps in pipelines for tap in (*taps.replaced, *taps.running())}


def first_window_ms(version: StoredPipeline, lookback_ms: int = 0) -> int:
    """Return the start (epoch ms) of the first window wholly after a version was applied, less `lookback_ms`."""
    return -(-(version.applied_at_ms - lookback_ms) // WINDOW_MS) * WINDOW_MS


def _emitter(tap: AnyTap, since_ms: int) -> bytes:
    """Return the id of a tap: the same in every process, another one for a tap that is wanted anew."""
    return uuid.uuid5(_NAMESPACE, json.dumps([tap.document(), since_ms], sort_keys=True)).bytes
