"""Repairs of records: from the topics before the place into them, each batch a transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing

from lagloss.broker.connection import Cluster
from lagloss.wire.format import OffsetRange
from lagloss_server.base.errors import NotEnoughData
from lagloss_server.extraction import BROKEN_HEADERS
from lagloss_server.repair import plan as plans
from lagloss_server.repair.ledger import StoredRepair
from lagloss_server.repair.lost import LostId
from lagloss_server.repair.plan import PlannedMessage
from lagloss_server.repair.records import MessageKey, RecordPosition, TopicRecord, TopicRecords, with_keys
from lagloss_server.repair.sender import OutgoingRecord, RepairSender
from lagloss_server.repair.site import RecordSource
from lagloss_server.repair.transport import Say


class TopicTransport:
    """Reads records of some sources of a cluster, and sends them (`RepairTransport`)."""

    most = plans.MAX_BATCH

    def __init__(self, cluster: Cluster, cluster_name: str, sources: Sequence[RecordSource]) -> None:
        self._cluster, self._sources = cluster, sources
        self._stack = ExitStack()
        self._records = self._stack.enter_context(closing(TopicRecords(cluster, cluster_name)))
        self._extractions = {source.topic: source.extraction for source in sources}

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
        self._extractors = {source.topic: self._records.extractor(source) for source in self._sources}
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
        for source in self._sources:
            ends = repair.plan.ends[source.target]
            marks = self._records.watermarks(source.target)
            ranges = [
                OffsetRange(partition, max(mark.low, ends.get(partition, mark.low)), mark.high - 1)
                for partition, mark in marks.items()
                if mark.high > max(mark.low, ends.get(partition, mark.low))
            ]
            for batch in self._records.read(source.target, ranges):
                ours = [record for record in batch if record.replay == self._name.encode()]
                sent |= {key for _, key in with_keys(self._extractors[source.topic], ours)} if ours else set()
            if self._records.is_held_back(source.target):
                raise NotEnoughData(
                    detail=f"an open transaction in {source.target} hides what was sent; try again once it has ended"
                )
        return sent

    def read(self, waiting: Sequence[PlannedMessage]) -> dict[int, OutgoingRecord]:
        """Return the records at these positions that still are those of the messages."""
        by_place = {message.record: message for message in waiting if isinstance(message.record, RecordPosition)}
        read = self._records.read_at(by_place.keys())
        outgoing: dict[int, OutgoingRecord] = {}
        for topic, extractor in self._extractors.items():
            places = {(place.partition, place.offset): place for place in read if place.topic == topic}
            for record, key in with_keys(extractor, [read[place] for place in places.values()]) if places else ():
                place = places[record.partition, record.offset]
                if by_place[place].message.key == key and record.headers is not BROKEN_HEADERS:
                    outgoing[by_place[place].position] = self._outgoing(place, record)
        return outgoing

    def _outgoing(self, place: RecordPosition, record: TopicRecord) -> OutgoingRecord:
        headers = record.headers_to_send(place.topic, self._extractions[place.topic], self._name)
        return OutgoingRecord(place.target, record, headers, keeps_partition=place.topic == place.target)

    def send(self, contents: Mapping[int, OutgoingRecord], position: int) -> Collection[int]:
        self._sender.send([contents[index] for index in sorted(contents)], position)
        return ()
