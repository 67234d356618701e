"""The service: one driver that follows reports and closes windows, and waits where a server is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import structlog
from pyspark.sql import SparkSession
from sqlalchemy import Connection, Engine, event, text

from aggregator import quarantine
from aggregator.clock import Catchup, JudgementClock
from aggregator.closing import report_state
from aggregator.closing.closer import Closer
from aggregator.closing.definitions import DefinitionRegistry
from aggregator.consumer_lag.watch import ConsumerLagWatch, WatchedGroups
from aggregator.kernel.spark_reader import AGGREGATOR_JOB, BlockReader
from aggregator.maintenance.retention import Retention
from aggregator.maintenance.sampling_publisher import SampleAnnouncer
from aggregator.maintenance.tasks import MaintenanceLoop
from aggregator.metrics import AggregatorMetrics
from aggregator.outage import LeaseHeld, Outage, TopicRecreated, hang, is_outage, outage_of
from aggregator.reports.consumer import ReportConsumer
from aggregator.reports.feed import ReportFeed
from aggregator.reports.lost_reports import by_brokers
from aggregator.reports.report_tables import known_partitions, notice_recreated_topics
from aggregator.results.newest import read_newest
from aggregator.results.otlp import pushing
from aggregator.set_aside import SetAside
from lagloss.broker.topics import BEACONS, REPORTS, SAMPLING
from lagloss.errors import LaglossError
from lagloss_server.base.settings import Settings
from lagloss_server.base.turns import Turns, WatchedLoop
from lagloss_server.net import server_watch
from lagloss_server.ops.disk import LOW_SHARE, free_share
from lagloss_server.ops.spark_session import cancelling_jobs, check_session, spark_answers, start_session
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.store.migrate import demand_newest, revisions
from lagloss_server.store.ownership import AGGREGATOR, Lease, OwnerSession
from lagloss_server.store.store import Store
from lagloss_server.store.unreadable import some_of

log = structlog.get_logger()

LEASE_S = 60.0
"""Of a holder that gives no sign of life for so long, because it is paused or cut off, the server ends the session: the
lease is free."""
_REVISION: Final = text("SELECT version_num FROM alembic_version")
TRANSACTION_IDLE_S = 120
"""A transaction in which its client does nothing for so long is ended: one that is paused must not lock out others.
Ours compute for some seconds between two statements."""
IDLE_S = 0.5
MAX_PAUSE_S = 30.0
STATEMENT_S = 600
"""A statement that takes longer waits for a lock that is not given up. Retention deletes for minutes."""
TURN_LIMIT_S = 600.0
"""Longest normal time between two commits: that of one read of Spark's (reading.BEACONS_PER_PARTITION), on a slow
machine."""


class Aggregator:
    """Everything in one process; `run` returns when `stop` is set."""

    def __init__(
        self, settings: Settings, beacons: str = BEACONS, reports: str = REPORTS, sampling: str = SAMPLING
    ) -> None:
        self.settings = settings
        self.metrics = AggregatorMetrics()
        self.ready = threading.Event()
        self.trouble: Outage | None = None
        """The outage that the work met and waits for; None when it met none."""
        self.turns = Turns()
        self._clock = JudgementClock()
        self.metrics.disk_free_ratio.set_function(lambda: free_share(settings.data_dir))
        self._work_loop = WatchedLoop("the main loop", TURN_LIMIT_S)
        self.metrics.waiting(self.outage)
        self.set_aside: Callable[[], Sequence[str]] = tuple
        """Return the names of what is set aside."""
        self.deferred: Callable[[], Collection[str]] = tuple
        """Return the pipelines whose reports are deferred."""
        self._beacons, self._reports, self._sampling = beacons, reports, sampling

    def health_problem(self) -> str | None:
        """Return the reason for a failed /healthz: the aggregator has not started, or waits for a server. None when it
        works."""
        if not self.ready.is_set():
            return "starting"
        outage = self.outage()
        return "; ".join([str(outage), *self._disk_note()]) if outage else None

    def outage(self) -> Outage | None:
        """Return why nothing is followed or closed right now: a loop that is not well, or what the work has met. Work
        that hangs cannot take back what it met before, so that of another server is the older news."""
        trouble = self.trouble
        hangs = [hang(loop, problem, time.time()) for loop, problem in self.turns.unwell()]
        if trouble is not None and any(outage.server == trouble.server for outage in hangs):
            return trouble
        return next(iter(hangs), trouble)

    def stands_by(self) -> bool:
        """Return whether it lacks nothing but the lease, which another aggregator holds."""
        outage = self.outage()
        return self.ready.is_set() and outage is not None and outage.server == "lease"

    def health_note(self) -> str:
        """Return the text of a healthy /healthz: what is set aside or deferred, and a disk that gets full."""
        notes = {"failed or unreadable": self.set_aside(), "deferred": sorted(self.deferred())}
        shown = (f"{what}: {some_of(names)}" for what, names in notes.items() if names)
        return "; ".join(["ok", *shown, *self._disk_note()])

    def _disk_note(self) -> list[str]:
        """Return what is said of a disk of the data directory that is nearly full."""
        share = free_share(self.settings.data_dir)
        return [f"disk: {share:.1%} free"] if share < LOW_SHARE else []

    def run(self, stop: threading.Event) -> None:
        """Start Spark, then work until `stop` is called; wait with backoff for servers that are down.

        Raises:
            SparkEnded: Spark's own process has ended; only a new process of ours has a new one.
        """
        spark = start_session(
            AGGREGATOR_JOB,
            self.settings.spark_master,
            self.settings.spark_driver_memory,
            Path(self.settings.data_dir) / "spark",
            self.settings.spark_driver_host,
        )
        push = pushing(self.metrics.results.current)
        try:
            kafka, database = self.settings.require_kafka(), self.settings.require_database()
            servers = {
                "PostgreSQL": server_watch.postgresql(database),
                "Kafka": server_watch.kafka(kafka),
                "Spark": spark_answers(spark),
            }
            with (
                cancelling_jobs(spark, stop),
                server_watch.watching(self.turns, servers),
                self.turns.running(self._work_loop),
            ):
                self._work_on(spark, stop)
        finally:
            push.close()
            spark.stop()

    def _work_on(self, spark: SparkSession, stop: threading.Event) -> None:
        while not stop.is_set():
            self._work_loop.finished()
            try:
                self._work(spark, stop)
            except LaglossError:  # a setting that is missing, or Spark's end: the operator's
                raise
            except Exception as error:  # an outage, or our bug that concerns more than one window
                if stop.is_set() and is_outage(error):
                    return  # what was read is read again at the next start
                check_session(spark)
                trouble = self._wait_for(error)
                pause_s = min(max(IDLE_S, time.time() - trouble.since_s), MAX_PAUSE_S)  # so it doubles
                facts = {"server": trouble.server, "trouble": trouble.text, "pause_s": round(pause_s, 1)}
                log.warning("waiting", **facts, exc_info=None if is_outage(error) else error)
                stop.wait(pause_s)

    def _wait_for(self, error: BaseException) -> Outage:
        """Record the outage that an error stands for, as a continuation of the current one."""
        self.trouble = outage_of(error, time.time()).lasting(self.trouble)
        self.ready.set()
        return self.trouble

    def _note_outage(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        """Record the outage before anything is closed: ending what uses a broker takes up to a call's time-out."""
        if error is not None and is_outage(error):
            self._wait_for(error)

    def _work(self, spark: SparkSession, stop: threading.Event) -> None:
        """Work from connecting to the first outage. All state in memory is built anew each time, so that PostgreSQL can
        be another one by then (restored from a backup)."""
        bootstrap = self.settings.require_kafka()
        with ExitStack() as stack:
            settings = {
                "idle_in_transaction_session_timeout": f"{TRANSACTION_IDLE_S}s",
                "statement_timeout": f"{STATEMENT_S}s",
            }
            session = stack.enter_context(closing(OwnerSession(self.settings.require_database(), LEASE_S)))
            store = stack.enter_context(closing(Store(self.settings.require_database(), **settings)))
            session.attend(store.engine)
            event.listen(store.engine, "commit", self._mark_progress(threading.get_ident()))
            demand_newest(store.engine)
            lease = Lease(AGGREGATOR, session)
            while not lease.acquire():
                self._work_loop.finished()
                self._wait_for(LeaseHeld("another aggregator holds the lease"))
                if stop.wait(IDLE_S):
                    return
            if self.trouble is not None and self.trouble.server == "lease":
                self.trouble = None  # waited for no longer, however long the first round takes
            stack.enter_context(fencing(store.engine, lease))
            beacons = stack.enter_context(closing(BeaconLog(bootstrap, self._beacons)))
            reports = stack.enter_context(closing(BeaconLog(bootstrap, self._reports)))
            reports_id = reports.topic_id()
            watch = DefinitionRegistry(store.engine, store, self.metrics)
            follower = ReportConsumer(store.engine, self._reports, reports_id, self._clock, lambda: watch.waiting)
            now_ms = by_brokers(reports, self._clock.now_ms())
            notice_recreated_topics(store.engine, beacons.topic_id(), reports_id, now_ms)
            for log_, partitions in zip((beacons, reports), known_partitions(store.engine), strict=True):
                log_.know(partitions)
            reader = BlockReader(spark, bootstrap, self._beacons, len(beacons.partitions()))
            watch.refresh()
            stack.enter_context(self.metrics.showing(lambda: read_newest(store, list(watch.newest.values()))))
            self.deferred = lambda: watch.deferred
            failures = SetAside(store.engine)
            self.set_aside = failures.names
            self.metrics.set_aside.counts = failures.counts
            closer = Closer(store.engine, watch, reader, beacons, self.metrics, failures, self.settings.verify_share)
            retention = Retention(store.engine, closer, watch, self.metrics, self.settings)
            announcer = stack.enter_context(closing(SampleAnnouncer(bootstrap, self._sampling)))
            upkeep, catchup = (
                MaintenanceLoop(store.engine, closer, watch, retention, self.metrics, failures, announcer),
                Catchup(),
            )
            lag_watch = ConsumerLagWatch(
                bootstrap,
                store.engine,
                lambda: WatchedGroups(watch.groups, watch.expressions, self.settings.groups),
                self.metrics,
                failures,
            )
            stack.enter_context(closing(lag_watch)).start()
            feed = stack.enter_context(ReportFeed(bootstrap, follower, watch.look))
            stack.enter_context(self.turns.running(lag_watch.loop, feed.loop))
            stack.push(self._note_outage)
            while not stop.is_set():
                self._work_loop.finished()
                session.check()
                if reports.topic_id() != reports_id:
                    raise TopicRecreated(f"{self._reports} was recreated")
                feed.check()
                now_ms = self._clock.now_ms()
                caught_up_ms = catchup.update(now_ms, follower.positions(), reports.ends)
                if catchup.passed is not None:
                    self._clock.check(*catchup.passed)
                self._observe(store, now_ms, caught_up_ms)
                failures.replace_definitions(watch.unreadable, int(time.time() * 1000))
                busy = follower.follow_deferred(reports, watch.look)
                if caught_up_ms and self._clock.is_settled():
                    closed, answered = closer.tick(caught_up_ms, now_ms), upkeep.tick(caught_up_ms)
                    busy = busy or closed or answered
                    self.trouble = None  # a round of all of it has come to its end
                self.ready.set()
                if not busy:
                    stop.wait(IDLE_S)

    def _mark_progress(self, worker: int) -> Callable[[Connection], None]:
        """Return what marks a commit of this thread: a turn with much to close takes minutes."""

        def committed(_: Connection) -> None:
            if threading.get_ident() == worker:
                self._work_loop.finished()

        return committed

    def _observe(self, store: Store, now_ms: int, caught_up_ms: int) -> None:
        self.metrics.caught_up_seconds.set((now_ms - caught_up_ms) / 1000 if caught_up_ms else float("nan"))
        with store.engine.connect() as connection:
            self.metrics.clock_skew_seconds.set(report_state.largest_skew_ms(connection, caught_up_ms) / 1000)
            for (topic, reason), count in quarantine.counts(connection).items():
                self.metrics.bad_records.labels(topic, reason).set(count)


@contextmanager
def fencing(engine: Engine, lease: Lease) -> Iterator[None]:
    """Let no transaction of this engine commit in the block unless the lease is held, until it is committed, and the
    tables are of this version.

    A process that was paused may have lost the lease without a word, in the middle of a transaction; another has taken
    over then. Or an upgrade has migrated the tables under a process that still runs, whose rows are no longer what they
    hold. Such a commit raises LeaseHeld.
    """

    def demand(connection: Connection) -> None:
        if not lease.is_held(connection):
            raise LeaseHeld("the lease was lost")
        revision = connection.execute(_REVISION).scalar_one()
        if revision != revisions()[0]:
            raise LeaseHeld(f"the tables were migrated to revision {revision}")

    event.listen(engine, "commit", demand)
    try:
        yield
    finally:
        event.remove(engine, "commit", demand)
