"""The service: one driver that follows reports and closes windows, and waits where a server is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from confluent_kafka import KafkaException
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, OperationalError

from aggregator import quarantine
from aggregator.catchup import Catchup
from aggregator.closing import Closer
from aggregator.following import ReportFollower, start_stream
from aggregator.metrics import Metrics
from aggregator.reading import BlockReader
from aggregator.recreation import notice_recreated_topics
from aggregator.session import start_session
from aggregator.upkeep import Upkeep
from lagloss.beacon_log import BeaconLog
from lagloss.settings import Settings
from lagloss.store import Store
from lagloss.topics import BEACONS, REPORTS

log = structlog.get_logger()

LEASE = 0x1A6_1055
"""The advisory lock of PostgreSQL that the one closer holds."""
IDLE_S = 0.5
MAX_PAUSE_S = 30.0
TRANSIENT = (DBAPIError, KafkaException, PySparkException, ConnectionError, TimeoutError)


class Aggregator:
    """Everything in one process; `run` returns when `stop` is set."""

    def __init__(self, settings: Settings, beacons: str = BEACONS, reports: str = REPORTS) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.ready = threading.Event()
        self.trouble: str | None = None
        """Why nothing is followed or closed right now, for /healthz; None when all is well."""
        self._beacons, self._reports = beacons, reports

    def run(self, stop: threading.Event) -> None:
        """Start Spark, then work until told to stop; servers that are away are waited for with backoff."""
        spark = start_session(
            self.settings.spark_master,
            self.settings.spark_driver_memory,
            Path(self.settings.data_dir) / "spark",
            self.settings.spark_driver_host,
        )
        pause_s = IDLE_S
        try:
            while not stop.is_set():
                try:
                    self._work(spark, stop)
                except TRANSIENT as error:
                    self.trouble = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                    self.ready.set()
                    log.warning("waiting", trouble=self.trouble, pause_s=pause_s)
                    stop.wait(pause_s)
                    pause_s = min(2 * pause_s, MAX_PAUSE_S)
                if self.trouble is None:
                    pause_s = IDLE_S
        finally:
            spark.stop()

    def _work(self, spark: SparkSession, stop: threading.Event) -> None:
        """One spell of work, from connecting to the first trouble."""
        bootstrap = self.settings.require_kafka()
        store = Store(self.settings.require_database())
        beacons, reports = BeaconLog(bootstrap, self._beacons), BeaconLog(bootstrap, self._reports)
        follower = ReportFollower(store.engine, self._reports, reports.topic_id())
        notice_recreated_topics(store.engine, beacons.topic_id(), reports.topic_id())
        reader = BlockReader(spark, bootstrap, self._beacons, len(beacons.partitions()))
        closer = Closer(store.engine, store, reader, beacons, self.metrics)
        upkeep = Upkeep(closer)
        stream: StreamingQuery | None = None
        lease = Lease(store)
        try:
            while not stop.is_set() and not lease.is_held():
                self.trouble = "another aggregator holds the lease"
                self.ready.set()
                stop.wait(IDLE_S)
            closer.refresh()
            stream = start_stream(spark, bootstrap, follower, reports.partitions(), lambda: closer.checkpoints)
            catchup = Catchup()
            while not stop.is_set():
                lease.check()
                if not stream.isActive:
                    raise stream.exception() or ConnectionError("the stream of reports ended")
                now_ms = int(time.time() * 1000)
                caught_up_ms = catchup.update(now_ms, follower.positions(), reports.ends)
                self._observe(store, now_ms, caught_up_ms)
                busy = bool(caught_up_ms) and (closer.tick(caught_up_ms, now_ms) or upkeep.tick(caught_up_ms))
                self.trouble = None
                self.ready.set()
                if not busy:
                    stop.wait(IDLE_S)
        finally:
            if stream is not None and stream.isActive:
                stream.stop()
            lease.give_back()
            beacons.close()
            reports.close()
            store.engine.dispose()

    def _observe(self, store: Store, now_ms: int, caught_up_ms: int) -> None:
        self.metrics.caught_up_seconds.set((now_ms - caught_up_ms) / 1000 if caught_up_ms else float("nan"))
        with store.engine.connect() as connection:
            for (topic, reason), count in quarantine.counts(connection).items():
                self.metrics.bad_records.labels(topic, reason).set(count)


class Lease:
    """One closer at a time: an advisory lock on a connection of its own, given free by the server when that breaks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connection: Connection | None = None

    def is_held(self) -> bool:
        if self._connection is None:
            self._connection = self._store.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        taken = self._connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": LEASE}).scalar_one()
        return bool(taken)

    def check(self) -> None:
        """Raises OperationalError where the connection, and with it the lease, is gone."""
        if self._connection is None:
            raise ConnectionError("the lease was never taken")
        self._connection.execute(text("SELECT 1"))

    def give_back(self) -> None:
        if self._connection is not None:
            try:
                self._connection.execute(text("SELECT pg_advisory_unlock_all()"))
            except OperationalError:
                log.debug("lease already gone")
            self._connection.close()
            self._connection = None


def serve(aggregator: Aggregator, host: str, port: int) -> Callable[[], None]:
    """/healthz (200 once it works, 503 with the trouble while it waits) and /metrics; returns how to end it."""
    import uvicorn
    from fastapi import FastAPI, Response
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    app = FastAPI(title="lagloss aggregator")

    @app.get("/healthz")
    def healthz() -> Response:
        if not aggregator.ready.is_set():
            return Response("starting", 503)
        return Response(aggregator.trouble or "ok", 503 if aggregator.trouble else 200)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(aggregator.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    # in a thread other than the main one, uvicorn leaves signals alone
    server = uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, name="http", daemon=True)
    thread.start()

    def end() -> None:
        server.should_exit = True
        thread.join(5)

    return end
