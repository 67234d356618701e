"""The feed of reports: a thread that consumes `lagloss.reports` and has each batch followed.

Its position lives in PostgreSQL, in the same transaction as what was followed: at start it begins where the database
says, and Kafka knows of no consumer group.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Self

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from aggregator.reports.batch import Checkpoints, ReportRecord
from aggregator.reports.consumer import ReportConsumer
from aggregator.reports.report_tables import ReportsPlace
from lagloss.broker.connection import KafkaConnection
from lagloss.broker.errors import is_of_group, needs
from lagloss_server.base.turns import WatchedLoop
from lagloss_server.queries.beacon_log import BeaconLog

BATCH_S: Final = 2.0
"""From one batch to the next, at least: of an emitter's reports in a batch the newest is written, so the longer the
cheaper, and numbers of open windows are that much older."""
BATCH_BYTES: Final = 32 << 20
"""Bytes of reports in a batch at most, which take some ten times as much memory while they are followed."""
AT_ONCE: Final = 1_000
"""Records that the client hands over at once."""
POLL_S: Final = 0.2
PARTITIONS_S: Final = 10.0
"""How often partitions that were added are looked for."""
BATCH_LIMIT_S: Final = 600.0
"""Longest normal time to read and follow one batch, of BATCH_BYTES."""
CLIENT: Final = {
    "group.id": "lagloss-reports",  # required by the client; nothing is ever committed or subscribed to
    "enable.auto.commit": False,
    "auto.offset.reset": "error",  # by default what is lost is passed over without a word
    "isolation.level": "read_uncommitted",  # a transaction that stays open must not hold up everybody's reports
    "queued.max.messages.kbytes": BATCH_BYTES >> 10,
    "log_level": 0,
}


class ReportFeed:
    """Thread that has all reports followed, from `start` to `close`; `look()` returns the checkpoints that are defined
    now."""

    def __init__(self, bootstrap: str, follower: ReportConsumer, look: Callable[[], Checkpoints]) -> None:
        self.loop = WatchedLoop("following reports", BATCH_LIMIT_S)
        self._follower = follower
        self._look = look
        self._log = BeaconLog(bootstrap, follower.topic)
        self._kafka = Consumer(KafkaConnection.of(bootstrap).client(CLIENT))
        self._partitions: set[int] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self._error: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def check(self) -> None:
        """Raise the error that ended it, if one did."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:
            self._error = error
        finally:
            self._kafka.close()
            self._log.close()

    def _follow(self) -> None:
        looked_at = ends_at = float("-inf")
        while not self._stopped.is_set():
            self.loop.finished()
            if time.monotonic() - looked_at >= PARTITIONS_S:
                self._assign_new()
                looked_at = time.monotonic()
            ends_at = max(ends_at + BATCH_S, time.monotonic())
            records = self._read(ends_at)
            if records:  # once a batch, and after it was read: whoever sent these had heard of a definition before
                with without_collections():
                    self._follower.follow(records, self._look())

    def _assign_new(self) -> None:
        """Begin to read the partitions that are not read yet, each where the database says.

        The consumer itself is not asked for them: librdkafka (2.16) compares epochs only where it learns who leads
        after it was assigned them.
        """
        new = [partition for partition in self._log.partitions() if partition not in self._partitions]
        if new:
            topic, places = self._follower.topic, self._follower.places()
            begins = [(at, places.get(at, ReportsPlace())) for at in new]
            # by the epoch (-1: none) the client learns that other records lie before the offset than those followed
            self._kafka.incremental_assign(
                [TopicPartition(topic, at, place.offset, leader_epoch=place.epoch) for at, place in begins]
            )
            self._partitions.update(new)

    def _read(self, ends_at: float) -> list[ReportRecord]:
        """Return the records that come until then (monotonic s), and those that have come already, as many as a batch
        may hold."""
        records: list[ReportRecord] = []
        size = 0
        while size < BATCH_BYTES and not self._stopped.is_set():
            left_s = ends_at - time.monotonic()
            messages = self._kafka.consume(AT_ONCE, timeout=max(0.0, min(left_s, POLL_S)))
            for message in messages:
                error = message.error()
                if error is None:
                    records.append(record := _record(message))
                    size += len(record.value or b"")
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    self._pass_over_lost(message.partition() or 0)
                elif not is_of_group(error):
                    raise KafkaException(needs(error, "READ", f"topic {self._follower.topic}"))
            if left_s <= 0 and len(messages) < AT_ONCE:
                break
        return records

    def _pass_over_lost(self, partition: int) -> None:
        """Go on behind what this partition has lost, and any other.

        Raises:
            ReportsLost: always.
        """
        places = dict.fromkeys(self._partitions, ReportsPlace()) | self._follower.places()
        self._follower.pass_over_lost(self._log, places, partition)


def _record(message: Message) -> ReportRecord:
    kind, appended_ms = message.timestamp()
    place = message.partition() or 0, message.offset() or 0
    epoch = message.leader_epoch()
    is_append_time = kind == TIMESTAMP_LOG_APPEND_TIME
    return ReportRecord(*place, appended_ms, message.value(), is_append_time, -1 if epoch is None else epoch)


@contextmanager
def without_collections() -> Iterator[None]:
    """Make no garbage collections while the block lasts: they would take half of the time of a batch, whose many
    objects have no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
