"""Definitions, windows and missing messages in PostgreSQL, read for all parts. Writers keep their own statements."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    Row,
    Select,
    Table,
    Text,
    cast,
    exists,
    func,
    literal,
    literal_column,
    select,
    text,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.orm import aliased

from lagloss.wire.format import SAMPLE_ALL, OffsetRange, unpack_ranges
from lagloss.wire.sketch import Sketch
from lagloss.wire.traces import TraceContext
from lagloss_server.base.errors import (
    DatabaseUnreachable,
    ReservedName,
    TooManyVersions,
    UnknownPipeline,
    UnreadableDefinition,
)
from lagloss_server.judging.live import LiveTally, live_result
from lagloss_server.model.canary import CANARY, is_listed
from lagloss_server.model.definition import Definition, StoredPipeline, as_document
from lagloss_server.model.graph import Graph
from lagloss_server.model.window import ListedWindow, rfc3339
from lagloss_server.store import audit
from lagloss_server.store.engine import engine_for
from lagloss_server.store.limits import demand_room
from lagloss_server.store.results import unpack_rollup, unpack_window
from lagloss_server.store.schema import core as tables
from lagloss_server.store.unreadable import ReadRows, UnreadableRow, read_each, reason
from lagloss_server.sums.rollup import Period, Rollup

MAX_PIPELINES: Final = 10_000
"""Of an installation: for so many it is measured (docs/scaling.md)."""
MAX_VERSIONS: Final = 1_000
"""Of a pipeline, where `max_per_day` limits them, too. None is deleted: taps go on by all that were before."""
MAX_MOMENT_MS: Final = 253_370_764_800_000
"""The start of the year 9999: a later one is a moment of no calendar."""
_STAMP: Final[ColumnElement[int]] = literal_column("CAST(CAST(pipeline.xmin AS text) AS bigint)", BigInteger)
_DAY_MS: Final = 86_400_000
MISSING_KINDS: Final = ("lost", "perhaps", "overdue", "pending")
"""Kinds of missing messages, the surest loss first."""


@dataclass(frozen=True, slots=True)
class MissingMessage:
    """A missing message as a closing judged it; `last_seen_ms` in epoch ms. `kind`: lost, perhaps,
    overdue or pending. `trace`: in which it came in, `emitter`: of its beacon at the last checkpoint, where they are
    known."""

    window_start_s: int
    id_hash: int
    message_id: str | None
    kind: str
    places: list[str]
    last_checkpoint: str
    last_seen_ms: float
    trace: TraceContext | None = None
    emitter: bytes | None = None

    @classmethod
    def of(cls, row: Row[Any]) -> MissingMessage:
        """Return a row of `tables.MissingMessageRow`."""
        return cls(
            row.window_start,
            row.id_hash % (1 << 64),
            row.message_id,
            row.kind,
            row.places,
            row.last_checkpoint,
            row.last_seen_ms,
            None if row.trace_id is None else TraceContext(row.trace_id, row.span_id),
            row.emitter,
        )


def demand_unreserved(names: Iterable[str]) -> None:
    """Check that pipelines are for users to apply and delete.

    Raises:
        ReservedName: one is lagloss's own.
    """
    if not all(map(is_listed, names)):
        raise ReservedName(pipeline=CANARY)


class Store:
    """Reads of one database, and `apply`. `session`: settings of its connections, as of `engine_for`."""

    def __init__(self, database_url: str, **session: str) -> None:
        self._engine = engine_for(database_url, **session)

    @property
    def engine(self) -> Engine:
        """Connections that read what whoever asks may see; of this class, everything."""
        return self._engine

    @property
    def unscoped(self) -> Store:
        """The store of everything, whoever asks."""
        return self

    @property
    def is_whole(self) -> bool:
        """Whether whoever asks may see every pipeline."""
        return True

    def may_see_ids(self, pipeline: str) -> bool:
        """Return whether whoever asks may see message ids of this pipeline; of this class, everybody may."""
        return True

    def look_at_ids(self, look: audit.Look, pipeline: str, what: str) -> None:
        """Permit that message ids of a pipeline are shown; to be called before they are read, from wherever.

        Raises:
            IdsHidden: whoever asks may not see them; of this class, everybody may, and no look is noted.
        """

    def close(self) -> None:
        """Close the connections that are kept for reuse."""
        self._engine.dispose()

    def check(self) -> None:
        """Raise DatabaseUnreachable if the database does not answer, or has no tables of lagloss."""
        try:
            with self.engine.connect() as connection:
                connection.execute(select(tables.PipelineRow.name).limit(1))
        except (OperationalError, ProgrammingError) as error:
            detail = str(error.orig).strip().splitlines()[-1]
            raise DatabaseUnreachable(url=self.engine.url, detail=detail) from error

    def apply(self, definition: Definition, now_ms: int | None = None, *, max_per_day: int | None = None) -> int:
        """Store a definition and return its version number. An unchanged one keeps its version.

        Raises:
            TooManyVersions: there are `max_per_day` of this pipeline from the last 24 hours.
            LimitReached: with `max_per_day`, there are `MAX_VERSIONS` of it.
        """
        (version,) = self.change([definition], now_ms=now_ms, max_per_day=max_per_day)
        return version

    def delete(self, name: str, now_ms: int | None = None) -> None:
        """Delete a pipeline: it is unknown from now on, its windows stay until retention takes them. Applied again, it
        continues with its next version, and its earlier ones hold for earlier windows again.

        Raises:
            UnknownPipeline: with the names there are.
        """
        self.change(deleted=[name], now_ms=now_ms)

    def change(
        self,
        definitions: Sequence[Definition] = (),
        deleted: Collection[str] = (),
        *,
        now_ms: int | None = None,
        max_per_day: int | None = None,
        is_own: bool = False,
    ) -> list[int]:
        """Store definitions as `apply` does and delete pipelines as `delete` does, all of it or, after an error, none;
        return the version numbers of the definitions. `is_own`: of lagloss itself.

        Raises:
            ReservedName: they are, and it is not for lagloss.
            LimitReached: there would be more pipelines than there can be, or versions of one, see `apply`.
        """
        if not is_own:
            demand_unreserved([*(definition.name for definition in definitions), *deleted])
        with self.engine.begin() as connection:
            connection.execute(text("LOCK TABLE pipeline IN SHARE ROW EXCLUSIVE MODE"))
            # after the lock: with the time before a long wait, it would be in force in windows that are closed
            at_ms = _now_ms(connection) if now_ms is None else now_ms
            versions = [_apply(connection, definition, at_ms, max_per_day) for definition in definitions]
            for name in deleted:
                if not _delete(connection, name, at_ms):
                    raise self._unknown(name)
            if definitions:
                remedy = "Delete one with `lagloss delete NAME`."
                demand_room(connection, _of_all(), MAX_PIPELINES, "pipelines", remedy, more=0)
        return versions

    def pipelines(self, names: Collection[str] | None = None) -> ReadRows[StoredPipeline]:
        """Return the newest version of every pipeline that is not deleted and is listed (`model.canary.is_listed`), or
        of those of these names, by name."""
        table = tables.table_of(tables.PipelineRow)
        query = _versions(table).where(table.c.deleted_at.is_(None), _is_newest(table), _is_chosen(table, names))
        query = query.order_by(table.c.name)
        with self.engine.connect() as connection:
            return _read_versions(connection.execute(query))

    def newest_versions(self, names: Collection[str] | None = None) -> dict[str, int]:
        """Return the number of the newest version of every pipeline that is not deleted and is listed, or of those of
        these names, by name."""
        return {name: version for name, (version, _) in self.newest_stamps(names).items()}

    def newest_stamps(
        self, names: Iterable[str] | None = None, *, unlisted: bool = False
    ) -> dict[str, tuple[int, int]]:
        """Return the number of the newest version of every pipeline that is not deleted and is listed, with `unlisted`
        also of others, or of those of these names, by name, and its stamp as in `version_stamps`."""
        table = tables.table_of(tables.PipelineRow)
        statement = select(table.c.name, table.c.version, _STAMP.label("stamp"))
        statement = statement.where(table.c.deleted_at.is_(None), _is_newest(table))
        statement = statement.where(_is_chosen(table, names, unlisted=unlisted)).order_by(table.c.name)
        with self.engine.connect() as connection:
            return {row.name: (row.version, row.stamp) for row in connection.execute(statement)}

    def versions_of(self, name: str) -> ReadRows[StoredPipeline]:
        """Return every version of one pipeline, oldest first.

        Raises:
            UnknownPipeline: with the names there are.
            UnreadableDefinition: the newest one is not readable.
        """
        table = tables.table_of(tables.PipelineRow)
        with self.engine.connect() as connection:
            rows = connection.execute(_versions(table).where(table.c.name == name).order_by(table.c.version)).all()
        if not rows or rows[-1].deleted_at is not None:
            raise self._unknown(name)
        _read_one(rows[-1])
        return _read_versions(rows)

    def versions(self, known_versions: Mapping[str, int] | None = None) -> ReadRows[StoredPipeline]:
        """Return every version of every pipeline that is not deleted, by name and version; of pipelines in
        `known_versions` only later ones."""
        table, known_versions = tables.table_of(tables.PipelineRow), known_versions or {}
        with self.engine.connect() as connection:
            keys = connection.execute(
                select(table.c.name, table.c.version)
                .where(table.c.name.in_(names_not_deleted()))
                .order_by(table.c.name, table.c.version)
            )
            new_keys = [(name, version) for name, version in keys if version > known_versions.get(name, 0)]
        return self.versions_at(new_keys)

    def versions_at(self, keys: Sequence[tuple[str, int]]) -> ReadRows[StoredPipeline]:
        """Return these versions, given by name and number, as far as they are there, in the order of the keys."""
        table = tables.table_of(tables.PipelineRow)
        rows: list[Row[Any]] = []
        with self.engine.connect() as connection:
            for start in range(0, len(keys), 1_000):
                chosen = tuple_(table.c.name, table.c.version).in_(keys[start : start + 1_000])
                query = _versions(table).where(chosen).order_by(table.c.name, table.c.version)
                rows += connection.execute(query)
        return _read_versions(rows)

    def names(self, *, unlisted: bool = False) -> list[str]:
        """Return the pipelines that are not deleted and are listed, with `unlisted` also others, by name."""
        with self.engine.connect() as connection:
            names = list(connection.execute(names_not_deleted().order_by(tables.PipelineRow.name)).scalars())
        return [name for name in names if unlisted or is_listed(name)]

    def count_changes(self) -> int:
        """Return a number that is another one after each change of a definition, be it of a row in its place."""
        row = tables.PipelineRow
        # hashed: a sum of the stamps alone can stay the same when one row is removed and another written
        version = func.hashtextextended(func.concat(row.name, "/", row.version, "/", _STAMP), 0)
        with self.engine.connect() as connection:
            return int(connection.execute(select(func.coalesce(func.sum(version), 0))).scalar_one())

    def version_stamps(self) -> dict[str, dict[int, int]]:
        """Return the numbers of the versions of every pipeline that is not deleted, each with a stamp that is another
        one once its row was changed: the transaction that wrote it."""
        table = tables.table_of(tables.PipelineRow)
        statement = select(table.c.name, table.c.version, _STAMP.label("stamp")).where(
            table.c.name.in_(names_not_deleted())
        )
        stamps: dict[str, dict[int, int]] = {}
        with self.engine.connect() as connection:
            for row in connection.execute(statement.order_by(table.c.name, table.c.version)):
                stamps.setdefault(row.name, {})[row.version] = row.stamp
        return stamps

    def windows(self, pipeline: str, from_s: int, to_s: int, limit: int | None = None) -> list[ListedWindow]:
        """Return the windows with from <= start < to, oldest first (the newest `limit` of them)."""
        window = tables.table_of(tables.WindowRow)
        with self.engine.connect() as connection:
            rows = connection.execute(
                select(window)
                .where(window.c.pipeline == pipeline, window.c.window_start >= from_s, window.c.window_start < to_s)
                .order_by(window.c.window_start.desc())
                .limit(limit)
            ).all()
            closed = _readable(reversed(rows))
            opened = self._open_windows(connection, pipeline, from_s, to_s)
        windows = sorted(closed + opened, key=lambda window: window.window_start)
        return windows[-limit:] if limit else windows

    def closed_windows(self, pipeline: str, starts_s: Collection[int]) -> list[ListedWindow]:
        """Return those of these windows that are closed, oldest first."""
        window = tables.table_of(tables.WindowRow)
        with self.engine.connect() as connection:
            rows = connection.execute(
                select(window)
                .where(window.c.pipeline == pipeline, window.c.window_start.in_(starts_s))
                .order_by(window.c.window_start)
            )
            return _readable(rows)

    def missing(
        self, pipeline: str, window_start_s: int, limit: int = 1000, kinds: Sequence[str] = MISSING_KINDS
    ) -> list[MissingMessage]:
        """Return missing messages of a window that are of these kinds, lost ones first."""
        row = tables.MissingMessageRow
        rank = func.array_position(literal(list(MISSING_KINDS), ARRAY(Text)), row.kind)
        with self.engine.connect() as connection:
            rows = connection.execute(
                select(tables.table_of(row))
                .where(row.pipeline == pipeline, row.window_start == window_start_s, row.kind.in_(kinds))
                .order_by(rank, row.last_seen_ms)
                .limit(limit)
            )
            return [MissingMessage.of(row) for row in rows]

    def revisions(self, pipeline: str, window_start_s: int) -> list[ListedWindow]:
        """Return the earlier results of a window, oldest first."""
        row = tables.WindowRevisionRow
        with self.engine.connect() as connection:
            rows = connection.execute(
                select(row.revision, row.closed_at, row.document)
                .where(row.pipeline == pipeline, row.window_start == window_start_s)
                .order_by(row.revision)
            )
            results = [(row, unpack_window(pipeline, window_start_s, row.document, row.revision)) for row in rows]
            return [
                ListedWindow.of(result, "closed", row.revision, rfc3339(row.closed_at / 1000))
                for row, result in results
                if result is not None
            ]

    def rollups(self, pipeline: str, period: Period, from_s: int, to_s: int) -> dict[int, Rollup]:
        """Return roll-ups with from <= start < to by start (epoch s), oldest first. `Rollup.merged` adds them up."""
        row = tables.RollupRow
        with self.engine.connect() as connection:
            rows = connection.execute(
                select(row.start, row.packed)
                .where(row.pipeline == pipeline, row.period == period, row.start >= from_s, row.start < to_s)
                .order_by(row.start)
            )
            results = {row.start: unpack_rollup(pipeline, period, row.start, row.packed) for row in rows}
            return {start: rollup for start, rollup in results.items() if rollup is not None}

    def pipeline(self, name: str) -> StoredPipeline:
        """Return the newest version of one pipeline.

        Raises:
            UnknownPipeline: with the names there are.
            UnreadableDefinition: it is not readable.
        """
        with self.engine.connect() as connection:
            newest = _newest_version(connection, name)
        if newest is None or newest.deleted_at is not None:
            raise self._unknown(name)
        return _read_one(newest)

    def demand(self, name: str) -> None:
        """Check that a pipeline is there, whether its definition is readable or not.

        Raises:
            UnknownPipeline: with the names there are.
        """
        if name not in self.names(unlisted=True):
            raise self._unknown(name)

    def _unknown(self, name: str) -> UnknownPipeline:
        return _unknown_among(name, self.names())

    def definition_at(self, name: str, window_start_s: int) -> Definition:
        """Return the definition in force at a window's start: the newest version that was applied by then, else the
        first. UnknownPipeline as in `versions_of`; UnreadableDefinition if that one is not readable."""
        table = tables.table_of(tables.PipelineRow)
        was_applied = table.c.applied_at <= window_start_s * 1000
        of_name = _versions(table).where(table.c.name == name)
        with self.engine.connect() as connection:
            newest = _newest_version(connection, name)
            if newest is None or newest.deleted_at is not None:
                raise self._unknown(name)
            applied = connection.execute(of_name.where(was_applied).order_by(table.c.version.desc()).limit(1)).first()
            row = applied or connection.execute(of_name.order_by(table.c.version).limit(1)).one()
        return _read_one(row).definition

    def graph_at(self, name: str, window_start_s: int) -> Graph:
        """Return the graph of the definition in force at a window's start; UnknownPipeline as in `versions_of`."""
        return self.definition_at(name, window_start_s).graph

    def tallied(self, pipeline: str, window_start_s: int) -> tuple[list[tuple[tuple[OffsetRange, ...], int]], int]:
        """Return the offset ranges and the beacons of each of a window's tallies, and the lowest sample in them."""
        tally = tables.TallyRow
        with self.engine.connect() as connection:
            rows = connection.execute(
                select(tally.ranges, tally.beacons, tally.sample).where(
                    tally.pipeline == pipeline, tally.window_start == window_start_s
                )
            ).all()
        named = [(unpack_ranges(row.ranges), row.beacons) for row in rows]
        return named, min((row.sample for row in rows), default=SAMPLE_ALL)

    def is_sealed(self, pipeline: str, window_start_s: int) -> bool:
        """Return True if the window's result is final, since the log no longer holds its blocks."""
        window = tables.table_of(tables.WindowRow)
        with self.engine.connect() as connection:
            state = connection.execute(
                select(window.c.state).where(window.c.pipeline == pipeline, window.c.window_start == window_start_s)
            ).scalar_one_or_none()
        return state == "sealed"

    def _open_windows(self, connection: Connection, pipeline: str, from_s: int, to_s: int) -> list[ListedWindow]:
        """Return windows that have tallies but no result yet, from the tallies alone."""
        tally, window = tables.table_of(tables.TallyRow), tables.table_of(tables.WindowRow)
        rows = connection.execute(
            select(tally)
            .outerjoin(
                window, (window.c.pipeline == tally.c.pipeline) & (window.c.window_start == tally.c.window_start)
            )
            .where(
                tally.c.pipeline == pipeline,
                tally.c.window_start >= from_s,
                tally.c.window_start < to_s,
                window.c.pipeline.is_(None),
            )
        ).all()
        if not rows:
            return []
        newest = _newest_version(connection, pipeline)
        if newest is None or newest.deleted_at is not None:
            return []
        try:
            graph = _stored(newest).definition.graph
        except Exception:  # it is set aside: nothing can be said of windows that are open
            return []
        by_window: dict[int, list[LiveTally]] = {}
        for row in rows:
            by_window.setdefault(row.window_start, []).append(
                LiveTally(row.checkpoint, row.replay or None, row.beacons, row.sample, Sketch.from_bytes(row.sketch))
            )
        return [
            ListedWindow.of(live_result(graph, start, tallies), "open", 0, None)
            for start, tallies in sorted(by_window.items())
        ]


