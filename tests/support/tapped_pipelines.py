"""Pipelines of which lagloss sees nothing but topics and commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lagloss.broker.topics import BEACONS
from lagloss_server.base.yaml_files import parse_yaml
from lagloss_server.model.definition import Definition
from lagloss_server.model.window import ListedWindow
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.store.store import Store
from pipeline_under_test.harness.measured import Measured, read_measured
from pipeline_under_test.harness.stack import ScenarioStack
from tests.support.kafka_log import consumer_of, wait_for

SETTLED_S = 150.0


@dataclass(frozen=True)
class Tapped:
    """A pipeline of the test's own, seen by taps alone. Topics and groups begin with its name."""

    name: str
    stack: ScenarioStack
    store: Store
    directory: Path

    @property
    def bootstrap(self) -> str:
        return self.stack.settings.require_kafka()

    def create_topics(self, partitions: int, *names: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.create_topics([NewTopic(name, partitions, 1) for name in names]).values():
            future.result(30)

    def records(self, topic: str, isolation: str = "read_committed") -> list[bytes]:
        """Return the values of all records that are in a topic now, as a plain consumer reads them."""
        with consumer_of(self.bootstrap, **{"enable.partition.eof": True, "isolation.level": isolation}) as consumer:
            left = set(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
            found = []
            while left:
                message = consumer.poll(30)
                assert message is not None, f"{topic} could not be read to its end"
                error = message.error()
                if error is None:
                    found.append(message.value() or b"")
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left.discard(message.partition())
            return found

    def apply(self, text: str) -> None:
        """Apply a definition, in which NAME stands for the pipeline's."""
        self.store.apply(parse_yaml(Definition, text.replace("NAME", self.name), "test"))

    def settled(self, starts: Iterable[int]) -> dict[int, Measured]:
        """Return the results of the windows with these starts (epoch s), once they are settled."""
        wanted = sorted(starts)
        wait_for(lambda: self._are_settled(wanted), timeout_s=SETTLED_S, what="the last word on all windows")
        with closing(BeaconLog(self.bootstrap, BEACONS)) as log:
            windows = self._windows(wanted)
            return {start: read_measured(self.store, log, self.name, windows[start]) for start in wanted}

    def _are_settled(self, starts: list[int]) -> bool:
        windows = self._windows(starts)
        return all(start in windows and windows[start].is_settled for start in starts)

    def _windows(self, starts: list[int]) -> Mapping[int, ListedWindow]:
        return {window.start_s: window for window in self.store.windows(self.name, starts[0], starts[-1] + 1)}
