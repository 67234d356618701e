"""The sampling topic: the share of a pipeline's messages that its emitters send beacons of.

One compacted partition. Key: the pipeline; value: JSON `{"sample": N}`, where ids whose hash modulo 2^32 is below N are
in the sample. Without a record, or with one without a value, the sample of a pipeline takes all. The aggregator writes
it.
"""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.broker.errors import BrokerRefusals, kafka_error, needs
from lagloss.broker.fork_gate import fork_gate
from lagloss.broker.topics import SAMPLING
from lagloss.wire.format import SAMPLE_ALL

QUERY_TIMEOUT_S: Final = 1.0
REREAD_S: Final = 600.0
"""Seconds between two readings from the beginning, which find a topic that was recreated."""
RETRY_S: Final = 60.0
"""Seconds before a topic that could not be read is read again."""
HELD_BACK_MS: Final = 30_000
"""Time for which the broker holds back the answer to a fetch while nothing is new."""
BATCH: Final = 1_000


def encode_sample(sample: int) -> bytes | None:
    """Return the value of a pipeline's record: none if all of its ids are taken."""
    return None if sample == SAMPLE_ALL else json.dumps({"sample": sample}).encode()


def decode_sample(value: bytes | None) -> int:
    """Return the sample in a record's value.

    Raises:
        ValueError: the value is malformed.
    """
    if value is None:
        return SAMPLE_ALL
    document = json.loads(value)
    sample = document.get("sample") if isinstance(document, dict) else None
    if not isinstance(sample, int) or isinstance(sample, bool) or not 1 <= sample <= SAMPLE_ALL:
        raise ValueError(f"expected a sample between 1 and {SAMPLE_ALL}, found {sample!r}")
    return sample


class SampleTable:
    """The newest sample of each pipeline, read from the topic. Used by one thread; logs nothing.

    `current` and `samples` raise nothing and wait for nothing, except for the first answer (`QUERY_TIMEOUT_S` each for
    the end of the topic and for its content): while the broker cannot be asked they return what was last known, and at
    first that every pipeline takes all.

    Args:
        cluster: its addresses, or a connection.
        config: more librdkafka properties; they override the ones set here.
    """

    def __init__(self, cluster: Cluster, config: Mapping[str, Any] | None = None, topic: str = SAMPLING) -> None:
        self._cluster = cluster
        self._refusals = BrokerRefusals()
        self._config: dict[str, Any] = {
            "client.id": "lagloss-sampling",
            "group.id": "lagloss-sampling",  # required by the client; nothing is ever committed or subscribed to
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": HELD_BACK_MS,
            "log_level": 0,
            **(config or {}),
            "error_cb": self._refusals.take,
        }
        self._place = TopicPartition(topic, 0, OFFSET_BEGINNING)
        self._consumer: Consumer | None = None
        self._end: int | None = None
        """End of the topic when the current reading began; None once that is reached."""
        self._read: dict[str, int] = {}
        """Samples of the current reading or, once that is over, the known ones."""
        self._known: Mapping[str, int] | None = None
        self._begin_at = 0.0

    def current(self, pipeline: str) -> int:
        """Return the sample of this pipeline."""
        return self.samples().get(pipeline, SAMPLE_ALL)

    def samples(self) -> Mapping[str, int]:
        """Return the samples of sampled pipelines."""
        try:
            if time.monotonic() >= self._begin_at:
                is_first = self._consumer is None
                consumer = self._begin()
                if is_first:
                    self._take_to_end(consumer, QUERY_TIMEOUT_S)
            if self._consumer is not None:
                self._take(self._consumer, 0)
        except KafkaException:
            pass  # keep the last known
        return self._known or {}

    def read(self, timeout_s: float) -> Mapping[str, int]:
        """Read the topic from its beginning to its end and return the samples; later records wait for the next reading.

        Raises:
            KafkaException: the broker did not answer in time, or refuses.
        """
        try:
            consumer = self._begin()
            try:
                if not self._take_to_end(consumer, timeout_s):
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            finally:
                consumer.unassign()
        except KafkaException as error:
            if self._consumer is not None:
                self._consumer.poll(0)  # for the refusals
            cause = self._refusals.explain(kafka_error(error))
            raise KafkaException(needs(cause, "READ", f"topic {self._place.topic}")) from error
        self._refusals.forget()
        return self._known or {}

    def close(self) -> None:
        if self._consumer is not None:
            with fork_gate:
                self._consumer.close()
                self._consumer = None

    def detach_after_fork(self) -> None:
        """Forget the parent's client without touching it, in a forked child, where its threads do not exist."""
        if self._consumer is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._consumer))
        self._consumer = None

    def _begin(self) -> Consumer:
        """Begin to read the topic from its beginning. Raises KafkaException."""
        self._begin_at = time.monotonic() + RETRY_S
        if self._consumer is None:
            with fork_gate:
                self._consumer = Consumer(KafkaConnection.of(self._cluster).client(self._config))
        low, high = self._consumer.get_watermark_offsets(self._place, timeout=QUERY_TIMEOUT_S)
        self._consumer.assign([self._place])
        self._begin_at = time.monotonic() + REREAD_S
        self._read, self._end = {}, high
        if low >= high:
            self._reached_end()
        return self._consumer

    def _take_to_end(self, consumer: Consumer, timeout_s: float) -> bool:
        """Continue the current reading; return True if it reached the end in that time."""
        deadline = time.monotonic() + timeout_s
        while self._end is not None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self._take(consumer, left_s)
        return True

    def _take(self, consumer: Consumer, timeout_s: float) -> None:
        """Take in the records that have come; waits for the first record at most."""
        for message in consumer.consume(1, timeout_s) + consumer.consume(BATCH, 0):
            error = message.error()
            if error is None:
                self._apply(message)
            # In a compacted topic the last records may be gone: then only the client's end-of-partition marks the end.
            is_end = error is not None and error.code() == KafkaError._PARTITION_EOF
            if self._end is not None and (is_end or (message.offset() or 0) + 1 >= self._end):
                self._reached_end()

    def _apply(self, message: Message) -> None:
        try:
            pipeline, sample = (message.key() or b"").decode(), decode_sample(message.value())
        except ValueError:
            return  # not the aggregator's
        if sample == SAMPLE_ALL:
            self._read.pop(pipeline, None)
        else:
            self._read[pipeline] = sample

    def _reached_end(self) -> None:
        self._end = None
        self._known = self._read
