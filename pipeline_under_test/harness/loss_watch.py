"""Watches all windows of pipelines for a loss that the ledger does not know of, as long as they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lagloss.wire.format import WINDOW_S, hash_id
from lagloss_server.model.window import ListedWindow
from lagloss_server.store.store import MissingMessage, Store
from pipeline_under_test.harness.measured import ALL_NAMES, CERTAIN, hexed
from pipeline_under_test.harness.truth import TrueWindow, Truth

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
    unanswered = frozenset(map(hash_id, truth.ids["lost"] | truth.lost | truth.unanswered))
    wrong = [message for message in missing if message.kind == CERTAIN and message.id_hash not in unanswered]
    reported = window.lost_min
    if not wrong and reported <= len(unanswered):
        return None
    names = tuple(message.message_id or hexed(message.id_hash) for message in wrong[:NAMED])
    return FalseLoss(at_s, window.start_s, reported, len(truth.ids["lost"] | truth.lost), names)


Truths = Callable[[], Mapping[str, Truth[Any]]]
"""Reads the ledger, and returns what it adds up to by now, by pipeline."""


class LossWatch:
    """Looks at the windows from `begin_s` on whenever it is asked to, and keeps what it found wrong.

    The ledger is read after the windows: its lines are on disk before what they record takes effect.
    """

    def __init__(self, store: Store, pipelines: Sequence[str], truths: Truths, begin_s: int = WINDOW_S) -> None:
        self.found: list[FalseLoss] = []
        self.windows: dict[str, dict[int, ListedWindow]] = {}
        """As of the last look, by pipeline and start (epoch seconds)."""
        self._store = store
        self._pipelines = pipelines
        self._truths = truths
        self._begin_s = begin_s

    def look(self) -> list[FalseLoss]:
        """Check all windows once; return what is wrong now."""
        until_s = int(time.time()) + 2 * WINDOW_S
        for name in self._pipelines:
            windows = self._store.windows(name, self._begin_s - WINDOW_S, until_s)
            self.windows[name] = {window.start_s: window for window in windows}
        lossy = [
            (name, window, self._store.missing(name, start_s, ALL_NAMES))
            for name, windows in self.windows.items()
            for start_s, window in windows.items()
            if window.state != "open" and (window.lost_min or window.verdict == "loss")
        ]
        truths = self._truths() if lossy else {}
        wrong: list[FalseLoss] = []
        for name, window, missing in lossy:
            truth = truths[name].windows.get(window.start_s, TrueWindow())
            if (loss := false_loss(window, missing, truth, time.time())) is not None:
                wrong.append(loss)
        self.found += wrong
        return wrong
