"""What the reference pipeline's emitters have told lagloss, read from its topics as they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, TopicPartition

from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.wire.format import EmitterReport, decode_block, decode_report
from pipeline_under_test.stream.topology import NEXT


@dataclass
class Beacons:
    """What a pipeline's emitters sent: beacons and distinct hashes by checkpoint, and each emitter's last report."""

    ids: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    last_reports: dict[bytes, EmitterReport] = field(default_factory=dict)

    def out(self, node: str, to: str) -> set[int]:
        return self.ids[f"{node}.out:{to}"] if len(NEXT[node]) > 1 else self.ids[f"{node}.out"]

    def exits(self, node: str) -> set[int]:
        names = [f"{node}.{way}" for way in ("out", "filtered", "dead")] + [f"{node}.out:{to}" for to in NEXT[node]]
        return set().union(*(self.ids[name] for name in names))


def records(bootstrap: str, topic: str, pipeline: str) -> Iterator[bytes]:
    """All values of a topic, as of now, in which a pipeline's name stands: others, which are most of what is in a topic
    that many tests share, need not be decoded."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, "log_level": 0}
    )
    numbers = consumer.list_topics(topic, 10).topics[topic].partitions
    left = {}
    for place in consumer.offsets_for_times([TopicPartition(topic, number, OFFSET_END) for number in numbers], 10):
        if place.offset > 0:
            left[place.partition] = place.offset
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in left])
    while left:
        message = consumer.poll(10)
        assert message is not None
        assert not message.error()
        if message.offset() + 1 >= left.get(message.partition(), 0):
            left.pop(message.partition(), None)
        if pipeline.encode() in message.value():
            yield message.value()
    consumer.close()


def read_beacons(bootstrap: str, pipeline: str) -> Beacons:
    found, seen = Beacons(), set()
    for value in records(bootstrap, BEACONS, pipeline):
        block = decode_block(value)
        if block.pipeline == pipeline and (block.emitter, block.seq) not in seen:
            seen.add((block.emitter, block.seq))
            found.ids[block.checkpoint].update(block.id_hash.tolist())
            found.counts[block.checkpoint] += block.count
    for value in records(bootstrap, REPORTS, pipeline):
        report = decode_report(value)
        if report.pipeline == pipeline:
            newest = found.last_reports.get(report.emitter)
            if newest is None or newest.seq < report.seq:
                found.last_reports[report.emitter] = report
    return found
