"""Watches all windows of a pipeline for a loss that the ledger does not know of, as long as the pipeline runs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lagloss.wire.format import WINDOW_S, hash_id
from lagloss_server.model.window import ListedWindow
from lagloss_server.store.store import MissingMessage, Store
from pipeline_under_test.harness.ledger import LedgerReader
from pipeline_under_test.harness.measured import ALL_NAMES, CERTAIN, hexed
from pipeline_under_test.harness.truth import TrueWindow, Truth
from pipeline_under_test.stream.as_tapped import as_tapped

NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class FalseLoss:
    """A moment (epoch seconds) at which a window had more certain losses than there were, with some of their ids."""

    at_s: float
    window_start_s: int
    reported: int
    injected: int
    ids: tuple[str, ...]


def false_loss(
    window: ListedWindow, missing: Iterable[MissingMessage], truth: TrueWindow, at_s: float
) -> FalseLoss | None:
    """Return what is wrong with the losses of a closed window; None if they are right.

    Only what is lost for certain can be wrong. What a replay is bringing back is lost until it is back, and what was
    never answered for may be lost or not.
    """
    known = frozenset(map(hash_id, truth.ids["lost"] | truth.unanswered))
    wrong = [message for message in missing if message.kind == CERTAIN and message.id_hash not in known]
    reported = window.lost_min
    if not wrong and reported <= len(known):
        return None
    names = tuple(message.message_id or hexed(message.id_hash) for message in wrong[:NAMED])
    return FalseLoss(at_s, window.start_s, reported, len(truth.ids["lost"]), names)


class LossWatch:
    """Looks at the windows whenever it is asked to, and keeps what it found wrong.

    The ledger is read after the windows: its lines are on disk before what they record takes effect.
    """

    def __init__(self, store: Store, pipeline: str, ledger_dir: Path, *, taps: bool = False) -> None:
        self.found: list[FalseLoss] = []
        self.windows: dict[int, ListedWindow] = {}
        self.truth = Truth()
        self._store = store
        self._pipeline = pipeline
        self._ledger = LedgerReader(ledger_dir)
        self._see = as_tapped if taps else lambda truth: truth

    def look(self) -> None:
        """Check all windows once."""
        windows = self._store.windows(self._pipeline, 0, int(time.time()) + 2 * WINDOW_S)
        self.windows = {window.start_s: window for window in windows}
        with_loss = {
            start: (window, self._store.missing(self._pipeline, start, ALL_NAMES))
            for start, window in self.windows.items()
            if window.state != "open" and (window.lost_min or window.verdict == "loss")
        }
        self.truth.add(self._ledger.new_entries())
        for start, (window, missing) in with_loss.items():
            truth = self._see(self.truth.windows.get(start, TrueWindow()))
            wrong = false_loss(window, missing, truth, time.time())
            if wrong is not None:
                self.found.append(wrong)
