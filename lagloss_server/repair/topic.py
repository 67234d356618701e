"""Repairs of records: from the topics before the place into them, each batch a transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.broker.errors import kafka_error
from lagloss.wire.format import OffsetRange
from lagloss_server.base.errors import NotEnoughData
from lagloss_server.extraction import BROKEN_HEADERS
from lagloss_server.repair import plan as plans
from lagloss_server.repair.ledger import StoredRepair
from lagloss_server.repair.lost import LostId
from lagloss_server.repair.plan import PlannedMessage
from lagloss_server.repair.records import TIMEOUT_S, MessageKey, RecordPosition, TopicRecords, with_keys
from lagloss_server.repair.sender import BatchRefused, OutgoingRecord, RepairSender
from lagloss_server.repair.site import RecordSource
from lagloss_server.repair.transport import RecordsRefused, Say


class TopicTransport:
    """Reads records of some sources of a cluster, and sends them (`RepairTransport`)."""

    most = plans.MAX_BATCH

    def __init__(self, cluster: Cluster, cluster_name: str, sources: Sequence[RecordSource]) -> None:
        self._cluster, self._sources = cluster, sources
        self._stack = ExitStack()
        self._records = self._stack.enter_context(closing(TopicRecords(cluster, cluster_name)))

    def close(self) -> None:
        self._stack.close()

    def locate(self, messages: Sequence[LostId], say: Say) -> dict[MessageKey, RecordPosition]:
        return self._records.locate(self._sources, messages, say)

    def ends(self) -> dict[str, dict[int, int]]:
        return {
            topic: {partition: marks.high for partition, marks in self._records.watermarks(topic).items()}
            for topic in self._targets
        }

    def rate(self) -> float:
        return sum(map(self._records.rate, self._targets))

    @property
    def _targets(self) -> dict[str, None]:
        return dict.fromkeys(source.target for source in self._sources)

    def begin(self, repair: StoredRepair) -> None:
        self._name = repair.name
        self._extractors = [(source, self._records.extractor(source)) for source in self._sources]
        sender = RepairSender(self._cluster, repair.id, repair.name, repair.plan.topics[0])
        self._sender = self._stack.enter_context(sender)
        self._committed = self._sender.begin()

    def resume(self, repair: StoredRepair, plan: Sequence[PlannedMessage]) -> tuple[int, list[PlannedMessage]]:
        is_open = any(planned.state == "sending" for planned in plan)
        sent = self._read_back(repair) if self._committed is None and is_open else None
        return plans.resume(plan, repair.position, self._committed, sent)

    def _read_back(self, repair: StoredRepair) -> set[MessageKey]:
        """Return the messages that the topics themselves show as sent, where Kafka has forgotten the position."""
        sent: set[MessageKey] = set()
        for target in self._targets:
            ends = repair.plan.ends[target]
            marks = self._records.watermarks(target)
            ranges = [
                OffsetRange(partition, max(mark.low, ends.get(partition, mark.low)), mark.high - 1)
                for partition, mark in marks.items()
                if mark.high > max(mark.low, ends.get(partition, mark.low))
            ]
            for batch in self._records.read(target, ranges):
                ours = [record for record in batch if record.replay == self._name.encode()]
                for source, extractor in self._extractors if ours else ():
                    if source.target == target:
                        sent |= {key for _, key in with_keys(extractor, ours)}
            if self._records.is_held_back(target):
                raise NotEnoughData(
                    detail=f"an open transaction in {target} hides what was sent; try again once it has ended"
                )
        return sent

    def read(self, waiting: Sequence[PlannedMessage]) -> dict[int, OutgoingRecord]:
        """Return the records at these positions that still are those of the messages."""
        by_place = {message.record: message for message in waiting if isinstance(message.record, RecordPosition)}
        read = self._records.read_at(by_place.keys())
        outgoing: dict[int, OutgoingRecord] = {}
        for source, extractor in self._extractors:
            places = {(place.partition, place.offset): place for place in read if place.topic == source.topic}
            for record, key in with_keys(extractor, [read[place] for place in places.values()]) if places else ():
                place = places[record.partition, record.offset]
                if by_place[place].message.key == key and record.headers is not BROKEN_HEADERS:
                    headers = record.headers_to_send(place.topic, source.extraction, self._name)
                    copied = OutgoingRecord(place.target, record, headers, keeps_partition=place.topic == place.target)
                    outgoing.setdefault(by_place[place].position, copied)
        return outgoing

    def send(self, contents: Mapping[int, OutgoingRecord], position: int) -> Collection[int]:
        positions = sorted(contents)
        try:
            self._sender.send([contents[its] for its in positions], position)
        except BatchRefused as refused:
            raise RecordsRefused([positions[index] for index in refused.indexes]) from refused
        return ()


def settings_of(cluster: Cluster, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the settings of topics, of those that the user may see them of.

    Raises:
        KafkaException: the brokers do not answer.
    """
    admin = AdminClient(KafkaConnection.of(cluster).client({"log_level": 0}))
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    settings: dict[str, dict[str, str]] = {}
    for resource, described in admin.describe_configs(resources).items():
        try:
            settings[resource.name] = {name: entry.value for name, entry in described.result(TIMEOUT_S).items()}
        except KafkaException as error:
            if kafka_error(error).code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise
    return settings
