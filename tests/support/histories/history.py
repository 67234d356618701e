"""A random history of a consumer group under load: kill -9, restart, scale-in and scale-out, and losses in between."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from lagloss.kafka import KafkaNode
from lagloss_server.ops.processes import terminate
from tests.support.histories import fates

PARTITIONS: Final = 4
STAGGER_S: Final = 30.0
"""Histories begin at different seconds of a minute."""
TURMOIL_S: Final = 35.0
SILENT_S: Final = 60.0
"""Time after its last report from which on a process counts as dead (rule 7)."""
CALM_S: Final = 20.0
"""Load in windows that no crash reaches."""
MESSAGES_PER_S: Final = 5.0
MOST_WORKERS: Final = 4
STOP_S: Final = 30.0


@dataclass
class History:
    """A pipeline src -> mid -> snk with its ledger: `sent` holds the event time (ms) of every message by id, `deaths`
    the times of the kills (epoch s). Workers of mid are processes, src and snk are threads."""

    seed: int
    bootstrap: str
    pipeline: str
    sent: dict[str, int] = field(default_factory=dict)
    deaths: list[float] = field(default_factory=list)
    actions: Counter[str] = field(default_factory=Counter)
    is_loaded: threading.Event = field(default_factory=threading.Event)
    """Set once the load is over."""
    is_judged: threading.Event = field(default_factory=threading.Event)
    """To be set once nothing more is expected of the pipeline, which then ends."""

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._workers: list[subprocess.Popen[bytes]] = []

    @property
    def definition(self) -> str:
        return f"""
            apiVersion: lagloss/v1
            kind: Pipeline
            metadata: {{name: {self.pipeline}}}
            spec: {{grace: 10s, nodes: [{{name: src, to: [mid]}}, {{name: mid, to: [snk]}}, {{name: snk}}]}}
        """

    def run(self) -> None:
        """Run from the first message until it is judged and every process has ended."""
        self.is_judged.wait(self._random.uniform(0, STAGGER_S))
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        topics = [NewTopic(f"{self.pipeline}-{node}", PARTITIONS, 1) for node in ("mid", "snk")]
        for made in admin.create_topics(topics).values():
            made.result(30)
        delivering = threading.Thread(target=self._deliver)
        delivering.start()
        try:
            self._load()
            self.is_loaded.set()
            self.is_judged.wait()
        finally:
            self.is_judged.set()
            for worker in self._workers:
                worker.terminate()
            for worker in self._workers:
                terminate(worker, STOP_S)
            delivering.join(STOP_S)

    def _load(self) -> None:
        actions = self._draw_actions()
        began = time.time()
        ends_at = began + TURMOIL_S + CALM_S
        self._start()
        self._start()
        with KafkaNode(self.pipeline, "src", self.bootstrap, first=True) as node:
            producer = node.producer({"bootstrap.servers": self.bootstrap, **fates.PRODUCER})
            while (time.time() < ends_at or actions) and not self.is_judged.is_set():
                if actions and time.time() >= began + actions[0][0]:
                    self._act(actions.pop(0)[1])
                    if self.deaths:
                        mourned = self.deaths[-1] + SILENT_S
                        ends_at = max(ends_at, (mourned // 60 + 1) * 60 + CALM_S)
                message_id, event_time_ms = fates.draw_id(self._random, len(self.sent)), time.time_ns() // 1_000_000
                if fates.fate_of(message_id) == fates.LOST_ON_SRC_MID:
                    node.emitter.received(message_id, event_time_ms)
                    node.emitter.sent(message_id, event_time_ms)
                else:
                    producer.produce(f"{self.pipeline}-mid", b"", message_id=message_id, event_time_ms=event_time_ms)
                self.sent[message_id] = event_time_ms
                producer.poll(0)
                time.sleep(self._random.uniform(0, 2 / MESSAGES_PER_S))
            self.is_loaded.set()
            self.is_judged.wait()

    def _deliver(self) -> None:
        with KafkaNode(self.pipeline, "snk", self.bootstrap) as node:
            consumer = node.consumer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "group.id": f"{self.pipeline}-snk",
                    "auto.offset.reset": "earliest",
                }
            )
            consumer.subscribe([f"{self.pipeline}-snk"])
            while not self.is_judged.is_set():
                message = consumer.poll(0.5)
                if message is None or message.error() is not None:
                    continue
                identity = node.identity_of(message)
                assert identity is not None
                if fates.fate_of(identity.message_id) != fates.LOST_AT_SNK:
                    node.sent(message)

    def _draw_actions(self) -> list[tuple[float, str]]:
        """Draw what is done to the group, and when; at the end at least one worker runs."""
        drawn, at, running = [], self._random.uniform(4, 10), 2
        while at < TURMOIL_S:
            action = self._random.choice(["kill", "kill", "kill and restart", "scale in", "scale out"])
            if action == "scale out" and running == MOST_WORKERS:
                action = "scale in"
            if action != "scale out" and not running:
                action = "scale out"
            drawn.append((at, action))
            running += {"kill": -1, "kill and restart": 0, "scale in": -1, "scale out": 1}[action]
            at += self._random.uniform(1, 12)
        return drawn if running else [*drawn, (at, "scale out")]

    def _act(self, action: str) -> None:
        self.actions[action] += 1
        if action != "scale out":
            victim = self._workers.pop(self._random.randrange(len(self._workers)))
            if action == "scale in":
                threading.Thread(target=terminate, args=(victim, STOP_S)).start()
            else:
                victim.kill()
                victim.wait()
                self.deaths.append(time.time())
        if action in ("scale out", "kill and restart"):
            self._start()

    def _start(self) -> None:
        module = "tests.support.histories.worker"
        words = [sys.executable, "-m", module, self.bootstrap, self.pipeline]
        self._workers.append(subprocess.Popen(words, start_new_session=True))