def _unknown_among(name: str, names: Sequence[str]) -> UnknownPipeline:
    return UnknownPipeline(
        pipeline=name, known=f"existing pipelines: {', '.join(names)}" if names else "no pipelines exist yet"
    )


def read_basis(connection: Connection) -> int:
    """Return the position in the reports as one number: the sum of next offsets. It only grows, until the topic is
    recreated."""
    return int(
        connection.execute(select(func.coalesce(func.sum(tables.ReportsPositionRow.next_offset), 0))).scalar_one()
    )


def names_not_deleted() -> Select[str]:
    """Pipelines whose newest version is not deleted. An earlier one is, where a pipeline was applied again."""
    row, later = tables.PipelineRow, aliased(tables.PipelineRow)
    is_newest = ~exists().where(later.name == row.name, later.version > row.version)
    return select(row.name).where(row.deleted_at.is_(None), is_newest)


def _is_newest(table: Table) -> ColumnElement[bool]:
    later = aliased(tables.table_of(tables.PipelineRow))
    return ~exists().where(later.c.name == table.c.name, later.c.version > table.c.version)


def _is_chosen(table: Table, names: Iterable[str] | None, *, unlisted: bool = False) -> ColumnElement[bool]:
    if names is not None:
        return tables.is_any(table.c.name, names)
    return true() if unlisted else table.c.name != CANARY


