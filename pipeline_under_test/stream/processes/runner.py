"""The whole pipeline as child processes: started, looked after, and ended in the order in which events flow."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Iterator
from typing import Any, Final

import psycopg
from confluent_kafka import KafkaException

from lagloss_server.ops.processes import log_tail, python, spawn, terminate
from pipeline_under_test.harness.brokers import BrokerFaults
from pipeline_under_test.harness.group import Group
from pipeline_under_test.harness.ledger import LedgerEntry, LedgerReader
from pipeline_under_test.stream.events.routes import seed_routes
from pipeline_under_test.stream.kafka.positions import GroupWatcher
from pipeline_under_test.stream.kafka.topics import create_shadow_topics, create_topics
from pipeline_under_test.stream.nodes.receiver import RECEIVER
from pipeline_under_test.stream.nodes.serving import listening_socket, url_of
from pipeline_under_test.stream.processes.process_faults import ProcessFaults
from pipeline_under_test.stream.processes.scaling import NO_SCALING, Scaler, Scaling
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.table import create_table, stored_rows
from pipeline_under_test.stream.topology import COL_SERVICE, SHADOW
from pipeline_under_test.stream.traffic.load import LOAD
from pipeline_under_test.stream.truth import StreamTruth

log = logging.getLogger(__name__)

START_TIMEOUT_S: Final = 60.0
DRAIN_TIMEOUT_S: Final = 120.0
"""How long events may take to get through once the load has ended, on top of what they wait in the retrier's tiers."""
STOP_TIMEOUT_S: Final = 30.0
SETTLE_S: Final = 8.0
"""How long the nodes stay after the last event is through: a place has overtaken a message 5 s after it was last seen,
so nodes that ended earlier would leave the last losses pending."""
GIVE_UP_STARTING: Final = 3
"""Deaths of one process before all are ready, after which a setting is wrong and not the weather."""
TICK_S: Final = 0.2
PROGRESS_EVERY_S: Final = 1.0


class NotStarted(RuntimeError):
    """A process of the pipeline did not become ready."""


