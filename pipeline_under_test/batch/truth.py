"""Expected results from the ledger: per minute of event time, what lagloss ought to measure of records and of files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final

from pipeline_under_test.batch.ledger import Fact, read_ledger
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.topology import (
    AGGREGATE,
    DB_IMPORT,
    DONE_NODES,
    IMPORTERS,
    INDEX_IMPORT,
    LANDING,
    QUEUE_NODES,
    files_pipeline,
)
from pipeline_under_test.harness.ledger import WINDOW_MS, LedgerEntry, place_of_link, place_of_node
from pipeline_under_test.harness.truth import TrueWindow, Truth

DELIVERIES: Final = frozenset({f"{INDEX_IMPORT}.out", *(f"{node}.out" for node in DONE_NODES.values())})
"""Checkpoints of deliveries that importers report, in the two pipelines."""


@dataclass(slots=True)
class Import:
    """What became of a file at one importer."""

    writes: int = 0
    rejected: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    is_dead: bool = False
    is_taken_in: bool = False


@dataclass(slots=True)
class LandedFile:
    """A file in S3; `file` is None while it is not known whether S3 has it."""

    ids: list[str]
    times: list[int]
    is_notified: bool
    file: str | None = None
    file_ms: int = 0


@dataclass(slots=True)
class FileFlow:
    """The ledger's facts, by file and importer."""

    files: dict[str, LandedFile] = field(default_factory=dict)
    """By attempt."""
    imports: dict[tuple[str, str], Import] = field(default_factory=lambda: defaultdict(Import))
    """By importer and file."""
    aggregated: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, facts: Iterable[Fact]) -> FileFlow:
        """Return what the facts of a ledger, in the order of their times, add up to."""
        flow = cls()
        for fact in facts:
            flow._add(fact)
        return flow

    def _add(self, fact: Fact) -> None:
        match fact["kind"]:
            case "landing":
                self.files[fact["attempt"]] = LandedFile(fact["ids"], fact["times"], fact["notified"])
            case "landed":
                landed = self.files[fact["attempt"]]
                landed.file, landed.file_ms = fact["file"], fact["file_ms"]
            case "writing":
                import_ = self.imports[fact["node"], fact["file"]]
                import_.writes += 1
                import_.rejected.update(fact["rejected"])
                import_.dropped.update(fact["dropped"])
            case "failed":
                import_ = self.imports[fact["node"], fact["file"]]
                import_.writes -= fact["wrote"]
                import_.is_dead |= fact["last"]
                import_.is_taken_in |= fact["taken_in"]
            case "buried":
                self.imports[fact["node"], fact["file"]].is_dead = True
            case "aggregated":
                self.aggregated.update(fact["ids"])


@dataclass(slots=True)
class BatchWindow(TrueWindow):
    """One minute of the batch pipeline: what waits on one of its ways is known by id."""

    waiting: set[str] = field(default_factory=set)

    reruns: ClassVar[frozenset[str]] = frozenset({f"{AGGREGATE}.out"})
    """The hourly job reports a record once for each run over its hour."""

    def _deliveries(self) -> Iterable[str]:
        return DELIVERIES.intersection(self.written)

    def _under_way(self) -> set[str]:
        return self.waiting


class BatchTruth(Truth[BatchWindow]):
    """The ledger summed up, window by window, for one of the two pipelines."""

    def __init__(self) -> None:
        super().__init__(BatchWindow)

    @classmethod
    def of_records(cls, flow: FileFlow) -> BatchTruth:
        """Return the truth about records."""
        truth = cls()
        for landed in flow.files.values():
            for message_id, event_ms in zip(landed.ids, landed.times, strict=True):
                truth._enter(landed, message_id, event_ms)
                for importer in IMPORTERS if landed.file else ():
                    truth._import_record(flow, landed, importer, message_id, event_ms)
        return truth

    @classmethod
    def of_files(cls, flow: FileFlow) -> BatchTruth:
        """Return the truth about files."""
        truth = cls()
        for landed in flow.files.values():
            if landed.file is None:
                continue
            truth._enter(landed, landed.file, landed.file_ms)
            for importer in IMPORTERS:
                link = place_of_link(LANDING, QUEUE_NODES[importer])
                import_ = flow.imports[importer, landed.file]
                truth._note(_fate(landed, import_, link, importer, is_file=True), landed.file, landed.file_ms)
                truth._window(landed.file_ms).written[f"{DONE_NODES[importer]}.out"][landed.file] += import_.writes
        return truth

    def _enter(self, landed: LandedFile, message_id: str, event_ms: int) -> None:
        self.add([LedgerEntry("answered" if landed.file else "unanswered", message_id, event_ms)])

    def _import_record(self, flow: FileFlow, landed: LandedFile, importer: str, message_id: str, event_ms: int) -> None:
        import_ = flow.imports[importer, landed.file or ""]
        fate = _fate(landed, import_, place_of_link(LANDING, importer), importer)
        if import_.writes and message_id in import_.rejected:
            fate = LedgerEntry("dead", "", 0, place_of_node(importer))
        elif import_.writes and message_id in import_.dropped:
            fate = LedgerEntry("lost", "", 0, place_of_node(importer))
        elif import_.writes and importer == DB_IMPORT:
            waits = message_id not in flow.aggregated
            fate = None if waits else LedgerEntry("delivered", "", 0, place_of_node(AGGREGATE))
        self._note(fate, message_id, event_ms)
        if import_.writes and message_id not in import_.rejected | import_.dropped:
            self._window(event_ms).written[f"{importer}.out"][message_id] += import_.writes

    def _note(self, fate: LedgerEntry | None, message_id: str, event_ms: int) -> None:
        """Take a fate in; None: it still waits."""
        if fate is None:
            self._window(event_ms).waiting.add(message_id)
        else:
            self.add([LedgerEntry(fate.fate, message_id, event_ms, fate.place)])

    def _window(self, event_ms: int) -> BatchWindow:
        return self.windows[event_ms // WINDOW_MS * (WINDOW_MS // 1000)]


def batch_truths(settings: BatchSettings) -> dict[str, BatchTruth]:
    """Return what the ledger adds up to, by pipeline: of records, and of files."""
    flow = FileFlow.of(read_ledger(settings.ledger_dir))
    return {
        settings.pipeline: BatchTruth.of_records(flow),
        files_pipeline(settings.pipeline): BatchTruth.of_files(flow),
    }


def _fate(
    landed: LandedFile, import_: Import, link: str, importer: str, *, is_file: bool = False
) -> LedgerEntry | None:
    """Return what becomes of a file, or of its records, at an importer; None while that is open."""
    if import_.writes:
        return LedgerEntry("delivered", "", 0, place_of_node(DONE_NODES[importer] if is_file else importer))
    if not landed.is_notified:
        return LedgerEntry("lost", "", 0, link)
    if import_.is_dead:
        is_known = is_file or import_.is_taken_in
        return LedgerEntry("dead", "", 0, place_of_node(importer)) if is_known else LedgerEntry("lost", "", 0, link)
    return None
