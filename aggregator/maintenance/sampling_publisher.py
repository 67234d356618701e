"""Publisher of sampling: announces to emitters, by the sampling topic, the share of each sampled pipeline."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from lagloss.broker.connection import KafkaConnection
from lagloss.broker.errors import kafka_error, needs
from lagloss.broker.sampling_topic import SampleTable, encode_sample
from lagloss.broker.topics import SAMPLING
from lagloss.wire.format import SAMPLE_ALL, share_of

log = structlog.get_logger()

TIMEOUT_S = 5.0
HELD_BACK_MS = 100
"""For the broker's answer where nothing is new: the next reading waits behind it."""


class SampleAnnouncer:
    """Makes the sampling topic say what definitions say. It remembers nothing: the topic is read anew each time, so it
    may have been written by another aggregator, or be another topic, by now."""

    def __init__(self, bootstrap: str, topic: str = SAMPLING) -> None:
        self._topic = topic
        self._table = SampleTable(bootstrap, {"fetch.wait.max.ms": HELD_BACK_MS}, topic)
        self._producer = Producer(
            KafkaConnection.of(bootstrap).client(
                {
                    "enable.idempotence": True,
                    "linger.ms": 0,
                    "message.timeout.ms": int(TIMEOUT_S * 1000),
                    "log_level": 0,
                }
            )
        )
        self._trouble = ""

    def reconcile(self, targets: Mapping[str, int], unknown: Collection[str] = ()) -> int:
        """Write a record for each pipeline whose sample in the topic differs from `targets` (pipelines it does not name
        take all ids; `unknown` ones stay as they are); return their number. A new error is logged and not raised: the
        next round tries again.
        """
        try:
            announced = self._table.read(TIMEOUT_S)
            known_samples = {pipeline: sample for pipeline, sample in announced.items() if pipeline not in unknown}
            written = self._write(_changes(known_samples, targets))
        except KafkaException as error:
            trouble = kafka_error(error).str()
            if trouble != self._trouble:
                log.warning("sample announcement failed", topic=self._topic, trouble=trouble)
            self._trouble = trouble
            return 0
        self._trouble = ""
        return written

    def _write(self, changes: Mapping[str, int]) -> int:
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failed.append(error)

        for pipeline, sample in changes.items():
            value = encode_sample(sample)
            self._producer.produce(self._topic, value, pipeline.encode(), partition=0, on_delivery=delivered)
        self._producer.flush(TIMEOUT_S + 1)
        if failed:
            raise KafkaException(needs(failed[0], "WRITE", f"topic {self._topic}"))
        for pipeline, sample in changes.items():
            log.info("sample announced", pipeline=pipeline, share=share_of(sample))
        return len(changes)

    def close(self) -> None:
        self._table.close()


def _changes(announced: Mapping[str, int], targets: Mapping[str, int]) -> dict[str, int]:
    """Return the samples that the topic lacks or has wrong, as they should be."""
    should = {pipeline: targets.get(pipeline, SAMPLE_ALL) for pipeline in sorted({*announced, *targets})}
    return {pipeline: sample for pipeline, sample in should.items() if announced.get(pipeline, SAMPLE_ALL) != sample}