class Runner:
    """Runs the pipeline under load: `steps` does the work and gives progress to show; `stop` ends it.

    Args:
        settings: the pipeline's; the addresses of receiver and col-service are chosen here.
        rate: events a second; 0: no load of its own.
        minutes: of load; None: until `stop`.
        settle_s: how long the nodes stay at the end.
        scaling: how many processes the nodes have.
        brokers: carries out the faults of the pipeline's own brokers, where it has any.

    Raises:
        NotRated: if nodes are to be scaled by ratings and there are none.
    """

    def __init__(
        self,
        settings: ReferenceSettings,
        rate: float,
        minutes: float | None,
        settle_s: float = SETTLE_S,
        scaling: Scaling = NO_SCALING,
        brokers: BrokerFaults | None = None,
    ) -> None:
        ratings = scaling.ratings(settings.data_dir)  # raises, if anything does, before anything is opened
        self._listening = {node: listening_socket() for node in (RECEIVER, COL_SERVICE)}
        self._settings = settings.model_copy(
            update={
                "receiver_url": url_of(self._listening[RECEIVER]),
                "collector_url": url_of(self._listening[COL_SERVICE]),
            }
        )
        self._settings.save()
        self._rate = rate
        self._minutes = minutes
        self._settle_s = settle_s
        words: dict[str, tuple[str, ...]] = {
            node: (node, "--fd", str(listening.fileno())) for node, listening in self._listening.items()
        }
        words |= {node: ("node", node) for node in settings.consumers}
        self.groups = {node: self._group(node, args, *scaling.bounds(node)) for node, args in words.items()}
        if settings.shadow:
            self.groups[SHADOW] = self._shadow_group()
        self._faults = ProcessFaults(settings.injections(), self.groups)
        self._brokers = brokers
        self._load_process: subprocess.Popen[bytes] | None = None
        self._ledger = LedgerReader(settings.ledger_dir)
        self._rows = stored_rows(settings)
        self._truth = StreamTruth()
        self._watcher = GroupWatcher(settings.bootstrap, settings.pipeline, settings.consumers)
        self._scaler = Scaler(scaling, ratings, self.groups, self._watcher, settings.data_dir)
        self._next_progress = 0.0
        self._generated = (time.monotonic(), 0)
        self._stops = 0

    def _group(self, node: str, words: tuple[str, ...], least: int, most: int) -> Group:
        settings = self._settings
        arguments = (*words, "--data-dir", str(settings.data_dir))
        listening = self._listening.get(node)
        pass_fds = () if listening is None else (listening.fileno(),)
        return Group(node, arguments, settings.log_dir, settings.beats_dir, least, most, pass_fds=pass_fds)

    def _shadow_group(self) -> Group:
        group = self._group(SHADOW, ("node", SHADOW), 1, 1)
        group.beats_dir = self._settings.shadow_settings().beats_dir
        return group

    def stop(self) -> None:
        """Once: no more events, then an orderly end. Twice: the end now."""
        self._stops += 1

    def _is_stop_requested(self, times: int = 1) -> bool:
        return self._stops >= times

    def steps(self) -> Iterator[dict[str, Any]]:
        """Run everything, yielding a progress document about once per second.

        Raises:
            NotStarted: if a process does not get ready.
            KafkaException: if the broker cannot be reached.
        """
        try:
            yield from self._start()
            yield from self._load()
            yield from self._drain()
            yield from self._end()
        finally:
            self._scaler.stop()
            self._watcher.close()
            self._rows.close()
            for group in self.groups.values():
                group.abort()
            if self._load_process is not None:
                terminate(self._load_process, 0)
            for listening in self._listening.values():
                listening.close()

    def _start(self) -> Iterator[dict[str, Any]]:
        settings = self._settings
        create_topics(settings.bootstrap, settings.pipeline, settings.tiers_s)
        if settings.shadow:
            create_shadow_topics(settings.bootstrap, settings.shadow_settings().pipeline)
        if settings.database_url:
            create_table(settings.database_url, settings.pipeline)
        seed_routes(settings.bootstrap, settings.pipeline, warehouse=bool(settings.database_url))
        deadline = time.monotonic() + START_TIMEOUT_S
        self._tend()
        while not self._ready():
            if self._is_stop_requested():
                return
            if time.monotonic() > deadline:
                raise NotStarted(f"not ready after {START_TIMEOUT_S:.0f} s; logs in {settings.log_dir}")
            for group in self._main():
                for member in group.members:
                    if member.deaths >= GIVE_UP_STARTING:
                        raise NotStarted(f"{member.name} died {member.deaths} times: {log_tail(member.log_path)}")
            yield from self._tick("starting")
        self._scaler.start()

    def _main(self) -> list[Group]:
        """Return the groups that the pipeline needs: the shadow is not waited for."""
        return [group for node, group in self.groups.items() if node != SHADOW]

    def _ready(self) -> bool:
        return all(group.is_ready for group in self._main()) and self._watcher.all_assigned(self._settings.consumers)

    def _load(self) -> Iterator[dict[str, Any]]:
        if self._is_stop_requested():
            return
        if self._rate:
            words = python("pipeline_under_test", "load", "--rate", self._rate, "--data-dir", self._settings.data_dir)
            self._load_process = spawn(words, self._settings.log_dir / f"{LOAD}.log")
        end = None if self._minutes is None else time.monotonic() + self._minutes * 60
        while not self._is_stop_requested() and (end is None or time.monotonic() < end):
            if self._load_process is not None and (code := self._load_process.poll()) is not None:
                why = log_tail(self._settings.log_dir / f"{LOAD}.log")
                raise NotStarted(f"the load generator exited with code {code}: {why}")
            yield from self._tick("load")
        if self._load_process is not None:
            terminate(self._load_process, STOP_TIMEOUT_S)

    def _drain(self) -> Iterator[dict[str, Any]]:
        deadline = time.monotonic() + DRAIN_TIMEOUT_S + sum(self._settings.tiers_s)
        while not self._is_stop_requested(times=2):
            remaining = self._under_way()
            if remaining == 0:
                break
            if time.monotonic() > deadline:
                log.error("%s records are still in flight", "an unknown number of" if remaining is None else remaining)
                break
            yield from self._tick("draining")
        settled = time.monotonic() + self._settle_s
        while not self._is_stop_requested(times=2) and time.monotonic() < settled:
            yield from self._tick("settling")

    def _under_way(self) -> int | None:
        """Count records that are not through; None if no broker answers."""
        try:
            return self._watcher.left(self._settings.tiers_s)
        except KafkaException as error:
            log.warning("cannot read the progress of the nodes: %s", error)
            return None

    def _end(self) -> Iterator[dict[str, Any]]:
        if self._is_stop_requested(times=2):
            for group in self.groups.values():
                group.terminate()
        for node in (COL_SERVICE, *self._settings.consumers, RECEIVER, *self.groups.keys() & {SHADOW}):
            self.groups[node].end()
            if self._is_progress_due():
                yield self._progress("ending")
        yield self._progress("ended")

    def _tick(self, phase: str) -> Iterator[dict[str, Any]]:
        """Pause for a moment, look after the processes and read the ledger."""
        time.sleep(TICK_S)
        self._tend()
        if self._is_progress_due():
            yield self._progress(phase)

    def _tend(self) -> None:
        self._faults.step()
        if self._brokers is not None:
            self._brokers.step()
        self._scaler.step()
        for group in self.groups.values():
            group.tend()

    def _is_progress_due(self) -> bool:
        return time.monotonic() >= self._next_progress

    def _progress(self, phase: str) -> dict[str, Any]:
        self._next_progress = time.monotonic() + PROGRESS_EVERY_S
        stored = self._new_rows()
        touched = self._truth.add(self._ledger.new_entries()) | self._truth.add_rows(stored)
        now, generated = time.monotonic(), self._truth.entries["generated"]
        since, before = self._generated
        self._generated = (now, generated)
        return {
            "phase": phase,
            "bootstrap": self._settings.bootstrap,
            "collector_url": self._settings.collector_url,
            "receiver_url": self._settings.receiver_url,
            "pids": {node: group.pids for node, group in self.groups.items()},
            "restarts": sum(group.restarts for group in self.groups.values()),
            "observed": self._scaler.seen(),
            "events_per_s": round((generated - before) / max(now - since, 0.001), 1),
            "answered": self._truth.entries["answered"],
            "delivered": self._truth.entries["delivered"],
            "dead": self._truth.entries["dead"],
            "lost": self._truth.entries["lost"],
            "windows": [_headline(self._truth.document(start)) for start in sorted(touched)],
        }

    def _new_rows(self) -> list[LedgerEntry]:
        """Return what the table has got; nothing while its server is away, which the pipeline survives."""
        try:
            return self._rows.new_entries()
        except psycopg.OperationalError as error:
            log.warning("reading the table: %s", error)
            return []


def _headline(document: dict[str, Any]) -> dict[str, Any]:
    """Return a window's counts without the ids."""
    lost_at = {place: len(ids) for place, ids in document["lost_at"].items()}
    return {**document, "lost_at": lost_at, "unaccounted": len(document["unaccounted"])}
