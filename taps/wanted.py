"""Taps that definitions want, each with its id as an emitter and its first window. Pure."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from lagloss.wire.format import WINDOW_S
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.model.taps import Tap

_NAMESPACE: Final = uuid.UUID("6f1e6f0e-0c0a-5d0b-9a0e-1a9105500a9d")
WINDOW_MS: Final = WINDOW_S * 1_000


@dataclass(frozen=True, slots=True)
class RunningTap:
    """A tap at work. `emitter`: its id; `since_ms`: start of its first window (epoch ms)."""

    tap: Tap
    emitter: bytes
    since_ms: int


def wanted_taps(stored: Iterable[StoredPipeline]) -> dict[bytes, RunningTap]:
    """Return the taps of the newest version of each pipeline, by emitter.

    Args:
        stored: all versions of the pipelines, by name and version.
    """
    found = {}
    for _, versions in groupby(stored, key=lambda version: version.name):
        for running in _of_pipeline(list(versions)):
            found[running.emitter] = running
    return found


def _of_pipeline(versions: Sequence[StoredPipeline]) -> Iterable[RunningTap]:
    history = [set(version.definition.taps) for version in versions]
    for tap in versions[-1].definition.taps:
        began = len(versions) - 1
        while began and tap in history[began - 1]:
            began -= 1
        since_ms = first_window_ms(versions[began])
        yield RunningTap(tap, _emitter(tap, since_ms), since_ms)


def first_window_ms(version: StoredPipeline) -> int:
    """Return the start (epoch ms) of the first window wholly after a version was applied, less its lookback."""
    return -(-(version.applied_at_ms - version.definition.spec.lookback) // WINDOW_MS) * WINDOW_MS


def _emitter(tap: Tap, since_ms: int) -> bytes:
    """Return the id of a tap: the same in every process, another one for a tap that is wanted anew."""
    return uuid.uuid5(_NAMESPACE, json.dumps([tap.document(), since_ms], sort_keys=True)).bytes
