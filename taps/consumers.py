"""Consumers that readers of a cluster's topics share: few have records to read at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from confluent_kafka import Consumer, KafkaException

from lagloss.broker.connection import Cluster, KafkaConnection

KEPT: Final = 8
"""Consumers that stay with readers that read lately. More are open only while more read at the same time."""
IDLE_S: Final = 5.0
"""Time without a read after which a reader's consumer fetches no more at the ends of what it has read."""
CLOSE_S: Final = 30.0
"""Time after which a consumer without a reader is closed."""
PREFETCH_KB: Final = 32_768
_HELD_BACK_MS: Final = 50
"""Time for which a broker holds back the answer to a fetch at the end of a partition."""


class Borrower(Protocol):
    """A reader that has a consumer."""

    def deprived(self) -> None:
        """Forget the consumer, which goes to another reader. Called while the borrower does not read."""


class SharedConsumers:
    """Committed readers of one cluster, which belong to no group and commit nothing. Threads may share it.

    A reader that reads again soon gets its own consumer back, with what that has fetched meanwhile.
    """

    def __init__(self, cluster: Cluster, config: Mapping[str, Any] | None = None, kept: int = KEPT) -> None:
        self._config = KafkaConnection.of(cluster).client(
            {
                "client.id": "lagloss-taps",
                "log_level": 0,
                "group.id": "lagloss-taps",  # the client wants one
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": _HELD_BACK_MS,
                "queued.max.messages.kbytes": PREFETCH_KB,
                **(config or {}),
            }
        )
        self._kept = kept
        self._guard = threading.Lock()
        self._lent: dict[Borrower, tuple[Consumer, float]] = {}
        """With readers that do not read just now, the one that read longest ago first, and when it did."""
        self._free: list[tuple[Consumer, float]] = []
        self._reading = 0

    def take(self, borrower: Borrower) -> Consumer:
        """Return a consumer for a read: the borrower's own, or one that is assigned to nothing."""
        with self._guard:
            self._reading += 1
        try:
            return self._taken(borrower) or Consumer(self._config)
        except BaseException:
            with self._guard:
                self._reading -= 1
            raise

    def _taken(self, borrower: Borrower) -> Consumer | None:
        with self._guard:
            if (own := self._lent.pop(borrower, None)) is not None:
                return own[0]
            if not self._free and self._lent and self._reading + len(self._lent) > self._kept:
                self._deprive(next(iter(self._lent)))
            return self._free.pop()[0] if self._free else None

    def fresh(self) -> Consumer:
        """Return one that is not shared, and also comes to where open transactions are; its caller closes it."""
        return Consumer({**self._config, "isolation.level": "read_uncommitted"})

    def give_back(self, borrower: Borrower, consumer: Consumer) -> None:
        """End a read. The consumer stays with the borrower until another one needs it."""
        with self._guard:
            self._reading -= 1
            self._lent[borrower] = consumer, time.monotonic()
            surplus = []
            while self._reading + len(self._lent) > self._kept and self._lent:
                self._deprive(next(iter(self._lent)))
                surplus.append(self._free.pop()[0])
        _close(surplus)

    def leave(self, borrower: Borrower) -> None:
        """Take the consumer of a reader that reads no more, or begins anew."""
        with self._guard:
            if borrower in self._lent:
                self._deprive(borrower)

    def tidy(self) -> None:
        """Stop fetching for readers that have not read for a while, and close what no reader needs."""
        now = time.monotonic()
        with self._guard:
            for borrower, (_, read_at) in list(self._lent.items()):
                if now - read_at < IDLE_S:
                    break
                self._deprive(borrower)
            surplus = [consumer for consumer, free_at in self._free if now - free_at >= CLOSE_S]
            self._free = [item for item in self._free if item[0] not in surplus]
        _close(surplus)

    def close(self) -> None:
        """Close those that are not reading."""
        with self._guard:
            for borrower in list(self._lent):
                self._deprive(borrower)
            surplus, self._free = [consumer for consumer, _ in self._free], []
        _close(surplus)

    def _deprive(self, borrower: Borrower) -> None:
        consumer, _ = self._lent.pop(borrower)
        borrower.deprived()
        with suppress(KafkaException):
            consumer.unassign()
        self._free.append((consumer, time.monotonic()))


def _close(consumers: list[Consumer]) -> None:
    for consumer in consumers:
        with suppress(KafkaException):
            consumer.close()
