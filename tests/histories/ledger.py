"""The ledger: what every node of a pipeline did, as lines that it wrote itself."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from lagloss.wire.format import hash_id
from tests.histories.traffic import WINDOW_S

SENT: Final = "sent"
"""A source is about to send it."""
ACKED: Final = "acked"
"""It is in the pipeline for certain: the next hop, or the collector, has acknowledged it."""
ENDED: Final = "ended"
"""It is about to reach its end: delivered, or filtered."""


@dataclass
class Ledger:
    """Messages of one pipeline by id: `sent` with event times (ms), `sent_s` when (epoch s), `acked`, and `ended` when.

    A message that was sent and not acknowledged is in doubt: its source may have died before or after.
    """

    sent: dict[str, int] = field(default_factory=dict)
    sent_s: dict[str, float] = field(default_factory=dict)
    acked: set[str] = field(default_factory=set)
    ended: dict[str, float] = field(default_factory=dict)

    def add(self, lines: Iterable[str], booted_s: float = 0.0) -> None:
        """Add whole lines of a node's book, whose times are those of the monotonic clock, which hosts share: `booted_s`
        is when that was 0 (epoch s)."""
        for line in lines:
            kind, message_id, event_ms, at_s = line.split()
            if kind == SENT:
                self.sent[message_id] = int(event_ms)
                self.sent_s[message_id] = booted_s + float(at_s)
            elif kind == ACKED:
                self.acked.add(message_id)
            else:
                self.ended.setdefault(message_id, booted_s + float(at_s))

    def of_window(self, start_s: int) -> list[str]:
        """Return the messages of a window."""
        return [name for name, event_ms in self.sent.items() if event_ms // 1000 // WINDOW_S * WINDOW_S == start_s]

    def windows_of(self, begin_s: float, end_s: float) -> set[int]:
        """Return the windows of the messages that were sent between these times, by whatever clock."""
        names = (name for name, sent_s in self.sent_s.items() if begin_s <= sent_s <= end_s)
        return {self.sent[name] // 1000 // WINDOW_S * WINDOW_S for name in names}

    def name_of(self, id_hash: int) -> str:
        """Return the id of a message that lagloss knows only by its hash, as the store has it."""
        names = (name for name in self.sent if np.uint64(hash_id(name)).astype(np.int64) == id_hash)
        return next(names, f"the id with hash {id_hash}")

    def lost(self) -> set[str]:
        """Return the messages that are in the pipeline for certain and have not reached its end."""
        return self.acked - set(self.ended)


@dataclass
class Books:
    """The books of the nodes of one pipeline, read on from where the last look ended."""

    paths: tuple[Path, ...]
    ledger: Ledger = field(default_factory=Ledger)
    _offsets: dict[Path, int] = field(default_factory=dict)

    def look(self) -> Ledger:
        for path in self.paths:
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                text, _, _ = file.read().rpartition(b"\n")
            if text:
                self._offsets[path] = self._offsets.get(path, 0) + len(text) + 1
                self.ledger.add(text.decode().splitlines(), time.time() - time.monotonic())
        return self.ledger


def path_of(folder: Path, host: str) -> Path:
    return folder / f"{host}.ledger"
