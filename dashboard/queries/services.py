"""Services that pages and the API share: one of each a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from confluent_kafka import KafkaException

from dashboard.access.scoped_store import ScopedStore
from dashboard.queries.overview import Overview, OverviewCache
from dashboard.queries.shared_reads import SharedReads
from dashboard.queries.window_cache import LoggedWindows
from dashboard.queries.window_changes import WindowChanges
from dashboard.request.threads import Threads
from lagloss.broker.errors import kafka_error, unreachable
from lagloss.broker.topics import BEACONS
from lagloss.errors import KafkaUnreachable
from lagloss_server.base.settings import Settings
from lagloss_server.base.trace_links import TraceLinks
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.store.store import Store

_MAX_DRAWN: Final = 200
"""Pages as they were last drawn, some 100 KB each."""
_MAX_READ: Final = 20
"""What pages read last, up to some MB each over a long range."""
_MAX_ANSWERS: Final = 20_000_000
"""Bytes of the API's answers as they were last given."""


@dataclass(frozen=True, slots=True)
class Services:
    """`store`: what everything is read from. Handlers reach it in `threads`: they never block their event loop.
    `logged`: the windows last read from the log; `changes`: of windows, from when the server starts; `overviews`,
    `reads`, `drawn` and `answers`: what readers share. What answers people has those of `scoped`."""

    store: Store
    settings: Settings
    threads: Threads = field(default_factory=Threads)
    logged: LoggedWindows = field(default_factory=LoggedWindows)
    changes: WindowChanges = field(default_factory=WindowChanges)
    overviews: OverviewCache = field(default_factory=OverviewCache)
    reads: SharedReads[Any] = field(default_factory=lambda: SharedReads(_MAX_READ))
    drawn: SharedReads[Any] = field(default_factory=lambda: SharedReads(_MAX_DRAWN))
    answers: SharedReads[bytes] = field(default_factory=lambda: SharedReads(_MAX_ANSWERS, len))

    @property
    def trace_links(self) -> TraceLinks:
        """Where traces are shown."""
        return TraceLinks(self.settings.trace_url)

    def overview(self) -> Overview:
        """Return how the pipelines stand that whoever asks may see."""
        return self.overviews.read(self.store, self.changes)

    def scoped(self) -> Services:
        """Return the same services with a store that reads only what the person who asks may see."""
        return replace(self, store=ScopedStore(self.store))

    @contextmanager
    def log(self) -> Iterator[BeaconLog]:
        """Return the log of beacons, for one read: its consumer lets in one thread at a time.

        Raises:
            NotConfigured, KafkaUnreachable: there is no Kafka, or it does not answer.
        """
        bootstrap = self.settings.require_kafka()
        try:
            with closing(BeaconLog(bootstrap, BEACONS)) as opened:
                yield opened
        except KafkaException as error:
            raise unreachable(bootstrap, kafka_error(error)) from error
        except TimeoutError as error:  # of a future of the admin client
            raise KafkaUnreachable(bootstrap=bootstrap, detail="no response in time") from error
