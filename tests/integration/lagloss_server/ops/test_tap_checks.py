"""What `lagloss doctor` finds of taps on a real broker: what can be read, and what that says of the numbers."""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import text

from lagloss_server.base.instances import write_endpoints
from lagloss_server.base.settings import Settings
from lagloss_server.model.definition import parse_definition
from lagloss_server.ops.checks import Check
from lagloss_server.ops.doctor import check_taps
from lagloss_server.store.store import Store
from tests.support.kafka_log import wait_for
from tests.support.tap_rows import store_tap

DEFINITION = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: tapped}
spec:
  nodes:
    - {name: shop, to: [snk], taps: {out: {topic: TOPIC, id: $.id, eventTime: $.at}}}
    - {name: snk, taps: {in: {group: GROUP}}}
"""


@dataclass(frozen=True)
class Tapped:
    """A pipeline whose topic and group have names of the test's own."""

    store: Store
    database_url: str
    bootstrap: str
    topic: str

    @property
    def group(self) -> str:
        return f"{self.topic}.group"

    def make_topic(self, **config: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(self.topic, 2, 1, config={k.replace("_", "."): v for k, v in config.items()})])[
            self.topic
        ].result(20)

    def commit(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        producer.produce(self.topic, b"x", b"k", partition=1)
        assert producer.flush(20) == 0
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group})
        consumer.commit(offsets=[TopicPartition(self.topic, 1, 1)], asynchronous=False)
        consumer.close()

    def checks(self) -> dict[str, Check]:
        found = check_taps(Settings(kafka_bootstrap=self.bootstrap, database_url=self.database_url))
        return {check.name.replace(self.topic, "TOPIC"): check for check in found}


@pytest.fixture
def tapped(store: Store, database_url: str, kafka_bootstrap: str) -> Tapped:
    found = Tapped(store, database_url, kafka_bootstrap, f"tapped-{uuid.uuid4().hex[:8]}")
    store.apply(parse_definition(DEFINITION.replace("TOPIC", found.topic).replace("GROUP", found.group)), 0)
    return found


def test_without_taps_nothing_of_kafka_is_asked(database_url: str) -> None:
    assert check_taps(Settings(database_url=database_url)) == [Check("taps", "ok", "none defined")]


def test_a_topic_and_a_group_that_can_be_read_are_well_and_say_whose_clock_it_is(tapped: Tapped) -> None:
    tapped.make_topic()
    tapped.commit()
    found = tapped.checks()
    assert {name: check.verdict for name, check in found.items()} == {
        "topic TOPIC": "ok",
        "group commits": "ok",
        "group TOPIC.group": "ok",
    }
    assert found["topic TOPIC"].finding == "2 partitions; CreateTime: lags at its `out` depend on the producers' clocks"
    assert found["group TOPIC.group"].finding == f"committed in 1 partitions of {tapped.topic}"


def test_append_times_are_the_brokers(tapped: Tapped) -> None:
    tapped.make_topic(message_timestamp_type="LogAppendTime")
    assert tapped.checks()["topic TOPIC"].finding == "2 partitions"


def test_unclean_elections_leave_windows_unknown(tapped: Tapped) -> None:
    tapped.make_topic(unclean_leader_election_enable="true")
    found = tapped.checks()["topic TOPIC"]
    assert (found.verdict, "unclean leader elections are allowed" in found.finding) == ("ok", True)


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_is_no_set_to_compare_with(tapped: Tapped, policy: str) -> None:
    tapped.make_topic(cleanup_policy=policy)
    found = tapped.checks()["topic TOPIC"]
    assert (found.verdict, "losses cannot be measured" in found.finding) == ("warn", True)


def test_what_is_missing_is_named(tapped: Tapped) -> None:
    found = tapped.checks()
    assert (found["topic TOPIC"].verdict, "does not exist" in found["topic TOPIC"].finding) == ("fail", True)
    assert found["group TOPIC.group"].verdict == "warn"
    assert found["group TOPIC.group"].finding == f"not committed in {tapped.topic}"


