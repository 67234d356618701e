"""Random histories of sinks that write folders of Parquet on S3, as `table_histories` has them of PostgreSQL.

Files come whole or by uploads in parts that are completed late or never; the group commits before or after. Files are
overwritten, compacted, deleted and put back, some while they are read.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from lagloss_server.model.tables import TableSpec
from taps.tables.parquet import ParquetFolder
from taps.tables.reading import TableReader
from tests.support.lake_histories import FilesHistory, rows_of
from tests.support.landings import Landing, Upload
from tests.support.table_histories import LIMIT, Ledgered


@dataclass
class BegunUpload:
    """What a sink is uploading. `takes`: its group commits the messages once it is complete."""

    upload: Upload
    messages: list[Ledgered]
    takes: bool


@dataclass
class FolderHistory(FilesHistory):
    """Of a folder of Parquet."""

    landing: Landing
    kind = "parquet"
    files: dict[str, list[Ledgered]] = field(default_factory=dict)
    begun: list[BegunUpload] = field(default_factory=list)

    def create(self) -> TableSpec:
        return self.landing.spec

    def reader(self) -> TableReader:
        return ParquetFolder(self.spec, LIMIT)

    def can_be_unseen(self, message: Ledgered) -> bool:
        # a process that takes over leaves files out among which some came or went: their windows are incomplete
        return super().can_be_unseen(message) or message.window in self.dropped

    def actions(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (self.begin, 3),
            (self.complete, 4),
            (self.overwrite, 2),
            (self.compact, 2),
            (self.delete, 2),
            (self.put_back, 2),
            (self.spoil, 1),
        ]

    # -- the sink -----------------------------------------------------------------------------------------------------

    def commit_at_once(self, messages: list[Ledgered]) -> None:
        with self.showing(messages):
            for part in self.in_parts(messages):
                self._put(self._name(), part)

    def _name(self) -> str:
        return f"{self.random.choice(['dt=1/', 'dt=2/', ''])}{uuid.uuid4().hex}.parquet"

    def _put(self, name: str, messages: list[Ledgered]) -> None:
        self.landing.put(name, rows_of(messages))
        self._note(name, messages)

    def _note(self, name: str, messages: list[Ledgered]) -> None:
        """Note the rows of a file that is new."""
        for message in messages:
            # of a file that is written again, rows show again
            message.copies += self.rows[message.message_id] > 0 or message.visible_ms is not None
        self.files[name] = messages
        self._count()

    def _count(self) -> None:
        self.rows.clear()
        self.rows.update(message.message_id for messages in self.files.values() for message in messages)

    def begin(self) -> None:
        messages = self.new_messages()
        begun = BegunUpload(
            self.landing.begin(self._name(), rows_of(messages)), messages, takes=self.random.random() < 0.5
        )
        if not begun.takes:
            self.take(messages)
        self.begun.append(begun)

    def complete(self) -> None:
        """Complete an upload, or kill the sink before."""
        if not self.begun:
            return
        begun = self.begun.pop(self.random.randrange(len(self.begun)))
        if self.random.random() < 0.7:
            with self.showing(begun.messages):
                self.landing.complete(begun.upload)
                self._note(begun.upload.name, begun.messages)
            self.take(begun.messages if begun.takes else [])

    def overwrite(self) -> None:
        """Write a file again, with rows that are new and without some that were there."""
        if self.files:
            name, messages = self.random.choice(sorted(self.files)), self.new_messages()
            kept = [message for message in self.files[name] if self.random.random() < 0.8]
            with self.showing(messages):
                self._put(name, [*kept, *messages])
            self.take(messages)

    def compact(self) -> None:
        """Write the rows of two files into another one."""
        if len(self.files) >= 2:
            names = self.random.sample(sorted(self.files), 2)
            with self.showing([]):
                self._put(self._name(), [message for name in names for message in self.files[name]])
                self._delete(*names)

    def delete(self) -> None:
        if self.files:
            with self.showing([]):
                self._delete(self.random.choice(sorted(self.files)))

    def _delete(self, *names: str) -> None:
        for name in names:
            self.landing.delete(name)
            del self.files[name]
        self._count()

    def put_back(self) -> None:
        chosen = self.some_deleted()
        if chosen:
            with self.showing([]):
                self._put(self._name(), chosen)

    def spoil(self) -> None:
        """Put a file for a turn that has no such columns."""
        self.landing.put("spoilt.parquet", pa.table({"x": [1]}))
        self.turn()
        self.compare()
        self.landing.delete("spoilt.parquet")

    def end_all(self) -> None:
        self.begun = []
