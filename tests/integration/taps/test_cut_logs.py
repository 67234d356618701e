"""A partition whose tail is lost, as by an unclean election, and that has grown beyond its old end since."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from taps.plan import Look, Suspect, TapPlan
from taps.planner import lost_tails
from taps.topic_reader import TopicReader
from tests.support.cut_logs import cut, log_file

TOPIC = "cut"
KEPT, LOST, NEW = 3, 9, 30


def produce(broker: EmbeddedKafka, partition: int, records: int) -> None:
    """Produce records one by one: each is a batch."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "log_level": 0})
    for _ in range(records):
        producer.produce(TOPIC, b"x", partition=partition)
        assert producer.flush(20) == 0


@pytest.mark.slow
def test_a_log_that_was_cut_short_and_has_grown_since_is_noticed(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path / "kafka") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(20)
        produce(broker, 0, KEPT)
        produce(broker, 1, KEPT)
        log = log_file(tmp_path / "kafka", TOPIC, 1)
        size = log.stat().st_size
        produce(broker, 1, LOST)
        reader = TopicReader(broker.bootstrap, TOPIC)
        assert not reader.allows_unclean_election()
        look = reader.newest().look
        plan = TapPlan(1, look.at_ms, 8, 1 << 32, positions=look.ends, epochs=look.epochs)
        assert plan.positions == {0: KEPT, 1: KEPT + LOST}
        cut(broker, log, size)
        transaction = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": TOPIC, "log_level": 0})
        transaction.init_transactions(30)
        transaction.begin_transaction()
        transaction.produce(TOPIC, b"open", partition=1)
        assert transaction.flush(20) == 0
        produce(broker, 0, NEW)
        produce(broker, 1, NEW - 1)
        look = reader.newest().look
        assert look.ends == {0: KEPT + NEW, 1: KEPT + NEW}
        assert lost_tails(plan, look, {}, reader.whole_until) == {1: KEPT}
        for position in range(KEPT + 3):
            read = replace(plan, positions={1: position})
            assert lost_tails(read, look, {}, reader.whole_until) == ({1: KEPT} if position > KEPT else {})
            assert lost_tails(read, look, plan.positions, reader.whole_until) == {1: KEPT}
        partly = Look(look.at_ms, {1: replace(look.logs[1], stable_end=KEPT + 2, end=KEPT + 2)})
        assert lost_tails(plan, partly, {}, reader.whole_until) == {1: KEPT}
        following = replace(plan, positions={0: KEPT, 1: KEPT}, epochs=look.epochs)
        assert lost_tails(following, look, {}, reader.whole_until) == {}
        suspect = Suspect(0, KEPT, plan.epochs[1], look.epochs[1] + 1)
        with pytest.raises(KafkaException):  # by a leader that is not the newest
            reader.whole_until({1: suspect})
        entry = ConfigEntry("unclean.leader.election.enable", "true", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(20)
        assert reader.allows_unclean_election()
        reader.close()
