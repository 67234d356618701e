"""The service: runs the taps that definitions want, and closes those that none wants any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog
from confluent_kafka import KafkaException
from sqlalchemy.exc import DBAPIError

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.errors import LaglossError
from lagloss.sdk.outlets.kafka import KafkaOutlet
from lagloss_server.base.turns import Turns, WatchedLoop
from lagloss_server.extraction import Extractor
from lagloss_server.model.tables import TableTap
from lagloss_server.model.taps import Tap
from lagloss_server.net.schema_registry import registry_of
from lagloss_server.net.server_watch import kafka, postgresql, watching
from lagloss_server.store.definition_feed import DefinitionFeed
from lagloss_server.store.migrate import demand_newest
from lagloss_server.store.store import Store
from lagloss_server.store.unreadable import UnreadableRows
from taps.clusters import TapCluster
from taps.commit_log import CommitReader
from taps.kernel import BlockMaker
from taps.local_engine import LocalEngine
from taps.metrics import TapMetrics
from taps.outlet import SharedOutlet, TapOutlet
from taps.plan_runner import PlanRunner
from taps.pool import TurnPool
from taps.runner import Engine, TapRunner
from taps.source_offsets import ConnectorCommits
from taps.store import TapStore
from taps.tables.readers import TableOfUrl
from taps.tables.recheck import RecheckRunner
from taps.tables.recheck_store import RecheckStore
from taps.tables.runner import TableRunner
from taps.topic_reader import TopicReader
from taps.wanted import RunningTap, by_emitter, taps_after

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger()

LOOK_S: Final = 1.0
"""Between two looks for changed definitions."""
LOOK_LIMIT_S: Final = 300.0
"""Longest normal look: at its start, it begins all taps."""
STATEMENT_TIMEOUT: Final = "120s"
END_S: Final = 15.0
MAX_PAUSE_S: Final = 30.0


@dataclass(slots=True)
class _Started:
    running: RunningTap
    runner: PlanRunner[Any]
    pool: TurnPool[Any]
    recheck: RecheckRunner | None = None
    is_stopping: bool = False

    @property
    def turning(self) -> list[PlanRunner[Any] | RecheckRunner]:
        """Return what takes turns."""
        return [self.runner, *([self.recheck] if self.recheck is not None else [])]

    @property
    def has_ended(self) -> bool:
        return not any(turning in self.pool for turning in self.turning)

    def is_overdue(self, now_ms: int) -> bool:
        """Return whether it is to be stopped."""
        return not self.is_stopping and not self.running.is_wanted(now_ms)

    def go_on_as(self, running: RunningTap) -> None:
        """Go on as this tap, which a later version may have replaced."""
        if running != self.running:
            self.running = running
            self.runner.go_on_as(running)
            self.pool.wake([self.runner])

    def stop(self, *, close: bool = False) -> None:
        self.is_stopping = True
        self.runner.stop(close=close)
        if self.recheck is not None:
            self.recheck.stop()
        self.pool.wake(self.turning)


class TapService:
    """All taps of one process; `run` returns when `stop` is set."""

    def __init__(self, bootstrap: str, database_url: str, spark: SparkSession | None = None) -> None:
        self.metrics = TapMetrics()
        self.trouble: str | None = "starting"
        """Why no tap is looked after right now; None when they are."""
        self.unreadable = UnreadableRows()
        """Definitions and taps that are set aside."""
        self.metrics.set_aside.counts = self.unreadable.counts
        self.turns = Turns()
        self._loop = WatchedLoop("the taps loop", LOOK_LIMIT_S)
        self._bootstrap = bootstrap
        self._database_url = database_url
        self._spark = spark
        self._hold = ExitStack()
        """What the clusters' pools have in `turns`."""
        self._clusters: dict[str, TapCluster] = {}
        self._databases: dict[str, TurnPool[TableRunner | RecheckRunner]] = {}
        self._outlet = SharedOutlet(KafkaOutlet(bootstrap))
        self._running: dict[bytes, _Started] = {}

    def health_problem(self) -> str | None:
        """Return the reason for a failed /healthz: no tap is looked after, or something hangs."""
        return self.trouble or self.turns.problem()

    def run(self, stop: threading.Event) -> None:
        """Look after taps until `stop`; wait with growing pauses while PostgreSQL is away.

        Raises:
            SparkEnded: Spark's own process has ended; only a new process of ours has a new one.
        """
        servers = {"PostgreSQL": postgresql(self._database_url), "Kafka": kafka(self._bootstrap)}
        if self._spark is not None:
            from lagloss_server.ops.spark_session import spark_answers

            servers["Spark"] = spark_answers(self._spark)
        with watching(self.turns, servers), self.turns.running(self._loop):
            self._look_after_taps(stop)

    def _look_after_taps(self, stop: threading.Event) -> None:
        store = Store(self._database_url, statement_timeout=STATEMENT_TIMEOUT)
        taps = TapStore(store.engine, self._database_url)
        definitions = DefinitionFeed(store, lambda before, versions, _unreadable: taps_after(before, versions))
        pause_s = LOOK_S
        is_checked, is_changed = False, True
        try:
            while not stop.is_set():
                self._loop.finished()
                if self._spark is not None:
                    from lagloss_server.ops.spark_session import check_session

                    check_session(self._spark)
                try:
                    if not is_checked:
                        demand_newest(store.engine)
                        is_checked = True
                    is_changed |= definitions.look()
                    if is_changed or self._has_ended():
                        self._follow(by_emitter(definitions.pipelines.values()), definitions.waiting, taps)
                        self.unreadable.replace("definition", definitions.unreadable)
                        is_changed = False
                    self.trouble, pause_s = None, LOOK_S
                except LaglossError:  # tables of another version
                    raise
                except Exception as error:
                    is_checked, is_changed = False, True
                    if isinstance(error, DBAPIError):
                        self.trouble = f"waiting for PostgreSQL: {error.orig}"
                    else:  # our bug: the taps that run go on
                        log.exception("taps round failed")
                        self.trouble = f"failed: {type(error).__name__}: {error}"
                    pause_s = min(2 * pause_s, MAX_PAUSE_S)
                self.metrics.running.set(len(self._running))
                stop.wait(pause_s)
        finally:
            self._end()
            taps.close()
            store.close()

    def _has_ended(self) -> bool:
        now_ms = time.time_ns() // 1_000_000
        return any(started.has_ended or started.is_overdue(now_ms) for started in self._running.values())

    def _follow(self, known: dict[bytes, RunningTap], waiting: Collection[str], taps: TapStore) -> None:
        """Run what is wanted and close what is not; taps of pipelines that wait for their definition stop where they
        are."""
        now_ms = time.time_ns() // 1_000_000
        stored = taps.stored()
        self.unreadable.replace("tap", stored.unreadable)
        wanted = {emitter: running for emitter, running in known.items() if running.is_wanted(now_ms)}
        for emitter, started in list(self._running.items()):
            if started.has_ended:
                del self._running[emitter]
                continue
            if emitter in known:
                started.go_on_as(known[emitter])
            if emitter not in wanted:
                started.stop(close=started.running.tap.pipeline not in waiting)
        to_run = {running.emitter: known.get(running.emitter, running) for running in stored}
        to_run |= {emitter: running for emitter, running in wanted.items() if running.until_ms is None}
        for emitter, running in to_run.items():
            if emitter not in self._running and running.tap.pipeline not in waiting:
                self._start(running, taps, close=emitter not in wanted)

    def _start(self, running: RunningTap, taps: TapStore, *, close: bool) -> None:
        tap = running.tap
        runner: PlanRunner[Any]
        pool: TurnPool[Any]
        recheck = None
        try:
            if isinstance(tap, TableTap):
                pool = self._database(tap.table.database)
                runner = self._table_runner(running, tap, taps)
                if tap.recheck_ms and not close:
                    recheck = self._recheck_runner(running, tap, taps)
            else:
                shared = self._cluster(tap.cluster, taps)
                pool = shared.pool
                runner = self._runner(running, tap, taps, shared)
        except (LaglossError, KafkaException) as error:
            log.warning("tap start failed", tap=tap.source, trouble=str(error))
            return
        if close:
            runner.stop(close=True)
        started = self._running[running.emitter] = _Started(running, runner, pool, recheck)
        for turning in started.turning:
            started.pool.add(turning)

    def _cluster(self, name: str, taps: TapStore) -> TapCluster:
        """Return what taps of a cluster share. Raises BadSetting."""
        shared = self._clusters.get(name)
        if shared is None:
            shared = TapCluster(name, KafkaConnection.named(name) if name else self._bootstrap)
            self._clusters[name] = shared
            self._hold.enter_context(self.turns.running(shared.pool.turns, shared.start(taps).loop))
        return shared

    def _database(self, name: str) -> TurnPool[TableRunner | RecheckRunner]:
        """Return the pool of the taps of a database: one that hangs holds up no other."""
        pool = self._databases.get(name)
        if pool is None:
            pool = self._databases[name] = TurnPool(f"tables of {name}")
            self._hold.enter_context(self.turns.running(pool.turns))
        return pool

    def _table_runner(self, running: RunningTap, tap: TableTap, taps: TapStore) -> TableRunner:
        maker = BlockMaker(tap, running.emitter, running.since_ms, Extractor(tap.extraction))
        return TableRunner(running, taps, TapOutlet(self._outlet), TableOfUrl(tap.table), maker, self.metrics)

    def _recheck_runner(self, running: RunningTap, tap: TableTap, taps: TapStore) -> RecheckRunner:
        return RecheckRunner(RecheckStore(running, taps), TableOfUrl(tap.table), self.metrics)

    def _runner(self, running: RunningTap, tap: Tap, taps: TapStore, shared: TapCluster) -> TapRunner:
        reader = shared.reader(tap.topic)
        maker = BlockMaker(tap, running.emitter, running.since_ms, Extractor(tap.extraction, registry_of(tap.cluster)))
        return TapRunner(
            running,
            taps,
            TapOutlet(self._outlet),
            reader,
            self._engine(reader, maker, shared.cluster),
            self._commits(tap, taps, shared),
            self.metrics,
        )

    def _commits(self, tap: Tap, taps: TapStore, shared: TapCluster) -> CommitReader | None:
        if tap.group is None:
            return None
        if tap.offsets is None:
            return shared.group_commits(tap.group, tap.topic)
        log = self._cluster(tap.offsets.cluster, taps).source_offsets(tap.offsets.topic)
        return ConnectorCommits(log, tap.group, tap.topic)

    def _engine(self, reader: TopicReader, maker: BlockMaker, cluster: Cluster) -> Engine:
        local = LocalEngine(reader, maker)
        if self._spark is None:
            return local
        from taps.spark_engine import SparkEngine

        return SparkEngine(self._spark, cluster, self._bootstrap, maker, local)

    def _end(self) -> None:
        for running in self._running.values():
            running.stop()
        deadline = time.monotonic() + END_S
        pools: list[TurnPool[Any]] = [*(shared.pool for shared in self._clusters.values()), *self._databases.values()]
        for pool in pools:
            own = [running for running in self._running.values() if running.pool is pool]
            turning = [turning for running in own for turning in running.turning]
            pool.await_ends(turning, max(0.0, deadline - time.monotonic()))
        for pool in self._databases.values():
            pool.close(max(0.0, deadline - time.monotonic()))
        for shared in self._clusters.values():
            shared.close(max(0.0, deadline - time.monotonic()))
        self._outlet.close()
        self._hold.close()
