"""Pods on ephemeral disks are the normal case: random histories of kill -9, restart, scale-in and scale-out of a real
consumer group, with losses injected in between, against the ledger.

LAGLOSS_HISTORIES is how many (4 by default), LAGLOSS_HISTORIES_AT_ONCE how many side by side, LAGLOSS_HISTORIES_SEED
the seed of the first, LAGLOSS_HISTORIES_CROWD how many emitters of other pipelines send beside them, with faults of
their own.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import select

from aggregator.clock import Catchup
from benchmarks.soak import wrong_windows
from benchmarks.soak_traffic import NODES, Run, pipeline_name, send
from benchmarks.traffic import chain
from lagloss.broker.topics import BEACONS, REPORTS, create_topics
from lagloss_server.model.definition import parse_definition
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.store.partitions import make_days_ahead
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from tests.support.closers import Driven, driven
from tests.support.histories import fates
from tests.support.histories.history import SILENT_S, History
from tests.support.window_documents import documents

COUNT = int(os.environ.get("LAGLOSS_HISTORIES", "4"))
AT_ONCE = int(os.environ.get("LAGLOSS_HISTORIES_AT_ONCE", "40"))
FIRST_SEED = int(os.environ.get("LAGLOSS_HISTORIES_SEED", "1"))
CROWD = int(os.environ.get("LAGLOSS_HISTORIES_CROWD", "0"))
CROWD_MINUTES = 8

GRACE_S = 10.0
MARGIN_S = 5.0
"""Of progress past the time a message was last seen (rule 4)."""
CERTAIN_WITHIN_S = 120.0
DISTURBED_S = 120.0
"""A crash may disturb windows whose tally changed in the minute before: those of that minute and of the one before."""
POLL_S = 1.0
TOTALS = ("messages", "injected", "found", "certain", "unsure for good", "false")


@dataclass
class Observed:
    """What the store said about a history while it went on."""

    history: History
    kinds: dict[str, str] = field(default_factory=dict)
    last_seen_s: dict[str, float] = field(default_factory=dict)
    certain_at: dict[str, float] = field(default_factory=dict)
    windows: dict[int, dict[str, Any]] = field(default_factory=dict)

    def look(self, store: Store, now_s: float) -> None:
        """Note the windows and the missing messages as they are now."""
        row = tables.MissingMessageRow
        with store.engine.connect() as connection:
            found = connection.execute(
                select(row.message_id, row.kind, row.last_seen_ms).where(row.pipeline == self.history.pipeline)
            ).all()
        self.kinds = {name: kind for name, kind, _ in found}
        self.last_seen_s |= {name: seen_ms / 1000 for name, _, seen_ms in found}
        for name, kind in self.kinds.items():
            if kind == "lost":
                self.certain_at.setdefault(name, now_s)
        sent = list(self.history.sent.values())
        if sent:
            found = documents(store.windows(self.history.pipeline, sent[0] // 60_000 * 60, sent[-1] // 1000 + 1))
            self.windows = {_start_s(document): document for document in found}

    @property
    def injected(self) -> list[str]:
        return [name for name in self.history.sent if fates.is_lost(name)]

    def is_unsure(self, name: str) -> bool:
        """Whether a crash leaves it unsure for good whether this message is lost."""
        window = self.windows.get(self.history.sent[name] // 60_000 * 60, {})
        return fates.fate_of(name) in fates.UNSURE_AFTER_A_CRASH_OF_MID and "crash:mid" in window.get("reasons", ())

    def overtaken_s(self, name: str) -> float:
        """When the last of what overtakes a message did: progress past it, its window being due, deaths before."""
        due_s = self.history.sent[name] // 60_000 * 60 + 60 + GRACE_S
        passed_s = self.last_seen_s.get(name, 0.0) + MARGIN_S
        mourned_s = [death + SILENT_S for death in self.history.deaths if death <= passed_s <= death + SILENT_S]
        return max(passed_s, due_s, *mourned_s)

    def is_complete(self, now_s: float) -> bool:
        """Whether every loss is found, and no window waits for anything; or the time for that is over."""
        if not self.history.is_loaded.is_set():
            return False
        if now_s > max(map(self.overtaken_s, self.history.sent)) + CERTAIN_WITHIN_S:
            return True
        starts = {sent // 60_000 * 60 for sent in self.history.sent.values()}
        return (
            all(start in self.windows and self.windows[start]["state"] == "closed" for start in starts)
            and all(death + SILENT_S + 5 < now_s for death in self.history.deaths)
            and all(
                self.kinds.get(name) == "lost" or (self.kinds.get(name) == "perhaps" and self.is_unsure(name))
                for name in self.injected
            )
            and set(self.kinds) == set(self.injected)
        )

    def problems(self) -> Iterator[str]:
        """Differences between the ledger and what the store says."""
        for name in self.certain_at:
            if not fates.is_lost(name):
                yield f"false: {name}"
        for name in self.injected:
            if self.is_unsure(name):
                if self.kinds.get(name) not in ("perhaps", "lost"):
                    yield f"not found: {name} is {self.kinds.get(name)}, last seen {self._at(name)}"
            elif self.kinds.get(name) != "lost":
                yield f"not certain: {name} is {self.kinds.get(name)}, last seen {self._at(name)}"
            elif self.certain_at[name] - self.overtaken_s(name) > CERTAIN_WITHIN_S:
                yield f"late: {name}, {self.certain_at[name] - self.overtaken_s(name):.0f} s"
        sent: defaultdict[int, list[str]] = defaultdict(list)
        for name, event_time_ms in self.history.sent.items():
            sent[event_time_ms // 60_000 * 60].append(name)
        for start, names in sent.items():
            window = self.windows.get(start)
            if window is None or window["state"] != "closed":
                yield f"not closed: {start}"
                continue
            lost = sum(map(fates.is_lost, names))
            sure = sum(fates.is_lost(name) and not self.is_unsure(name) for name in names)
            counted = {"messages": window["messages"], "lost.max": window["lost"]["max"], "pending": window["pending"]}
            if counted != {"messages": len(names), "lost.max": lost, "pending": 0}:
                yield f"window {start}: {counted} of {len(names)}, {lost} lost; {window['reasons']}"
            if not sure <= window["lost"]["min"] <= lost:
                yield f"window {start}: lost.min {window['lost']['min']} of {sure} to {lost}; {window['reasons']}"
            if "crash:mid" in window["reasons"] and not any(
                start - SILENT_S <= death + 1 and death - DISTURBED_S <= start + 60 for death in self.history.deaths
            ):
                yield f"window {start}: no crash reaches it; {window['reasons']}"
            strange = {reason for reason in window["reasons"] if reason not in ("crash:mid", "evidence:mid")}
            if strange or ("evidence:mid" in window["reasons"]) != ("crash:mid" in window["reasons"]):
                yield f"window {start}: {window['reasons']}"

    def _at(self, name: str) -> str:
        since_s = self.history.sent[name] / 1000
        deaths = [round(death - since_s, 1) for death in self.history.deaths]
        return f"{self.last_seen_s.get(name, 0) - since_s:.1f} s after it was sent; deaths {deaths} s after it"

    def figures(self) -> dict[str, Any]:
        """Figures of the history, for the record."""
        waited = [self.certain_at[name] - self.overtaken_s(name) for name in self.injected if name in self.certain_at]
        return {
            "seed": self.history.seed,
            "actions": dict(self.history.actions),
            "messages": len(self.history.sent),
            "injected": len(self.injected),
            "found": sum(self.kinds.get(name) in ("lost", "perhaps") for name in self.injected),
            "certain": sum(self.kinds.get(name) == "lost" for name in self.injected),
            "unsure for good": sum(map(self.is_unsure, self.injected)),
            "false": sum(not fates.is_lost(name) for name in self.certain_at),
            "slowest_s": round(max(waited, default=0.0), 1),
            "problems": list(self.problems()),
        }


def _start_s(document: dict[str, Any]) -> int:
    return int(datetime.fromisoformat(document["window_start"]).timestamp())


@pytest.fixture
def bootstrap(own_dir: Path, jars: None) -> Iterator[str]:
    """The address of a broker of the test's own."""
    with EmbeddedKafka(own_dir / "kafka") as kafka:
        create_topics(kafka.bootstrap)
        yield kafka.bootstrap


