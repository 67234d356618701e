"""warehouse: clicks to a table of PostgreSQL, some at a time, each batch in one transaction.

It stands for a sink that knows nothing of lagloss, and sends no beacons: lagloss reads its commits and its rows. An
offset is committed once its row is. With `commit_first` it is the other way round, the bad example: a process that is
killed leaves clicks that are committed, and that no table has.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import psycopg

from pipeline_under_test.stream.events.schema import SchemaReader, reader_of
from pipeline_under_test.stream.nodes.connector import Deliverer
from pipeline_under_test.stream.nodes.loop import AtMostOnceLoop, Loop
from pipeline_under_test.stream.nodes.worker import OutboundEvent
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.table import Click, store_clicks
from pipeline_under_test.stream.topology import WAREHOUSE

log = logging.getLogger(__name__)

LINGER_S: Final = 0.1
"""How long a click waits for others to fill its batch."""
BATCHES_QUEUED: Final = 4
AGAIN_S: Final = 1.0
"""Pause after the database has refused a batch; it is stored again, each click once."""


class TableOutlet:
    """Stores events in batches; an event is delivered once its transaction is committed."""

    def __init__(self, settings: ReferenceSettings, loop: Loop, reader: SchemaReader) -> None:
        self._loop = loop
        self._reader = reader
        self._pipeline = settings.pipeline
        self._url = settings.database_url
        self._batch = settings.batch
        self._waiting: deque[tuple[float, OutboundEvent]] = deque()
        self._alone = 0
        """So many of the next ones are stored each by itself: the table does not take one of them."""
        self._not_before = 0.0
        self._connection: psycopg.Connection[Any] | None = None

    @property
    def ready(self) -> bool:
        return len(self._waiting) < BATCHES_QUEUED * self._batch

    def send(self, outbound: OutboundEvent) -> None:
        self._waiting.append((time.monotonic(), outbound))

    def step(self) -> None:
        """Store the next batch if it is full or has waited. What the table does not take is dead."""
        now = time.monotonic()
        if not self._waiting or now < self._not_before:
            return
        if len(self._waiting) < self._batch and now - self._waiting[0][0] < LINGER_S:
            return
        batch = [outbound for _, outbound in itertools.islice(self._waiting, 1 if self._alone else self._batch)]
        try:
            self._store(batch)
        except psycopg.DataError as error:
            if len(batch) > 1:
                self._alone = len(batch)
                return
            self._loop.rejected(batch[0], f"refused by the table: {type(error).__name__}")
        except psycopg.Error as error:
            log.warning("storing %d clicks again in %.0f s: %s", len(batch), AGAIN_S, error)
            self.close()
            self._not_before = now + AGAIN_S
            return
        else:
            for outbound in batch:
                self._loop.delivered(outbound)
        self._alone = max(0, self._alone - len(batch))
        for _ in batch:
            self._waiting.popleft()

    def close(self) -> None:
        """Abandon what is not stored: it is read again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _store(self, batch: Sequence[OutboundEvent]) -> None:
        if self._connection is None:
            self._connection = psycopg.connect(self._url, autocommit=True)
        store_clicks(self._connection, self._pipeline, [self._click(outbound) for outbound in batch])

    def _click(self, outbound: OutboundEvent) -> Click:
        event = outbound.event
        return event.id, event.event_time_ms, self._reader.decode(event.body)["url"]


def warehouse(settings: ReferenceSettings) -> tuple[Loop, TableOutlet]:
    """Return the loop of the warehouse, with the outlet to run it with."""
    reader = reader_of(settings.bootstrap, settings.pipeline)
    kind = AtMostOnceLoop if settings.commit_first else Loop
    loop = kind(WAREHOUSE, settings.model_copy(update={"taps": True}), Deliverer(reader))
    return loop, TableOutlet(settings, loop, reader)
