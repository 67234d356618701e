"""Which snapshots of an Iceberg table are new since a position, and what of each is to be read. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

BEFORE_MS: Final = 120_000
"""How long before its first window a tap begins: clocks of those who commit can be behind."""

_EXPIRED: Final = "snapshots expired before they were read"

Part = Literal["added", "replaced", "files"]
"""Of a snapshot: the rows that it added; those of its files that are newer than the position; or those of its files
that another history does not have."""


class PartRead(msgspec.Struct, frozen=True):
    """A snapshot that is read in part.

    Attributes:
        file: the one that is being read; those before it are done. Empty: none is begun.
        rows: of that file, read.
        from_ms: rows with older event times are left out where all of a file is read; see `Part`.
    """

    snapshot: int
    part: Part
    from_ms: int
    file: str = ""
    rows: int = 0


class IcebergPosition(msgspec.Struct, frozen=True):
    """Where a table is read up to.

    Attributes:
        table: its uuid: another one once it is created again. Empty: begin.
        snapshot: it and its ancestors are read; None: the table had none.
        sequence: number of that snapshot, which grows with each commit; 0 in tables of format 1.
        reading: the next snapshot, if it is read in part.
        at: of the newest version of the table that was read.
    """

    table: str = ""
    snapshot: int | None = None
    sequence: int = 0
    reading: PartRead | None = None
    at: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotStep:
    """A snapshot to read. `instead_of`: the newest one of the history that it replaced."""

    snapshot: Snapshot
    part: Part = "added"
    instead_of: Snapshot | None = None


@dataclass(frozen=True, slots=True)
class History:
    """What is new.

    Attributes:
        start: before the first step.
        steps: in their order.
        end: after the last one.
        break_: why rows before the first step can be missing; empty: none is.
    """

    start: IcebergPosition
    steps: Sequence[SnapshotStep]
    end: IcebergPosition
    break_: str = ""


def history_since(before: IcebergPosition, metadata: TableMetadata, since_ms: int) -> History:
    """Return what of a table is new since a position; empty: with event times from `since_ms` on."""
    table = str(metadata.table_uuid)
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    chain = _ancestors(metadata.current_snapshot_id, snapshots)[::-1]
    end = IcebergPosition(table, *_last(chain))
    if before.table != table:
        start, steps = _begin(table, chain, since_ms)
        return History(start, steps, end, "it was created again" if before.table else "")
    if before.reading is not None and (going_on := _going_on(before, before.reading, chain, snapshots)):
        return History(before, going_on, end)
    if before.snapshot is not None and (new := _after(before.snapshot, chain)) is not None:
        return History(before, _added(new), end)
    if not chain:
        return History(before, (), end)
    earlier = _ancestors(before.snapshot, snapshots)
    for ancestor in earlier:
        if (new := _after(ancestor.snapshot_id, chain)) is not None:  # rolled back: what is gone was delivered
            return History(before, _added(new), end)
    follows = _follows(before, chain[0])
    if earlier:
        steps = [SnapshotStep(chain[0], "replaced", earlier[0]), *_added(chain[1:])]
        return History(before, steps, end, "" if follows else _EXPIRED)
    if follows:
        return History(before, _added(chain), end)
    if getattr(metadata, "last_sequence_number", 0) < before.sequence:
        return History(before, (), end, "its history went back")
    steps = [SnapshotStep(chain[0], "files"), *_added(chain[1:])]
    return History(before, steps, end, _EXPIRED)


def _going_on(
    before: IcebergPosition, reading: PartRead, chain: Sequence[Snapshot], snapshots: Mapping[int, Snapshot]
) -> list[SnapshotStep]:
    """Return the steps from the snapshot on that is read in part; none if it has gone."""
    new = _after(reading.snapshot, chain)
    instead_of = snapshots.get(before.snapshot or 0) if reading.part == "replaced" else None
    if new is None or (reading.part == "replaced" and instead_of is None):
        return []
    return [SnapshotStep(snapshots[reading.snapshot], reading.part, instead_of), *_added(new)]


def _begin(table: str, chain: Sequence[Snapshot], since_ms: int) -> tuple[IcebergPosition, list[SnapshotStep]]:
    """Return where to begin, and the steps from that on."""
    new = len(chain)
    while new and chain[new - 1].timestamp_ms >= since_ms - BEFORE_MS:
        new -= 1
    steps = _added(chain[new:])
    if not new and steps:  # older ones can have expired
        steps[0] = SnapshotStep(chain[0], "files")
    return IcebergPosition(table, *_last(chain[:new])), steps


def _follows(before: IcebergPosition, snapshot: Snapshot) -> bool:
    """Return whether no snapshot was between. Some writers cut the descendants of a snapshot off as it expires; in
    tables of format 1 no number shows it."""
    if before.snapshot is not None and snapshot.parent_snapshot_id == before.snapshot:
        return True
    is_numbered = bool(before.sequence) or before.snapshot is None
    return is_numbered and before.sequence + 1 == snapshot.sequence_number


def _added(snapshots: Sequence[Snapshot]) -> list[SnapshotStep]:
    return [SnapshotStep(snapshot) for snapshot in snapshots]


def _after(snapshot_id: int | None, chain: Sequence[Snapshot]) -> Sequence[Snapshot] | None:
    """Return the snapshots after another; None if that is not in the chain."""
    position = next((index for index, snapshot in enumerate(chain) if snapshot.snapshot_id == snapshot_id), None)
    return None if position is None else chain[position + 1 :]


def _last(chain: Sequence[Snapshot]) -> tuple[int | None, int]:
    return (chain[-1].snapshot_id, chain[-1].sequence_number or 0) if chain else (None, 0)


def _ancestors(snapshot_id: int | None, snapshots: dict[int, Snapshot]) -> list[Snapshot]:
    """Return a snapshot and those before it, as far as they have not expired."""
    chain = []
    while snapshot_id is not None and (snapshot := snapshots.get(snapshot_id)) is not None:
        chain.append(snapshot)
        snapshot_id = snapshot.parent_snapshot_id
    return chain
