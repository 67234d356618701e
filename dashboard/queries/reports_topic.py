"""Where the reports topic ends, asked of Kafka rarely, never twice at once, and never for long."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from lagloss.broker.errors import kafka_error
from lagloss.broker.topics import REPORTS
from lagloss_server.queries.beacon_log import BeaconLog

_KEPT_S: Final = 4.0
"""A page is refreshed every 5 s."""
_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Ends:
    """The end offset of each partition; None where it is not known, and then `why`."""

    offsets: dict[int, int] | None
    why: str = ""


class ReportsTopic:
    """Keeps its connection and its last answer; for threads of `Threads.read_log`."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._log: BeaconLog | None = None
        self._asking = threading.Lock()
        self._asked_s = float("-inf")
        self._answer = Ends(None, "Kafka has not been queried yet")

    def ends(self) -> Ends:
        """Return the ends of the topic as of a few seconds ago; while another thread asks, its last answer."""
        if not self._bootstrap:
            return Ends(None, "no Kafka is configured: set LAGLOSS_KAFKA_BOOTSTRAP")
        if self._asking.acquire(blocking=False):
            try:
                if time.monotonic() - self._asked_s > _KEPT_S:
                    self._answer = self._ask()
                    self._asked_s = time.monotonic()
            finally:
                self._asking.release()
        return self._answer

    def _ask(self) -> Ends:
        try:
            if self._log is None:
                self._log = BeaconLog(self._bootstrap, REPORTS, timeout_s=_TIMEOUT_S)
            return Ends(self._log.ends())
        except KafkaException as error:
            if self._log is not None and kafka_error(error).code() == KafkaError._UNKNOWN_PARTITION:
                self._log.close()  # the next one asks without what this one knew: the topic may be another by now
                self._log = None
            return Ends(None, f"Kafka did not respond: {kafka_error(error).str()}")
        except TimeoutError:
            return Ends(None, f"Kafka did not respond within {_TIMEOUT_S:g} s")
