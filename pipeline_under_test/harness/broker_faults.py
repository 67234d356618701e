"""Faults of brokers: killed and started again, or restarted one after the other."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Final

from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from pipeline_under_test.harness.injections import Injections

log = logging.getLogger(__name__)

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
            log.warning("broker %d is started again", number)
            self._kafka.start_broker(number)
        elif is_running and not up:
            log.warning("broker %d is killed", number)
            self._kafka.kill_broker(number)

    def _roll_on(self) -> None:
        """Ask the next broker to end once the last one is back and has all that it missed."""
        if self._ending is not None:
            number, until_s = self._ending
            if time.monotonic() > until_s:
                log.warning("broker %d does not end; killing it", number)
                self._kafka.kill_broker(number)
        elif self._to_restart and self._kafka.is_in_sync:
            number = self._to_restart.popleft()
            log.warning("asked broker %d to end", number)
            self._kafka.end_broker(number)
            self._ending = number, time.monotonic() + END_TIMEOUT_S