def _newest_version(connection: Connection, name: str) -> Row[Any] | None:
    table = tables.table_of(tables.PipelineRow)
    return connection.execute(
        _versions(table).where(table.c.name == name).order_by(table.c.version.desc()).limit(1)
    ).one_or_none()


def _versions(table: Table) -> Select[Any]:
    """Select versions with the definition's text: what is not readable as JSON must not spoil the rows around it."""
    columns = (table.c.name, table.c.version, table.c.applied_at, table.c.deleted_at)
    return select(*columns, cast(table.c.definition, Text).label("definition"))


def _of_all() -> Select[Any]:
    """Select every pipeline that is not deleted and is listed."""
    table = tables.table_of(tables.PipelineRow)
    return select(table.c.name).where(table.c.deleted_at.is_(None), _is_newest(table), _is_chosen(table, None))


def _apply(connection: Connection, definition: Definition, now_ms: int, max_per_day: int | None) -> int:
    newest = _newest_version(connection, definition.name)
    if newest is not None and newest.deleted_at is None and _is_same(newest, definition):
        return int(newest.version)
    if max_per_day is not None:
        _demand_room(connection, definition.name, now_ms, max_per_day)
    version = 1 if newest is None else newest.version + 1
    connection.execute(
        insert(tables.PipelineRow).values(
            name=definition.name, version=version, applied_at=now_ms, definition=as_document(definition)
        )
    )
    audit.note(connection, "definition.apply", definition.name, [definition.name], version=version)
    return version


