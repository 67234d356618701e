"""Log bounds: where partitions begin and end, asked on a connection that no consumer's poll can hold up."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from lagloss.broker.fork_gate import fork_gate

log = logging.getLogger("lagloss")

QUERY_TIMEOUT_S: Final = 1.0
ANSWER_TIMEOUT_S: Final = 1.5
"""For a question's answers, all together: the client's own time-out, and some for it to say so."""
Key = tuple[str, int]
"""Topic and partition."""


class LogBounds:
    """Where partitions begin and end as their leaders say now, asked on a handle of our own.

    The host's consumer would do, but lets one thread in at a time, and its own waits in `poll`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = {"client.id": "lagloss-lanes", "log_level": 2, **config}
        self._admin: AdminClient | None = None
        self._cluster_id: str | None = None
        self.trouble: str | None = None
        """The newest reason why a partition was left out."""

    def begins(self, keys: Iterable[Key]) -> dict[Key, int]:
        return self._ask(keys, OffsetSpec.earliest())

    def ends(self, keys: Iterable[Key]) -> dict[Key, int]:
        """Return the high watermark of each partition; records of open transactions lie below it."""
        return self._ask(keys, OffsetSpec.latest())

    def cluster_id(self) -> str:
        """Return the id of the cluster that answers. Raises KafkaException."""
        if self._cluster_id is None:
            # Asked for by name, a topic that is not there could be made by the broker.
            self._cluster_id = str(self._connected().list_topics(timeout=QUERY_TIMEOUT_S).cluster_id)
        return self._cluster_id

    def close(self) -> None:
        with fork_gate:
            self._admin = None

    def _connected(self) -> AdminClient:
        if self._admin is None:
            with fork_gate:
                self._admin = AdminClient(self._config)
        return self._admin

    def _ask(self, keys: Iterable[Key], which: OffsetSpec) -> dict[Key, int]:
        """Ask for all partitions in one call. Those whose leader did not answer are left out, and `trouble` says why;
        if none answered, raise that (KafkaException or TimeoutError)."""
        answers: dict[TopicPartition, Any] = dict(
            self._connected().list_offsets(
                {TopicPartition(*key): which for key in keys},
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=QUERY_TIMEOUT_S,
            )
        )
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        found: dict[Key, int] = {}
        trouble: KafkaException | TimeoutError | None = None
        for place, answer in answers.items():
            try:
                offset = answer.result(max(0.0, deadline - time.monotonic())).offset
            except (KafkaException, TimeoutError) as error:
                trouble = error
                continue
            if offset >= 0:
                found[place.topic, place.partition] = offset
            else:  # this is how the client says that it timed out waiting for the leader
                trouble = TimeoutError(f"the leader of {place.topic}/{place.partition} did not answer in time")
        if trouble is not None:
            self.trouble = str(trouble)
            if not found:
                raise trouble
        return found
