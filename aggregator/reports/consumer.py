"""Following reports: the newest state of emitters, lanes and tallies, kept with the position up to which they are
followed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import structlog
from sqlalchemy import Connection, Engine, text
from sqlalchemy.dialects.postgresql import insert

from aggregator import quarantine
from aggregator.clock import JudgementClock
from aggregator.outage import DatabaseRestored, ReportsLost
from aggregator.reports import deferral, report_tables
from aggregator.reports.batch import Checkpoints, ReportBatch, ReportRecord, position
from aggregator.reports.lost_reports import find_lost, pass_over
from aggregator.reports.report_tables import FollowingMemory, ReportsPlace
from aggregator.set_aside import isolate
from lagloss.wire.format import pipeline_of_report
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.store.partitions import ensure_days
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import read_basis

log = structlog.get_logger()


def hold_follower(connection: Connection) -> None:
    """Lock out other consumers of reports, and retention of the rows that they write, until this transaction ends.

    A lock of the table, since there may be no row to lock yet; a follower that lost its lease may work still.
    """
    connection.execute(text("LOCK TABLE reports_position IN SHARE ROW EXCLUSIVE MODE"))


class ReportConsumer:
    """Consumer of reports: writes each batch and its position to PostgreSQL in one transaction."""

    def __init__(
        self,
        engine: Engine,
        topic: str,
        topic_id: str,
        clock: JudgementClock | None = None,
        waiting: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Consume the topic with this id; `clock`: learns the broker's time from the reports; `waiting`: returns the
        pipelines whose reports cannot be followed yet."""
        self.engine = engine
        self.topic = topic
        self.topic_id = topic_id
        self._clock = clock
        self._waiting = waiting
        self._reached: Mapping[int, int] = {}
        """Positions that the database has had already."""
        self._memory: FollowingMemory | None = None
        self._had_its_turn = ""
        """The pipeline whose deferred reports were followed last."""

    def positions(self) -> dict[int, int]:
        """Next offset to follow of each partition known so far.

        Raises:
            DatabaseRestored: the database does not know any more what it knew.
        """
        reached = self._reached  # before the database is asked: a batch may be committed meanwhile
        with self.engine.connect() as connection:
            positions = report_tables.read_positions(connection)
        self._note(positions, reached)
        return positions

    def places(self) -> dict[int, ReportsPlace]:
        """Return up to where each partition known so far is followed."""
        with self.engine.connect() as connection:
            return report_tables.read_places(connection)

    def pass_over_lost(self, reports: BeaconLog, places: Mapping[int, ReportsPlace], cut: int | None = None) -> None:
        """Note what the log has lost that comes at these places, and go on behind it; `cut`: as for `find_lost`.

        Raises:
            ReportsLost: if there was any. Whoever knows the old positions has to begin anew.
        """
        now_ms = int(time.time() * 1000) if self._clock is None else self._clock.now_ms()
        lost = find_lost(reports, places, now_ms, cut)
        if not lost:
            return
        with self.engine.begin() as connection:
            hold_follower(connection)
            for of_partition in lost:
                pass_over(connection, of_partition, self.topic_id)
        self._reached = {}
        for partition, resume_at, whole_from, is_cut in lost:
            facts = {"expected": places[partition].offset, "resumed_at": resume_at, "cut": is_cut}
            log.warning("reports lost", partition=partition, **facts, whole_from=rfc3339(whole_from / 1000))
        raise ReportsLost(f"the log has lost reports of partitions {sorted(part.partition for part in lost)}")

    def follow(self, records: Iterable[ReportRecord], checkpoints: Checkpoints) -> int:
        """Take a batch of records in; those already followed are passed over. How many were new.

        A record that cannot be followed, for whatever reason but an outage, is quarantined as `failed`.

        Raises:
            DatabaseRestored: the records between the database's position and these would never be followed.
        """
        ordered = sorted(records, key=lambda record: (record.partition, record.offset))
        return isolate(ordered, lambda some: self._follow(some, checkpoints), self._quarantine)

    def _follow(self, records: Sequence[ReportRecord], checkpoints: Checkpoints) -> int:
        """Follow records in one transaction, which come in order in each partition."""
        with self.engine.begin() as connection:
            hold_follower(connection)
            followed_to = report_tables.read_positions(connection)
            self._note(followed_to, self._reached)
            fresh = [record for record in records if record.offset >= followed_to.get(record.partition, 0)]
            deferred = deferral.read_deferred(connection)
            crowding = self._crowding(fresh, checkpoints)
            later = deferred.keys() | crowding | set(self._waiting())
            memory = self._recall(connection, checkpoints)
            followed, passed_over = ReportBatch(memory.accounts, strangers=memory.strangers), []
            now = sorted(fresh, key=position)
            if later:
                pipelines = [pipeline_of_report(record.value) for record in now]
                passed_over = [(name, record) for name, record in zip(pipelines, now, strict=True) if name in later]
                now = [record for name, record in zip(pipelines, now, strict=True) if name not in later]
            for _, record in passed_over:
                followed.pass_over(record)
            followed.take(now, checkpoints, partial(report_tables.read_histories, connection))
            deferral.defer(connection, passed_over)
            memory.basis = self._write(connection, followed)
        self._reached, self._memory = {**followed_to, **followed.positions}, memory
        for name in sorted(crowding - deferred.keys()):
            log.warning("deferred", pipeline=name, reports=sum(pipeline == name for pipeline, _ in passed_over))
        if fresh and self._clock is not None:
            last = {record.partition: (record.offset, record.appended_ms) for record in fresh if record.is_append_time}
            self._clock.heard(max(record.appended_ms for record in fresh), last)
        return len(fresh)

    def _crowding(self, records: Sequence[ReportRecord], checkpoints: Checkpoints) -> set[str]:
        """Return the pipelines whose reports are followed later, if there are others to make room for."""
        if self._clock is None or len(checkpoints) < 2:
            return set()
        return deferral.crowding(records, self._clock.now_ms())

    def _quarantine(self, record: ReportRecord, error: Exception) -> None:
        """Pass over a record that cannot be followed."""
        with self.engine.begin() as connection:
            hold_follower(connection)
            failed = _failed(record, error)
            positions = {**report_tables.read_positions(connection), **failed.positions}
            self._write(connection, failed)
        self._reached = positions

    def follow_deferred(self, reports: BeaconLog, look: Callable[[], Checkpoints]) -> bool:
        """Follow the next deferred reports of one pipeline, of each in turn; return whether there were any. `look`:
        returns the checkpoints that are defined now, for reports read before.

        Raises:
            ReportsLost: retention has deleted some of them. That is noted.
        """
        try:
            return self._follow_turn(reports, look)
        except ReportsLost:  # noted in a transaction of its own
            with self.engine.connect() as connection:
                deferred = deferral.read_deferred(connection)
            first: dict[int, ReportsPlace] = {}
            for partition, offset in (marker for markers in deferred.values() for marker in markers.items()):
                first[partition] = min(ReportsPlace(offset), first.get(partition, ReportsPlace(offset)))
            self.pass_over_lost(reports, first)
            raise

    def _follow_turn(self, reports: BeaconLog, look: Callable[[], Checkpoints]) -> bool:
        waiting = set(self._waiting())
        with self.engine.connect() as connection:
            if not deferral.read_deferred(connection).keys() - waiting:
                return False
        with self.engine.begin() as connection:
            hold_follower(connection)
            deferred = {
                name: offsets for name, offsets in deferral.read_deferred(connection).items() if name not in waiting
            }
            if not deferred:
                return False
            pipeline = min(deferred, key=lambda name: (name <= self._had_its_turn, name))
            ends = report_tables.read_positions(connection)
            records, reached = deferral.read_turn(reports, pipeline, deferred[pipeline], ends)
            marks = look()
            if pipeline in self._waiting():
                return False

            def follow(some: Sequence[ReportRecord]) -> int:
                memory = FollowingMemory.read(connection, marks.keys())
                batch = ReportBatch(memory.accounts, strangers=memory.strangers)
                batch.take(sorted(some, key=position), marks, partial(report_tables.read_histories, connection))
                with connection.begin_nested():
                    self._write_again(connection, batch)
                return len(some)

            isolate(
                records,
                follow,
                lambda record, error: self._write_again(connection, _failed(record, error)),
            )
            is_done = deferral.settle(connection, pipeline, reached, ends)
        self._had_its_turn = pipeline
        log.info("deferred reports consumed", pipeline=pipeline, reports=len(records), caught_up=is_done)
        return True

    def _write_again(self, connection: Connection, followed: ReportBatch) -> None:
        """Write reports that the stream has passed over: its positions stay, and the turn is counted instead."""
        followed.positions = {}
        report_tables.add_turns(connection, 1, self.topic_id)
        self._write(connection, followed)

    def _note(self, counts: Mapping[int, int], reached: Mapping[int, int]) -> None:
        if any(counts.get(partition, 0) < offset for partition, offset in reached.items()):
            raise DatabaseRestored(
                f"expected the stored position of reports to be {dict(reached)} or later, found {dict(counts)}"
            )
        if reached is self._reached:
            self._reached = counts

    def _recall(self, connection: Connection, checkpoints: Checkpoints) -> FollowingMemory:
        """Return what the last batch left; read it again once an hour, after a failure, and if others wrote since."""
        memory, self._memory = self._memory, None
        if memory is None or memory.is_stale or memory.basis != read_basis(connection):
            return FollowingMemory.read(connection, checkpoints.keys())
        return memory

    def _write(self, connection: Connection, followed: ReportBatch) -> int:
        """Write a batch; return the basis of its changes: the position after it, as one number (see `read_basis`)."""
        self._move(connection, followed)
        basis = read_basis(connection)
        ensure_days(connection, {key[1] for key in followed.tallies})
        report_tables.merge_emitters(connection, followed)
        report_tables.merge_lanes(connection, followed)
        report_tables.merge_tallies(connection, followed, basis)
        report_tables.insert_strangers(connection, followed.strangers)
        bad = followed.bad.values()
        rows = [(record.partition, record.offset, reason, record.value) for record, reason in bad]
        quarantine.record(connection, self.topic, rows)
        quarantine.count(connection, self.topic, Counter((reason, record.appended_ms) for record, reason in bad))
        return basis

    def _move(self, connection: Connection, followed: ReportBatch) -> None:
        places = [
            {
                "topic_partition": partition,
                "next_offset": offset,
                "topic_id": self.topic_id,
                "leader_epoch": followed.last[partition].epoch,
                "appended_at": followed.last[partition].appended_ms,
            }
            for partition, offset in followed.positions.items()
        ]
        if places:
            upsert = insert(tables.ReportsPositionRow).values(places)
            replaced = {name: upsert.excluded[name] for name in places[0]}
            connection.execute(upsert.on_conflict_do_update(index_elements=["topic_partition"], set_=replaced))


def _failed(record: ReportRecord, error: Exception) -> ReportBatch:
    log.error("report failed", partition=record.partition, offset=record.offset, exc_info=error)
    failed = ReportBatch()
    failed.quarantine(record, "failed")
    return failed