def _delete(connection: Connection, name: str, now_ms: int) -> bool:
    """Delete a pipeline; return False if it is unknown."""
    newest = _newest_version(connection, name)
    if newest is None or newest.deleted_at is not None:
        return False
    table = tables.table_of(tables.PipelineRow)
    is_newest = (table.c.name == name) & (table.c.version == newest.version)
    connection.execute(update(table).where(is_newest).values(deleted_at=now_ms))
    audit.note(connection, "definition.delete", name, [name])
    return True


def _now_ms(connection: Connection) -> int:
    """Return the database's clock, which is the same for all who apply."""
    return int(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one() * 1000)


def _demand_room(connection: Connection, name: str, now_ms: int, max_per_day: int) -> None:
    row = tables.PipelineRow
    recent = select(row.applied_at).where(row.name == name, row.applied_at > now_ms - _DAY_MS)
    # the one that must leave the last 24 hours before there is room for another
    oldest_ms = connection.execute(recent.order_by(row.version.desc()).offset(max_per_day - 1).limit(1)).scalar()
    if oldest_ms is not None:
        wait_s = (oldest_ms + _DAY_MS - now_ms) // 1000 + 1
        raise TooManyVersions(pipeline=name, number=max_per_day, wait_s=wait_s)
    remedy = "An operator can store more with `lagloss apply`."
    demand_room(connection, select(row.version).where(row.name == name), MAX_VERSIONS, f"versions of {name}", remedy)


