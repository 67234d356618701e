"""The whole pipeline as child processes: started, looked after, and ended in the order in which events flow."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx

from lagloss.processes import LOOPBACK, choose_port, log_tail, spawn, terminate
from pipeline_under_test.kafka import GroupWatcher, create_topics
from pipeline_under_test.ledger import LedgerReader
from pipeline_under_test.load import LOAD
from pipeline_under_test.receiver import RECEIVER
from pipeline_under_test.settings import Settings
from pipeline_under_test.topology import COL_SERVICE, CONSUMERS
from pipeline_under_test.truth import Truth

log = logging.getLogger(__name__)

START_TIMEOUT_S: Final = 30.0
DRAIN_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 30.0
SETTLE_S: Final = 8.0
"""How long the nodes stay after the last event is through: a place has overtaken a message 5 s after it was last seen,
so nodes that ended earlier would leave the last losses pending."""
RESTART_PAUSE_S: Final = 1.0
TICK_S: Final = 0.2
PROGRESS_EVERY_S: Final = 1.0


class NotStarted(RuntimeError):
    """A process of the pipeline did not get ready."""


@dataclass(slots=True)
class Child:
    """A process of the pipeline and the words that start it again."""

    name: str
    words: list[str]
    process: subprocess.Popen[bytes]
    restart_at: float | None = None


class Runner:
    """Runs the pipeline under load: `steps` does the work and gives progress to show; `stop` ends it."""

    def __init__(self, settings: Settings, rate: float, minutes: float | None, settle_s: float = SETTLE_S) -> None:
        receiver_port, collector_port = choose_port(RECEIVER), choose_port(COL_SERVICE)
        self._ports = {RECEIVER: receiver_port, COL_SERVICE: collector_port}
        self._settings = replace(
            settings,
            receiver_url=f"http://{LOOPBACK}:{receiver_port}",
            collector_url=f"http://{LOOPBACK}:{collector_port}",
        )
        self._rate = rate
        self._minutes = minutes
        self._settle_s = settle_s
        self._children: dict[str, Child] = {}
        self._ledger = LedgerReader(settings.ledger_dir)
        self._truth = Truth()
        self._watcher = GroupWatcher(settings.bootstrap, settings.pipeline)
        self._next_progress = 0.0
        self._generated = (time.monotonic(), 0)
        self._restarts = 0
        self._stops = 0

    def stop(self) -> None:
        """Once: no more events, then an orderly end. Twice: the end now."""
        self._stops += 1

    def _told_to_stop(self, times: int = 1) -> bool:
        return self._stops >= times

    def steps(self) -> Iterator[dict[str, Any]]:
        """Runs everything, giving a progress document about once a second.

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
            for child in self._children.values():
                terminate(child.process, 0)

    def _start(self) -> Iterator[dict[str, Any]]:
        create_topics(self._settings.bootstrap, self._settings.pipeline)
        for name in (RECEIVER, COL_SERVICE):
            self._begin(name, [name, "--port", str(self._ports[name])])
        for node in CONSUMERS:
            self._begin(node, ["node", node])
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready():
            if self._told_to_stop():
                return
            if time.monotonic() > deadline:
                raise NotStarted(f"not ready after {START_TIMEOUT_S:.0f} s; logs in {self._log_path('').parent}")
            for child in self._children.values():
                if child.process.poll() is not None:
                    why = log_tail(self._log_path(child.name))
                    raise NotStarted(f"{child.name} ended with {child.process.returncode}: {why}")
            yield from self._tick("starting")

    def _ready(self) -> bool:
        try:
            for url in (self._settings.receiver_url, self._settings.collector_url):
                httpx.get(f"{url}/healthz", timeout=2).raise_for_status()
        except httpx.HTTPError:
            return False
        return self._watcher.all_assigned(CONSUMERS)

    def _load(self) -> Iterator[dict[str, Any]]:
        if self._told_to_stop():
            return
        self._begin(LOAD, ["load", "--rate", str(self._rate)])
        end = None if self._minutes is None else time.monotonic() + self._minutes * 60
        while not self._told_to_stop() and (end is None or time.monotonic() < end):
            yield from self._tick("load")
        self._finish(LOAD)

    def _drain(self) -> Iterator[dict[str, Any]]:
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while not self._told_to_stop(times=2):
            left = sum(map(self._watcher.backlog, CONSUMERS))
            if not left:
                break
            if time.monotonic() > deadline:
                log.error("%d records are still under way after %.0f s", left, DRAIN_TIMEOUT_S)
                break
            yield from self._tick("draining")
        settled = time.monotonic() + self._settle_s
        while not self._told_to_stop(times=2) and time.monotonic() < settled:
            yield from self._tick("settling")

    def _end(self) -> Iterator[dict[str, Any]]:
        if self._told_to_stop(times=2):
            for child in self._children.values():
                child.process.terminate()
        for name in (COL_SERVICE, *CONSUMERS, RECEIVER):
            self._finish(name)
            yield from self._tick("ending")
        yield self._progress("ended")

    def _begin(self, name: str, words: list[str]) -> None:
        words = [sys.executable, "-m", "pipeline_under_test", *words, *self._settings.arguments()]
        self._children[name] = Child(name, words, self._spawn(name, words))

    def _spawn(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        return spawn(words, self._log_path(name))

    def _log_path(self, name: str) -> Path:
        return self._settings.data_dir / "logs" / f"{name}.log"

    def _finish(self, name: str) -> None:
        child = self._children.pop(name)
        code = terminate(child.process, STOP_TIMEOUT_S)
        if code:
            log.error("%s ended with %d; see logs/%s.log", name, code, name)

    def _tick(self, phase: str) -> Iterator[dict[str, Any]]:
        """A moment's pause, in which ended children are started again and the ledger is read."""
        time.sleep(TICK_S)
        for child in self._children.values():
            self._look_after(child)
        if time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + PROGRESS_EVERY_S
            yield self._progress(phase)

    def _look_after(self, child: Child) -> None:
        if child.process.poll() is None:
            return
        if child.restart_at is None:
            log.error("%s ended with %d; starting it again", child.name, child.process.returncode)
            child.restart_at = time.monotonic() + RESTART_PAUSE_S
        elif time.monotonic() >= child.restart_at:
            child.process, child.restart_at = self._spawn(child.name, child.words), None
            self._restarts += 1

    def _progress(self, phase: str) -> dict[str, Any]:
        touched = self._truth.add(self._ledger.new_entries())
        now, generated = time.monotonic(), self._truth.entries["generated"]
        since, before = self._generated
        self._generated = (now, generated)
        return {
            "phase": phase,
            "collector_url": f"http://127.0.0.1:{self._ports[COL_SERVICE]}",
            "pids": {child.name: child.process.pid for child in self._children.values()},
            "restarts": self._restarts,
            "events_per_s": round((generated - before) / max(now - since, 0.001), 1),
            "answered": self._truth.entries["answered"],
            "delivered": self._truth.entries["delivered"],
            "lost": self._truth.entries["lost"],
            "windows": [_headline(self._truth.document(start)) for start in sorted(touched)],
        }


def _headline(document: dict[str, Any]) -> dict[str, Any]:
    """A window's counts without the ids."""
    lost_at = {place: len(ids) for place, ids in document["lost_at"].items()}
    return {**document, "lost_at": lost_at, "unaccounted": len(document["unaccounted"])}
