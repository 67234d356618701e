"""Random histories of sinks that write tables of Iceberg, as `table_histories` has them of PostgreSQL.

Tasks write files, which a coordinator commits later, twice as a zombie, or never; the group commits before or after.
Rows are rewritten, deleted, put back and compacted; snapshots are rolled back and forth and expire, read and unread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.manifest import DataFile

from lagloss_server.model.tables import TableSpec
from taps.tables.iceberg import IcebergTable
from taps.tables.reading import TableReader
from tests.support.lakes import SCHEMA, Lake, LakeTable
from tests.support.table_histories import LIMIT, Ledgered, SinkHistory, now_ms


@dataclass
class WrittenFiles:
    """What a task has written and its coordinator has not committed."""

    files: list[DataFile]
    messages: list[Ledgered] = field(default_factory=list)
    takes: bool = False
    """The group commits the messages once the files are committed."""


def rows_of(messages: list[Ledgered]) -> pa.Table:
    columns = {
        "id": [message.message_id for message in messages],
        "at": [message.event_ms * 1_000 for message in messages],
        "state": ["new"] * len(messages),
    }
    return pa.table({name: pa.array(values).cast(SCHEMA.field(name).type) for name, values in columns.items()})


@dataclass
class FilesHistory(SinkHistory):
    """Of a table that consists of files."""

    def __post_init__(self) -> None:
        self.rows: Counter[str] = Counter()
        """How many rows the table has, by message id."""
        super().__post_init__()

    @contextmanager
    def showing(self, messages: list[Ledgered]) -> Iterator[None]:
        """Have a change of the rows show these messages for the first time."""
        before_ms = now_ms()
        for message in messages:
            message.inserting_ms = message.inserting_ms or before_ms
        yield
        self._show([message for message in messages if not message.visible_ms], before_ms)
        for message in (*self.messages, *self.strangers):
            if not message.visible_ms or (message.deleted_ms is None) == (self.rows[message.message_id] > 0):
                continue
            if message.deleted_ms is None:
                message.deleted_ms = now_ms()
            else:
                message.deleted_ms, message.returns = None, message.returns + 1

    def some_deleted(self) -> list[Ledgered]:
        deleted = [message for message in (*self.messages, *self.strangers) if message.deleted_ms]
        return self.random.sample(deleted, min(2, len(deleted)))

    def in_parts(self, messages: list[Ledgered]) -> list[list[Ledgered]]:
        """Divide messages among one or two files."""
        half = self.random.randint(0, len(messages))
        return [part for part in (messages[:half], messages[half:]) if part]


@dataclass
class LakeHistory(FilesHistory):
    """Of a table of Iceberg, in which rows are deleted by equality, as Flink does, or in other ways."""

    lake: Lake
    kind = "iceberg"

    def __post_init__(self) -> None:
        self.written: list[WrittenFiles] = []
        self.rows_of_snapshots: dict[int | None, Counter[str]] = {}
        self.unseen: set[str] = set()
        """Ids of rows that were in no snapshot any more, before they were read maybe."""
        self.gaps = 0
        self.is_by_equality = self.seed % 4 == 1
        super().__post_init__()

    def create(self) -> TableSpec:
        self.target: LakeTable = self.lake.table(self.name, **{"format-version": "2"})
        return self.target.spec

    def reader(self) -> TableReader:
        return IcebergTable(self.spec, LIMIT)

    def can_be_unseen(self, message: Ledgered) -> bool:
        return message.message_id in self.unseen

    def actions(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (self.write_files, 3),
            (self.commit_files, 4),
            (self.commit_as_zombie, 1),
            (self.compact, 2),
            (self.put_back, 1),
            (self.roll_back, 1 if self.seed % 4 < 2 else 0),
            (self.forget_read, 2),
            (self.forget_unread, 1 if self.seed % 3 == 0 else 0),
            (self.hide, 1),
            *([(self.upsert_by_equality, 3), (self.delete_by_equality, 1)] if self.is_by_equality else []),
            *([] if self.is_by_equality else [(self.merge, 2), (self.upsert, 1), (self.delete, 1)]),
        ]

    # -- the sink -----------------------------------------------------------------------------------------------------

    def commit_at_once(self, messages: list[Ledgered]) -> None:
        self._commit(WrittenFiles(self._write(messages), messages))

    def _write(self, messages: list[Ledgered]) -> list[DataFile]:
        return [file for part in self.in_parts(messages) for file in self.target.write(rows_of(part))]

    def _commit(self, written: WrittenFiles) -> None:
        with self._showing(written.messages):
            self.target.commit(written.files)
            self.rows.update(message.message_id for message in written.messages)

    @contextmanager
    def _showing(self, messages: list[Ledgered]) -> Iterator[None]:
        """Have a commit show these messages for the first time, and note the rows that its snapshot has."""
        with self.showing(messages):
            yield
        self.rows_of_snapshots[self.target.table.refresh().metadata.current_snapshot_id] = self.rows.copy()

    def write_files(self) -> None:
        messages = self.new_messages()
        written = WrittenFiles(self._write(messages), messages, takes=self.random.random() < 0.5)
        if not written.takes:
            self.take(messages)
        self.written.append(written)

    def commit_files(self) -> None:
        """Commit what a task has written, or kill its coordinator, which leaves files that are of no snapshot."""
        if not self.written:
            return
        written = self.written.pop(self.random.randrange(len(self.written)))
        if self.random.random() < 0.7:
            self._commit(written)
            self.take(written.messages if written.takes else [])

    def commit_as_zombie(self) -> None:
        """Commit files by two coordinators."""
        if self.written:
            written = self.written.pop()
            for message in written.messages:
                message.copies = 2
            self._commit(written)
            self._commit(written)
            self.take(written.messages)

    def merge(self) -> None:
        """Rewrite a file with rows that are new."""
        files = self.target.files()
        if not files:
            return
        chosen, messages = self.random.choice(files), self.new_messages()
        if [file.file_path for file in files].count(chosen.file_path) > 1:
            return  # of a zombie: it cannot be removed once
        added = self.target.write(pa.concat_tables([self.target.rows_of(chosen), rows_of(messages)]))
        with self._showing(messages):
            self.target.replace([chosen], added)
            self.rows.update(message.message_id for message in messages)
        self.take(messages)

    def upsert(self) -> None:
        """Overwrite as pyiceberg does: by a delete, and an append."""
        chosen, messages = self._some_visible(), self.new_messages()
        if not chosen:
            return
        with self._showing(messages):
            self.target.table.overwrite(rows_of([*chosen, *messages]), overwrite_filter=self._filter(chosen))
            self.rows.update(message.message_id for message in messages)
        self.take(messages)

    def delete(self) -> None:
        chosen = self._some_visible()
        if chosen:
            with self._showing([]):
                self.target.table.delete(self._filter(chosen))
                self._forget_rows(chosen)

    def upsert_by_equality(self) -> None:
        """Write rows, and delete those by equality that had the ids before."""
        chosen, messages = self._some_visible(), self.new_messages()
        with self._showing(messages):
            self.target.commit_delta(self._write([*chosen, *messages]), [self._equality_deletes([*chosen, *messages])])
            self.rows.update({message.message_id: 1 - self.rows[message.message_id] for message in chosen})
            self.rows.update(message.message_id for message in messages)
        self.take(messages)

    def delete_by_equality(self) -> None:
        chosen = self._some_visible()
        if chosen:
            with self._showing([]):
                self.target.commit_delta([], [self._equality_deletes(chosen)])
                self._forget_rows(chosen)

    def _equality_deletes(self, messages: list[Ledgered]) -> DataFile:
        return self.target.write_equality_deletes(pa.table({"id": [message.message_id for message in messages]}))

    def _forget_rows(self, messages: list[Ledgered]) -> None:
        for message in messages:
            del self.rows[message.message_id]

    def _some_visible(self) -> list[Ledgered]:
        most = 2 if self.is_by_equality else 1  # pyiceberg does not remove a file that is there twice
        visible = [m for m in self.messages if self.rows[m.message_id] and m.copies <= most]
        return self.random.sample(visible, min(2, len(visible)))

    def _filter(self, messages: list[Ledgered]) -> str:
        return "id in (" + ", ".join(f"'{message.message_id}'" for message in messages) + ")"

    def put_back(self) -> None:
        """Write some deleted rows again."""
        chosen = self.some_deleted()
        if chosen:
            with self._showing([]):
                self.target.commit(self._write(chosen))
                self.rows.update(message.message_id for message in chosen)

    def compact(self) -> None:
        """Rewrite all rows as one file."""
        files = self.target.files()
        if len(files) < 2 or len({file.file_path for file in files}) < len(files):
            return
        by_id = {message.message_id: message for message in (*self.messages, *self.strangers)}
        rows = self.target.write(rows_of([by_id[message_id] for message_id in self.rows.elements()]))
        with self._showing([]):
            self.target.replace(files, rows, is_compaction=True)

    def roll_back(self) -> None:
        """Take the last commit back, or bring back what was taken back."""
        snapshots = {snapshot.snapshot_id: snapshot for snapshot in self.target.table.refresh().metadata.snapshots}
        current = self.target.table.current_snapshot()
        if current is None:
            return
        before = snapshots.get(current.parent_snapshot_id or 0)
        while before is not None and before.snapshot_id not in self.rows_of_snapshots:  # half of an upsert
            before = snapshots.get(before.parent_snapshot_id or 0)
        after = [each.snapshot_id for each in snapshots.values() if each.parent_snapshot_id == current.snapshot_id]
        options = [*([before.snapshot_id] if before is not None else []), *self.rows_of_snapshots.keys() & {*after}]
        if not options:
            return
        chosen = self.random.choice(options)
        self.target.table.manage_snapshots().set_current_snapshot(chosen).commit()
        with self._showing([]):
            rows = self.rows_of_snapshots[chosen].copy()
            self.unseen |= {message_id for message_id in self.rows if not rows[message_id]}
            self.rows = rows

    def forget_read(self) -> None:
        """Expire snapshots that the tap has read, after a turn of all of its processes."""
        if self.random.random() < 0.5:
            self.target.table.refresh()
            self._catch_up()
            self.target.expire()

    def _catch_up(self) -> None:
        current = self.target.table.refresh().metadata.current_snapshot_id
        for _ in range(200):
            self.turn()
            if any(self._position(process.runner).get("snapshot") == current for process in self.processes):
                return

    def _position(self, runner: object) -> dict[str, object]:
        plan = getattr(runner, "_plan", None)
        return dict(plan.position) if plan is not None else {}

    def forget_unread(self) -> None:
        """Expire snapshots that may not be read. Rows that were deleted meanwhile may have been in none that was."""
        self.gaps += 1
        self.may_repeat = True
        self.unseen |= {message.message_id for message in (*self.messages, *self.strangers) if message.deleted_ms}
        self.target.expire()

    def hide(self) -> None:
        """Take the catalog away for a turn."""
        self.target.table.catalog.rename_table(f"raw.{self.name}", "raw.hidden")
        self.turn()
        self.compare()
        self.target.table.catalog.rename_table("raw.hidden", f"raw.{self.name}")

    def end_all(self) -> None:
        self.written = []

    def close(self) -> None:
        super().close()
        self.lake.catalog.drop_table(f"raw.{self.name}")
