"""The ledger: what truly became of every event, written beside the pipeline as plain files that are synced to disk.

Nothing in here knows lagloss or Kafka: this is the other witness. Each process appends to a JSONL file of its own; a
line is written *before* what it records takes effect, so a crash can leave a line too many (the event is processed
again and meets the same fate) but never one too few. Lines are facts about ids, so repeated ones change nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Literal, Self

Fate = Literal[
    "generated",  # the load has made it and is about to send it
    "answered",  # col-service said that it has it
    "refused",  # col-service said that it does not want it: 4xx
    "unanswered",  # unknown: no answer, or none but 5xx, however often it was sent
    "lost",  # about to be lost on purpose at `place`
    "filtered",
    "dead",
    "duplicated",
    "delayed",
    "corrupted",  # its body is about to be changed on the link at `place`
    "routed",  # it is about to be sent on, over the link at `place`, by a node that has several next ones
    "retried",  # it is about to be handed to the global retrier by `place`
    "replayed",  # it is about to be sent once more, out of the past
    "delivered",  # the vendor, or table, at `place` has it; once more for each time that it got it
]
WINDOW_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One fact: this came of the event `id` at `place` ("link A->B", "node N", "vendor V" or "table T"; empty for the
    load)."""

    fate: Fate
    id: str
    event_time_ms: int
    place: str = ""
    reason: str = ""


class DurableFile:
    """A file that one process appends whole lines to, in single writes: other threads may do so, too."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path: Final = path
        self._file: IO[bytes] = path.open("ab", buffering=0)

    def append(self, text: str) -> None:
        """Append this text, and return once it is on disk."""
        self._file.write(text.encode())
        os.fdatasync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def new_ledger_path(directory: Path, name: str) -> Path:
    """Return the path of a ledger file of this process's own: `DIRECTORY/NAME-STARTED-PID.jsonl`."""
    return directory / f"{name}-{time.time_ns()}-{os.getpid()}.jsonl"


class Ledger(DurableFile):
    """The ledger file of this process."""

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(new_ledger_path(directory, name))

    def write(self, entries: Iterable[LedgerEntry]) -> None:
        """Append these facts, and return once they are on disk."""
        if text := "".join(_line(entry) for entry in entries):
            self.append(text)


def _line(entry: LedgerEntry) -> str:
    fields: dict[str, Any] = {"fate": entry.fate, "id": entry.id, "event_time_ms": entry.event_time_ms}
    if entry.place:
        fields["place"] = entry.place
    if entry.reason:
        fields["reason"] = entry.reason
    return json.dumps(fields, separators=(",", ":")) + "\n"


class LedgerReader:
    """Reader of a directory's ledger files as they grow: `new_entries` continues where the last call stopped."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[Path, FollowedFile] = {}

    def new_entries(self) -> Iterator[LedgerEntry]:
        """Return the facts written since the last call. A torn last line (its writer was killed) waits for its end."""
        for path in sorted(self._directory.glob("*.jsonl")):
            for line in self._files.setdefault(path, FollowedFile(path)).new_lines():
                yield LedgerEntry(**json.loads(line))


class FollowedFile:
    """The lines of a file; each call of `new_lines` continues where the last stopped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_to = 0

    def new_lines(self) -> list[bytes]:
        """Return the lines appended since the last call, without their ends; none without a file.

        A last line without an end (its writer is not done, or was killed) waits for it.
        """
        try:
            if self._path.stat().st_size == self._read_to:
                return []
        except FileNotFoundError:
            return []
        with self._path.open("rb") as file:
            file.seek(self._read_to)
            *whole, rest = file.read().split(b"\n")
            self._read_to = file.tell() - len(rest)
        return whole


def place_of_link(sender: str, receiver: str) -> str:
    return f"link {sender}->{receiver}"


def place_of_node(node: str) -> str:
    return f"node {node}"


def place_of_vendor(vendor: str) -> str:
    return f"vendor {vendor}"


def place_of_table(table: str) -> str:
    return f"table {table}"
