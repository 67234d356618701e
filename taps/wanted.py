"""Taps that definitions want, each with its id as an emitter and its first window. Pure."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lagloss.wire.format import WINDOW_S
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.model.tables import AnyTap

_NAMESPACE: Final = uuid.UUID("6f1e6f0e-0c0a-5d0b-9a0e-1a9105500a9d")
WINDOW_MS: Final = WINDOW_S * 1_000


@dataclass(frozen=True, slots=True)
class RunningTap:
    """A tap at work. `emitter`: its id; `since_ms`: start of its first window (epoch ms)."""

    tap: AnyTap
    emitter: bytes
    since_ms: int


@dataclass(frozen=True, slots=True)
class PipelineTaps:
    """The taps of a pipeline's newest version, each with the start of its first window (epoch ms)."""

    version: int
    since_ms: Mapping[AnyTap, int]

    def running(self) -> Iterator[RunningTap]:
        for tap, since_ms in self.since_ms.items():
            yield RunningTap(tap, _emitter(tap, since_ms), since_ms)


def taps_after(before: PipelineTaps | None, stored: Iterable[StoredPipeline]) -> PipelineTaps:
    """Return the taps after later versions, oldest first. A tap that the version before had goes on; where that version
    is missing, because it is unreadable, all begin anew."""
    taps = before or PipelineTaps(0, {})
    for version in stored:
        since_ms = taps.since_ms if version.version == taps.version + 1 else {}
        first_ms = first_window_ms(version)
        wanted: tuple[AnyTap, ...] = (*version.definition.taps, *version.definition.table_taps)
        taps = PipelineTaps(version.version, {tap: since_ms.get(tap, first_ms) for tap in wanted})
    return taps


def by_emitter(pipelines: Iterable[PipelineTaps]) -> dict[bytes, RunningTap]:
    """Return the taps of these pipelines by their ids."""
    return {running.emitter: running for taps in pipelines for running in taps.running()}


def first_window_ms(version: StoredPipeline) -> int:
    """Return the start (epoch ms) of the first window wholly after a version was applied, less its lookback."""
    return -(-(version.applied_at_ms - version.definition.spec.lookback) // WINDOW_MS) * WINDOW_MS


def _emitter(tap: AnyTap, since_ms: int) -> bytes:
    """Return the id of a tap: the same in every process, another one for a tap that is wanted anew."""
    return uuid.uuid5(_NAMESPACE, json.dumps([tap.document(), since_ms], sort_keys=True)).bytes