@pytest.fixture
def parts(spark: SparkSession, bootstrap: str, store: Store) -> Iterator[Driven]:
    """The parts of an aggregator, its stream running."""
    make_days_ahead(store.engine, time.time())
    with driven(spark, bootstrap, store, BEACONS, REPORTS) as found:
        yield found


@contextmanager
def crowded(store: Store, bootstrap: str) -> Iterator[Run]:
    """Let the emitters of other pipelines send, and yield what their windows have to be found to be."""
    crowd = Run(CROWD * 2 // 5, CROWD, (int(time.time()) // 60 + 2) * 60, CROWD_MINUTES)
    if not crowd.pipelines:
        yield crowd
        return
    for number in range(crowd.pipelines):
        store.apply(chain(pipeline_name(number), NODES), 0)
    spawning = multiprocessing.get_context("spawn")
    how_late = spawning.Queue()
    sender = spawning.Process(target=send, args=(bootstrap, crowd, how_late))
    sender.start()
    try:
        yield crowd
        print(f"the crowd was {how_late.get(timeout=CERTAIN_WITHIN_S):.1f} s late at most")
    finally:
        sender.terminate()
        sender.join()


@pytest.mark.slow
@pytest.mark.timeout(420 + 360 * (COUNT // AT_ONCE) + (CROWD and 60 * CROWD_MINUTES))
def test_every_loss_of_a_random_history_is_found_and_certain_in_time_and_none_is_false(
    parts: Driven, bootstrap: str
) -> None:
    word = uuid.uuid4().hex[:6]
    seeds = range(FIRST_SEED, FIRST_SEED + COUNT)
    everything = [Observed(History(seed, bootstrap, f"history-{seed}-{word}")) for seed in seeds]
    for observed in everything:
        parts.store.apply(parse_definition(observed.history.definition), 0)
    catchup = Catchup()

    def close_due() -> None:
        now_ms = time.time_ns() // 1_000_000
        caught_up_ms = catchup.update(now_ms, parts.follower.positions(), parts.reports.ends)
        if caught_up_ms:
            parts.closer.tick(caught_up_ms, now_ms)

    with crowded(parts.store, bootstrap) as crowd, ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            runs = [pool.submit(observed.history.run) for observed in everything]
            while not all(run.done() for run in runs):
                close_due()
                for observed in everything:
                    if observed.history.sent and not observed.history.is_judged.is_set():
                        observed.look(parts.store, time.time())
                        if observed.is_complete(time.time()):
                            observed.history.is_judged.set()
                            print(json.dumps(observed.figures()), flush=True)
                time.sleep(POLL_S)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for observed in everything:
                observed.history.is_judged.set()
        while crowd.pipelines and (wrong := wrong_windows(parts.store, crowd)):
            assert time.time() < crowd.begins_s + crowd.minutes * 60 + CERTAIN_WITHIN_S, wrong
            close_due()
            time.sleep(POLL_S)
        print(f"{crowd.pipelines * len(crowd.judged):,} windows of {crowd.emitters:,} emitters beside them are right")
    for run in runs:
        run.result()
    figures = [observed.figures() for observed in everything]
    total = Counter({key: sum(of_one[key] for of_one in figures) for key in TOTALS})
    print(dict(total), "slowest", max(of_one["slowest_s"] for of_one in figures))
    assert [of_one for of_one in figures if of_one["problems"]] == []
