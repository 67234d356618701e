"""The verdict on the stream: its ledger beside lagloss's windows."""

from __future__ import annotations

from collections.abc import Callable

from lagloss_server.base.errors import NotEnoughData
from lagloss_server.base.settings import Settings as LaglossSettings
from pipeline_under_test.harness.ledger import LedgerReader
from pipeline_under_test.harness.verdict import Verdict, verdicts_on
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.table import stored_rows
from pipeline_under_test.stream.truth import CommitFirstWindow, StreamTruth, StreamWindow, truth_as_tapped


def followed_truth(settings: ReferenceSettings) -> Callable[[], dict[str, StreamTruth]]:
    """Return a function that returns what a pipeline's ledger and table add up to by now, by the pipeline's name. It
    raises psycopg.Error if the database does not answer."""
    truth = StreamTruth(CommitFirstWindow if settings.commit_first else StreamWindow)
    ledger, rows = LedgerReader(settings.ledger_dir), stored_rows(settings)

    def read() -> dict[str, StreamTruth]:
        stored = rows.new_entries()
        truth.add(ledger.new_entries())
        truth.add_rows(stored)
        return {settings.pipeline: truth_as_tapped(truth) if settings.taps else truth}

    return read


def verdict_of(settings: ReferenceSettings, lagloss: LaglossSettings) -> Verdict:
    """Compare the ledger of the pipeline in this directory with the lagloss that these settings name.

    Raises:
        NotEnoughData: neither of them has said anything yet that could be compared.
        LaglossError, KafkaException, psycopg.Error: a server cannot be reached, or lagloss has no such pipeline.
    """
    truths = followed_truth(settings)()
    windows = truths[settings.pipeline].windows
    if not windows:
        raise NotEnoughData(detail=f"The ledger in {settings.ledger_dir} is empty. Start a load with `pipeline run`.")
    (verdict,) = verdicts_on(truths, lagloss)
    if len(verdict.waiting) == len(windows):
        raise NotEnoughData(
            detail=f"No window of {settings.pipeline} is closed yet. Wait until its grace period has ended."
        )
    return verdict
