"""Watches all windows of records and of files for a loss that the ledger does not know of, as long as a run lasts."""

from __future__ import annotations

import time

from lagloss.wire.format import WINDOW_S
from lagloss_server.store.store import Store
from pipeline_under_test.batch.expected import BatchTruth, FileFlow
from pipeline_under_test.batch.ledger import read_ledger
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.topology import files_pipeline
from pipeline_under_test.harness.loss_watch import FalseLoss, false_loss
from pipeline_under_test.harness.measured import ALL_NAMES
from pipeline_under_test.harness.truth import TrueWindow


class BatchLossWatch:
    """Looks at the windows from `begin_s` on whenever it is asked to, and keeps what it found wrong.

    The ledger is read after the windows: its lines are on disk before what they record takes effect.
    """

    def __init__(self, store: Store, settings: BatchSettings, begin_s: int) -> None:
        self.found: list[FalseLoss] = []
        self._store = store
        self._settings = settings
        self._begin_s = begin_s

    def look(self) -> list[FalseLoss]:
        """Check all windows once; return what is wrong now."""
        records, files = self._settings.pipeline, files_pipeline(self._settings.pipeline)
        lossy = [
            (name, window, self._store.missing(name, window.start_s, ALL_NAMES))
            for name in (records, files)
            for window in self._store.windows(name, self._begin_s - WINDOW_S, int(time.time()) + WINDOW_S)
            if window.state != "open" and window.lost_min
        ]
        if not lossy:
            return []
        flow = FileFlow.of(read_ledger(self._settings.ledger_dir))
        truths = {records: BatchTruth.of_records(flow), files: BatchTruth.of_files(flow)}
        wrong = []
        for name, window, missing in lossy:
            truth = truths[name].windows.get(window.start_s, TrueWindow())
            found = false_loss(window, missing, truth, time.time())
            wrong += [found] if found is not None else []
        self.found += wrong
        return wrong
