"""Brokers of a pipeline's own, in its data directory: run, killed and restarted."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lagloss.broker.topics import create_topics
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from pipeline_under_test.harness.faults import Injections

log = logging.getLogger(__name__)

FILE: Final = "brokers.json"
HEAP_MB: Final = 192
END_TIMEOUT_S: Final = 30.0
"""How long a broker may take to hand over to the others, until it is killed: they may be away."""


class BrokerFaults:
    """Carries out what the file of faults says about brokers, and starts again one that died by itself."""

    def __init__(self, injections: Injections, kafka: EmbeddedKafka) -> None:
        self._injections = injections
        self._kafka = kafka
        self._rolled: set[int] = set()
        self._to_restart: deque[int] = deque()
        self._ending: tuple[int, float] | None = None
        """The broker that was asked to end, and its deadline on the monotonic clock."""

    def step(self) -> None:
        """Begin and end what is due; wait for nothing but a broker's answer, a second at most, while brokers
        are restarted one after the other."""
        now_ms = time.time() * 1000
        down = {int(kill.fault.number) for kill in self._injections.holding("broker-kill", now_ms)}
        for number in self._kafka.numbers:
            self._keep(number, up=number not in down)
        for index, injection in enumerate(self._injections.known()):
            is_due = injection.fault.kind == "broker-restart" and injection.holds(now_ms)
            if is_due and index not in self._rolled:
                self._rolled.add(index)
                self._to_restart.extend(self._kafka.numbers)
        self._roll_on()

    def _keep(self, number: int, *, up: bool) -> None:
        is_running = self._kafka.is_running(number)
        if not is_running and self._ending is not None and self._ending[0] == number:
            self._ending = None
        if up and not is_running:
            log.warning("restarting broker %d", number)
            self._kafka.start_broker(number)
        elif is_running and not up:
            log.warning("killing broker %d", number)
            self._kafka.kill_broker(number)

    def _roll_on(self) -> None:
        """Ask the next broker to end once the last one is back and has all that it missed."""
        if self._ending is not None:
            number, until_s = self._ending
            if time.monotonic() > until_s:
                log.warning("broker %d does not stop; killing it", number)
                self._kafka.kill_broker(number)
        elif self._to_restart and self._kafka.is_in_sync:
            number = self._to_restart.popleft()
            log.warning("stopping broker %d", number)
            self._kafka.end_broker(number)
            self._ending = number, time.monotonic() + END_TIMEOUT_S


@contextmanager
def own_brokers(data_dir: Path, injections: Injections, count: int) -> Iterator[tuple[str, BrokerFaults]]:
    """Run this many brokers, with lagloss's topics, while the block lasts; `brokers.json` has their addresses.

    Gives their addresses, and what carries out their faults. With a count of 0 nothing is started, there is no address,
    and no fault finds a broker.
    """
    kafka = EmbeddedKafka(data_dir / "kafka", brokers=count, heap_mb=HEAP_MB)
    faults = BrokerFaults(injections, kafka)
    if not count:
        yield "", faults
        return
    with kafka:
        create_topics(kafka.bootstrap, replication=0)
        (data_dir / FILE).write_text(json.dumps({"kafka": kafka.bootstrap}))
        yield kafka.bootstrap, faults