def test_a_connector_is_judged_by_the_offsets_that_it_has_stored(tapped: Tapped) -> None:
    tapped.make_topic()
    storage = f"{tapped.topic}.offsets"
    admin = AdminClient({"bootstrap.servers": tapped.bootstrap})
    admin.create_topics([NewTopic(storage, 2, 1)])[storage].result(20)
    wait_for(lambda: storage in admin.list_topics(timeout=10).topics, what="the offset topic")
    definition = DEFINITION.replace("{group: GROUP}", f"{{connector: mirror, offsets: {storage}}}, out: beacons")
    tapped.store.apply(parse_definition(definition.replace("TOPIC", tapped.topic)))
    name = "connector mirror"
    found = tapped.checks()
    assert found.keys() == {"topic TOPIC", name}
    assert (found[name].verdict, found[name].finding) == ("warn", f"no offsets of one cluster for {tapped.topic}")
    producer = Producer({"bootstrap.servers": tapped.bootstrap})
    producer.produce(storage, b'{"lsn": 7}', b'["mirror", {"server": "shop"}]')
    assert producer.flush(20) == 0
    assert tapped.checks()[name].verdict == "fail"
    key = f'["mirror", {{"cluster": "a", "partition": 1, "topic": "{tapped.topic}"}}]'
    producer.produce(storage, b'{"offset": 7}', key)
    assert producer.flush(20) == 0
    found = tapped.checks()
    assert (found[name].verdict, found[name].finding) == ("ok", f"offsets of 1 partitions of {tapped.topic}")
    definition = definition.replace(storage, "no-such-topic")
    tapped.store.apply(parse_definition(definition.replace("TOPIC", tapped.topic)))
    assert tapped.checks()["offset topic no-such-topic"].verdict == "fail"


def test_a_cluster_that_the_environment_does_not_have_is_named(tapped: Tapped) -> None:
    definition = DEFINITION.replace("{topic: TOPIC,", "{topic: TOPIC, cluster: nowhere,").replace("GROUP", "g")
    tapped.store.apply(parse_definition(definition))
    found = tapped.checks()["taps on nowhere"]
    assert (found.verdict, "LAGLOSS_KAFKA_CLUSTER_NOWHERE_BOOTSTRAP" in found.finding) == ("fail", True)


def test_taps_that_wait_and_records_that_could_not_be_read_are_counted(tapped: Tapped) -> None:
    tapped.make_topic()
    wait_for(lambda: tapped.checks()["topic TOPIC"].verdict == "ok", what="the topic")
    topic, group = tapped.store.pipeline("tapped").definition.taps
    at_ms = int(time.time() * 1_000)
    with tapped.store.engine.begin() as connection:
        bad = {"no_id": (2, 0, 41, at_ms), "not_json": (7, 1, 12, at_ms)}
        store_tap(connection, topic, since_ms=0, through_ms=at_ms, unreadable=bad, trouble="no answer")
        store_tap(connection, group, since_ms=0, through_ms=at_ms)
    found = tapped.checks()
    assert found["waiting taps"].finding == f"topic {tapped.topic} for shop of tapped: no answer"
    bad_records = found["unreadable records"]
    assert bad_records.verdict == "warn"
    assert bad_records.finding == f"7 not_json of topic {tapped.topic} for shop of tapped, for example 1@12, and 1 more"


STORED = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: tapped}
spec:
  nodes:
    - {name: shop, to: [snk]}
    - {name: snk, taps: {out: {database: lagloss, table: public.click, id: id, eventTime: at, cursor: n}}}
"""


def test_lagloss_is_the_database_of_up_while_it_runs_with_it(
    tapped: Tapped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    tapped.store.apply(parse_definition(STORED))
    columns = "n bigserial PRIMARY KEY, id text, at timestamptz"
    with tapped.store.engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE click ({columns})"))
    settings = Settings(
        kafka_bootstrap=tapped.bootstrap, database_url=tapped.database_url, data_dir=tmp_path, taps_url=""
    )
    name = "table public.click of lagloss"

    def finding() -> tuple[str, str]:
        (check,) = (check for check in check_taps(settings) if check.name == name)
        assert "LAGLOSS_TABLES_LAGLOSS_URL" not in os.environ
        return check.verdict, check.finding

    verdict, problem = finding()
    assert (verdict, "LAGLOSS_TABLES_LAGLOSS_URL is not set" in problem) == ("fail", True)
    write_endpoints(tmp_path, {"database": "postgresql://another/lagloss"})
    assert finding() == (verdict, problem)
    write_endpoints(tmp_path, {"database": tapped.database_url})
    assert finding() == ("ok", "read by n, a sequence")
