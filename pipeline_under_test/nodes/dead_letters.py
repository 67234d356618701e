"""The way into the dead-letter queue, which never blocks the pipeline.

Its producer is its own, so that a queue that does not take records holds up nothing else. What it does not take in
time is written to a file, which is as safe, and is tried again each minute, and by the node's next process.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from pipeline_under_test.event import Event
from pipeline_under_test.kafka import producer_config

log = logging.getLogger(__name__)

GIVE_UP_S: Final = 10.0
AGAIN_S: Final = 60.0
FLUSH_S: Final = 5.0

Acknowledged = Callable[[], None]


class DeadLetters:
    """One process's way into the queue. Used by one thread."""

    def __init__(self, bootstrap: str, topic: str, directory: Path, node: str) -> None:
        self._topic = topic
        self._directory = directory
        self._node = node
        self._path = directory / f"{node}-{time.time_ns()}-{os.getpid()}.jsonl"
        config = producer_config(bootstrap, f"{node}-dead")
        self._producer = Producer({**config, "delivery.timeout.ms": int(GIVE_UP_S * 1000)})
        self._next_try = 0.0

    def send(self, event: Event, safe: Acknowledged) -> None:
        """Puts `event` into the queue; `safe` is called from `step`, once the broker or the disk has it."""

        def report(error: KafkaError | None, _record: Message) -> None:
            if error is not None:
                log.warning("the dead-letter queue does not take %s (%s): kept in %s", event.id, error, self._path)
                self._keep(event)
            safe()

        if not self._produce(event, report):
            self._keep(event)
            safe()

    def step(self) -> None:
        """Handles what the broker answered, and now and then tries again what it did not take."""
        self._producer.poll(0)
        now = time.monotonic()
        if now >= self._next_try:
            self._next_try = now + AGAIN_S
            self._try_again()

    def close(self) -> None:
        """Waits for what is on its way."""
        self._producer.flush(FLUSH_S)

    def _produce(self, event: Event, report: Callable[[KafkaError | None, Message], None]) -> bool:
        try:
            self._producer.produce(
                self._topic, event.body, event.id.encode(), headers=event.headers(), on_delivery=report
            )
        except (BufferError, KafkaException) as error:  # full, or too large for any broker
            log.warning("the dead-letter queue does not take %s: %s", event.id, error)
            return False
        return True

    def _keep(self, event: Event) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        told = {**asdict(event), "body": base64.b64encode(event.body).decode()}
        with self._path.open("ab", buffering=0) as file:
            file.write(json.dumps(told).encode() + b"\n")
            os.fsync(file.fileno())

    def _try_again(self) -> None:
        """Sends what the files of this node hold; a file goes once all of it is acknowledged. What another process
        sends at the same time is in the queue twice, which harms nobody."""
        for path in sorted(self._directory.glob(f"{self._node}-*.jsonl")):
            if path == self._path:  # what fails from now on goes to another file
                self._path = self._directory / f"{self._node}-{time.time_ns()}-{os.getpid()}.jsonl"
            events = [_kept(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
            left = [len(events)]

            def report(error: KafkaError | None, _record: Message, path: Path = path, left: list[int] = left) -> None:
                left[0] -= error is None
                if not left[0]:
                    path.unlink(missing_ok=True)

            if not all(self._produce(event, report) for event in events):
                return


def _kept(line: bytes) -> Event:
    told = json.loads(line)
    return Event(**{**told, "body": base64.b64decode(told["body"])})