def _stored(row: Row[Any]) -> StoredPipeline:
    """Read a row of `_versions`. Raise whatever shows that this version of lagloss cannot use it."""
    if not 0 <= row.applied_at < MAX_MOMENT_MS:
        raise ValueError(f"expected applied_at in ms since the epoch, found {row.applied_at}")
    definition = Definition.of_stored(json.loads(row.definition))
    if definition.name != row.name:
        raise ValueError("expected a definition with the name of the pipeline, found a different name")
    _ = definition.graph, definition.all_taps  # which everything else builds on
    return StoredPipeline(row.name, row.version, row.applied_at, definition)


def _unreadable(row: Row[Any], why: str) -> UnreadableRow:
    return UnreadableRow("definition", row.name, str(row.version), why, row.applied_at)


def _read_versions(rows: Iterable[Row[Any]]) -> ReadRows[StoredPipeline]:
    return read_each(rows, _stored, _unreadable)


def _read_one(row: Row[Any]) -> StoredPipeline:
    try:
        return _stored(row)
    except Exception as error:
        raise UnreadableDefinition(pipeline=row.name, version=row.version, why=reason(error)) from error


def _is_same(row: Row[Any], definition: Definition) -> bool:
    try:
        return _stored(row).definition == definition
    except Exception:  # then a new version takes its place
        return False


def closed_window(row: Row[Any]) -> ListedWindow | None:
    """Return a row of the table `window`; None if its result cannot be read."""
    result = unpack_window(row.pipeline, row.window_start, row.document)
    if result is None:
        return None
    return ListedWindow.of(result, row.state, row.revision, rfc3339(row.closed_at / 1000), history=row.history)


def _readable(rows: Iterable[Row[Any]]) -> list[ListedWindow]:
    return [window for row in rows if (window := closed_window(row)) is not None]
