"""Dead letters on disk, while their queue does not take them: plain files that outlive their process.

A process appends to a file of its own and holds a lock on it, which ends with the process. So a file that can be locked
is no longer appended to, and the process that locks it sends its letters. A line that its writer did not finish was
never reported as kept, and is read again from its topic.
"""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

from lagloss.sdk.spool.directory import sync_directory
from pipeline_under_test.stream.events.event import Event

MAX_BYTES: Final = 1 << 20
"""The size from which on a process begins another file."""
_SUFFIX: Final = ".jsonl"
_DRAFT: Final = ".new"


def line_of(event: Event) -> bytes:
    """Return the event as a line of JSON."""
    return json.dumps({**asdict(event), "body": base64.b64encode(event.body).decode()}).encode() + b"\n"


def event_of(line: bytes) -> Event:
    """Return the event in a line.

    Raises:
        ValueError: if there is none.
    """
    try:
        fields = json.loads(line)
        return Event(**{**fields, "body": base64.b64decode(fields["body"])})
    except (TypeError, KeyError) as error:
        raise ValueError(f"expected a stored dead letter: {error}") from error


@dataclass(frozen=True, slots=True)
class LetterFile:
    """A file whose letters are to be sent, locked until it is settled."""

    path: Path
    lines: list[bytes]
    _locked: IO[bytes]

    def settle(self, unsettled: Sequence[bytes]) -> None:
        """Keep only these of its lines, and release it to any process.

        Raises:
            OSError: the disk says no: all its lines are still there.
        """
        with self._locked:
            if not unsettled:
                self.path.unlink(missing_ok=True)
            elif len(unsettled) < len(self.lines):
                fresh = self.path.with_suffix(_DRAFT)
                with fresh.open("wb", buffering=0) as file:
                    _write(file, b"".join(unsettled))
                fresh.replace(self.path)


class KeptLetters:
    """The letters that one node's processes have on disk."""

    def __init__(self, directory: Path, node: str) -> None:
        self.directory: Final = directory / node
        self._mine: IO[bytes] | None = None
        self._number = itertools.count()

    def keep(self, events: Iterable[Event]) -> None:
        """Append these events, and returns once they are on disk.

        Raises:
            OSError: the disk says no: none of them is kept.
        """
        try:
            if self._mine is None:
                self._mine = self._begun()
            _write(self._mine, b"".join(map(line_of, events)))
            is_full = self._mine.tell() >= MAX_BYTES
        except OSError:
            self.let_go()  # a line that was begun stays the last of its file
            raise
        if is_full:
            self.let_go()

    def unsent(self) -> Iterator[LetterFile]:
        """Return the files that no process appends to, the oldest first; this one's own as well, which begins
        another."""
        self.let_go()
        for path in sorted(self.directory.glob(f"*{_SUFFIX}")):
            file = _locked(path)
            if file is not None:
                lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
                yield LetterFile(path, lines, file)

    def let_go(self) -> None:
        """Release what was kept so far, for any process to send."""
        if self._mine is not None:
            self._mine.close()
            self._mine = None

    def _begun(self) -> IO[bytes]:
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{time.time_ns()}-{os.getpid()}-{next(self._number)}{_SUFFIX}"
        draft = path.with_suffix(_DRAFT)  # until it is locked, it must not look like a dead process's
        file = draft.open("wb", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            draft.rename(path)
            sync_directory(self.directory)
        except OSError:
            file.close()
            raise
        return file


def _locked(path: Path) -> IO[bytes] | None:
    """Return the file, locked; None if another process has it, or has settled it."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
            return file
    except OSError:  # it is locked, or gone
        pass
    file.close()
    return None


def _write(file: IO[bytes], data: bytes) -> None:
    """Write all of it to the disk.

    Raises:
        OSError: the disk says no, or has taken a part only.
    """
    if file.write(data) != len(data):
        raise OSError(f"{file.name}: written only partially")
    os.fsync(file.fileno())
