"""A Kafka with TLS, passwords and ACLs: every part with the rights that docs/kafka.md gives it and no other, what each
says where one is missing, and that no secret is in any output."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from aggregator.consumer_lag.lag import ConsumerLags
from aggregator.kernel.spark_reader import BlockReader
from aggregator.maintenance.sampling_publisher import SampleAnnouncer
from aggregator.node_groups import NodeGroup
from lagloss.broker.connection import KafkaConnection
from lagloss.broker.errors import kafka_error
from lagloss.broker.topics import BEACONS, REPORTS, SAMPLING, create_topics
from lagloss.errors import KafkaRefuses
from lagloss.sdk.emitter import Emitter
from lagloss.wire.format import OffsetRange
from lagloss_server.base.settings import Settings
from lagloss_server.groups.consumer_groups import ConsumerGroups
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.window import rfc3339
from lagloss_server.ops import doctor
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.store.store import Store
from taps.cluster_topics import ClusterTopics
from taps.commit_log import CommitLog, GroupCommits, PolledGroups
from taps.discovery.survey import TopicSurvey
from taps.plan import OffsetSpan
from taps.topic_reader import TopicReader
from tests.conftest import fresh_database
from tests.integration.aggregator.test_aggregator_process import MINUTES, define, rows
from tests.integration.aggregator.test_cluster import A_MINUTE, aggregator, asked, send_history
from tests.integration.conftest import DEFINITION, YAML, serving
from tests.support.closers import wait_until
from tests.support.kafka_log import wait_for
from tests.support.secured_kafka import (
    OTHER_MECHANISMS,
    PASSWORDS,
    SCOPE,
    Authority,
    Right,
    SecuredKafka,
    client_of,
    documented_rights,
    expired_listener,
    secured_kafka,
)
from tests.support.spark_cluster import Cluster, spark_cluster
from tests.support.token_server import SECRET_OF, token_server

CLI = [sys.executable, "-m", "lagloss_server.cli.main"]
PARTS = ("prepare", "emitter", "aggregator", "dashboard", "doctor", "taps")


@pytest.fixture(scope="module")
def secured(jars: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """The broker; the users of the parts have what the table gives them, `up` all of it, `service` nothing."""
    rights = documented_rights()
    with token_server(SCOPE) as tokens, secured_kafka(tmp_path_factory.mktemp("secured"), tokens) as running:
        for part in PARTS:
            running.allow(part, rights[part])
        running.allow("aggregator", rights["consumer lag"])
        running.allow("doctor", rights["doctor of taps"])
        for part in rights:
            running.allow("up", rights[part])
        yield running


class LetIn:
    """Makes this process, and those that it starts, come as a user."""

    def __init__(self, secured: SecuredKafka, monkeypatch: pytest.MonkeyPatch) -> None:
        self._secured = secured
        self._monkeypatch = monkeypatch

    def forget(self) -> None:
        for name in [name for name in os.environ if name.startswith("LAGLOSS_KAFKA_")]:
            self._monkeypatch.delenv(name)

    def __call__(self, user: str, **changes: str) -> str:
        return self.by("password", user, **changes)

    def by(self, way: str, user: str, **changes: str) -> str:
        """Come with a password or a token; return the broker's address."""
        environment = self._secured.environment if way == "password" else self._secured.with_token
        self.forget()
        for name, value in environment(user, **changes).items():
            self._monkeypatch.setenv(name, value)
        return self._secured.bootstrap


@pytest.fixture
def let_in(secured: SecuredKafka, monkeypatch: pytest.MonkeyPatch) -> LetIn:
    return LetIn(secured, monkeypatch)


@pytest.fixture
def topics(secured: SecuredKafka, let_in: LetIn) -> str:
    """lagloss's topics, made by the user who may; the broker's address."""
    create_topics(let_in("prepare"))
    return secured.bootstrap


def kafka_checks() -> dict[str, doctor.Check]:
    """What `lagloss doctor` finds of Kafka."""
    return {check.name: check for check in doctor.run(Settings())}


@pytest.mark.parametrize("way", ["password", "token"])
def test_each_part_needs_no_more_than_the_table_gives_it(
    way: str, topics: str, let_in: LetIn, postgres: EmbeddedPostgres
) -> None:
    let_in.by(way, "emitter")
    with Emitter("orders", "shop", first=True) as emitter:
        for at in range(100):
            emitter.received(f"m-{at}", int(time.time() * 1_000))
        assert emitter.flush(20), emitter.stats()
    with fresh_database(postgres) as database_url, serving(LAGLOSS_DATABASE_URL=database_url) as (_, client):
        wait_for(lambda: client.get("/healthz").is_success, what="the collector")
        assert client.put("/v1/pipelines/orders", content=DEFINITION.replace("NAME", "orders"), headers=YAML).is_success
        beacon = {"message_id": "m", "event_time": int(time.time() * 1_000), "checkpoint": "in"}
        answer = client.post("/v1/beacons", json={"pipeline": "orders", "node": "src", "beacons": [beacon]})
        assert answer.status_code == httpx2.codes.ACCEPTED, answer.text
    let_in.by(way, "dashboard")
    log = BeaconLog(topics, BEACONS)
    ranges = [OffsetRange(place, 0, end - 1) for place, end in log.ends().items() if end]
    assert len(list(log.records(ranges))) == sum(item.last + 1 for item in ranges) > 0
    log.close()
    assert sum(BeaconLog(topics, REPORTS).ends().values()) > 0
    let_in.by(way, "aggregator")
    wait_for(lambda: is_asked(topics), what="a coordinator")
    announcer = SampleAnnouncer(topics)
    assert announcer.reconcile({"orders": 1_000}) == 1
    assert announcer.reconcile({}) == 1
    announcer.close()
    let_in.by(way, "doctor")
    checks = kafka_checks()
    assert {checks[name].verdict for name in ("Kafka", BEACONS, REPORTS, SAMPLING, "Kafka clock")} == {"ok"}
    assert checks["Kafka"].finding.endswith("SASL_SSL")
    printed = subprocess.run([*CLI, "doctor"], capture_output=True, text=True, timeout=60, check=False)
    assert f"{'sasl.password' if way == 'password' else 'sasl.oauthbearer.client.secret'} = ***" in printed.stdout
    for word in (PASSWORDS["doctor"], SECRET_OF.format("doctor")):
        assert word not in printed.stdout + printed.stderr


def is_asked(bootstrap: str) -> bool:
    """Whether the brokers answer questions about groups."""
    with closing(ConsumerGroups(bootstrap)) as groups:
        try:
            return groups.committed(["none"]) == {"none": {}}
        except KafkaException:
            return False


def commit_some(secured: SecuredKafka, topic: str, group: str, produced: int, committed: int) -> None:
    """A topic of one partition with records, and a group that has committed some of them."""
    admin = AdminClient(client_of(secured))
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    producer = Producer(client_of(secured))
    for _ in range(produced):
        producer.produce(topic, b"x", partition=0)
    assert producer.flush(20) == 0
    consumer = Consumer({**client_of(secured), "group.id": group})
    place = TopicPartition(topic, 0, committed)
    wait_for(lambda: is_committed(consumer, place), what="a coordinator")
    consumer.close()


def is_committed(consumer: Consumer, place: TopicPartition) -> bool:
    try:
        consumer.commit(offsets=[place], asynchronous=False)
    except KafkaException:
        return False
    return True


def test_consumer_lag_of_another_cluster(
    topics: str, secured: SecuredKafka, let_in: LetIn, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lagloss's own topics are on the open broker here, the group on the secured one."""
    let_in("admin")
    commit_some(secured, "orders.in", "orders.mid", produced=7, committed=2)
    let_in.forget()
    monkeypatch.setenv("LAGLOSS_KAFKA_BOOTSTRAP", kafka_bootstrap)
    for name, value in secured.environment("aggregator").items():
        monkeypatch.setenv(name.replace("LAGLOSS_KAFKA_", "LAGLOSS_KAFKA_CLUSTER_ORDERS_EU_"), value)
    lags = ConsumerLags(KafkaConnection.named("orders-eu"))
    _, found = lags.read([NodeGroup("orders", "mid", "orders.mid", "orders-eu")])
    lags.close()
    assert [(lag.topic, lag.offsets) for lag in found] == [("orders.in", 5)]


TAPPED = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: tapped}
spec:
  nodes:
    - {name: shop, to: [snk], taps: {out: {topic: tapped.in, id: $.id, eventTime: $.at}}}
    - {name: snk, taps: {in: {group: tapped.snk}}}
"""


def test_taps_read_topics_and_the_log_of_commits_with_their_rights_and_poll_without(
    topics: str,
    secured: SecuredKafka,
    let_in: LetIn,
    store: Store,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_in("admin")
    commit_some(secured, "tapped.in", "tapped.snk", produced=7, committed=2)
    store.apply(parse_definition(TAPPED), 0)
    monkeypatch.setenv("LAGLOSS_DATABASE_URL", database_url)
    let_in("taps")
    assert read_as_tap(topics) == ("log", 2, 7)
    let_in("doctor")
    found = kafka_checks()
    assert [found[name].verdict for name in ("topic tapped.in", "group commits", "group tapped.snk")] == ["ok"] * 3
    secured.forbid("service")
    secured.allow("service", [Right("topic", "tapped.in", ("READ", "DESCRIBE")), Right("groups", "", ("DESCRIBE",))])
    let_in("service")
    assert read_as_tap(topics) == ("polled", 2, 7)
    found = kafka_checks()
    assert found["topic tapped.in"].finding == (
        "1 partitions; cannot read its settings: DESCRIBE_CONFIGS on topic tapped.in is not allowed: an ACL is missing"
    )
    assert found["group commits"].finding.startswith("polled: ")
    secured.forbid("service")
    secured.allow("service", [Right("topic", "tapped.in", ("DESCRIBE",))])
    found = kafka_checks()
    assert found["topic tapped.in"].finding == "READ on topic tapped.in is not allowed: an ACL is missing"
    assert found["group tapped.snk"].verdict == "fail"
    assert surveyed(topics) == {"tapped.in": "denied"}
    secured.forbid("service")
    assert surveyed(topics) == {"tapped.in": "denied"}


def read_as_tap(bootstrap: str) -> tuple[str, int, int]:
    """How a tap learns commits of the group, its commit, and the end of the topic."""
    with (
        closing(TopicReader(bootstrap, "tapped.in")) as reader,
        closing(CommitLog.of_groups(bootstrap, ClusterTopics(bootstrap))) as log,
        closing(PolledGroups(bootstrap)) as groups,
    ):
        end = reader.look([0]).logs[0].stable_end
        records = reader.read([OffsetSpan(0, 0, end)])[0].offsets.size
        commits = GroupCommits(log, groups, "tapped.snk", "tapped.in")
        (mark, *_) = commits.read({}, int(time.time() * 1_000)).marks[0]
        return commits.kind, mark.offset, records


def surveyed(bootstrap: str) -> dict[str, str]:
    """Why a discovery has no sample of a topic."""
    survey = TopicSurvey(bootstrap, None, 0, int(time.time() * 1_000))
    survey.run(["tapped.in"])
    assert not survey.guesses
    return survey.reasons


@pytest.mark.parametrize("mechanism", OTHER_MECHANISMS)
def test_other_mechanisms_let_all_three_clients_in(
    mechanism: str, topics: str, let_in: LetIn, spark: SparkSession
) -> None:
    let_in("emitter", SASL_MECHANISM=mechanism)
    with Emitter("orders", "shop", first=True) as emitter:
        emitter.received("m", int(time.time() * 1_000))
        assert emitter.flush(20), emitter.stats()
    let_in("aggregator", SASL_MECHANISM=mechanism)
    with closing(BeaconLog(topics, BEACONS)) as log:
        ranges = [OffsetRange(place, 0, end - 1) for place, end in log.ends().items() if end]
    found = BlockReader(spark, topics, BEACONS, 2).records(ranges).count()
    assert found == sum(each.last + 1 for each in ranges) > 0
    wait_for(lambda: is_asked(topics), what="a coordinator")


def test_a_wrong_password_is_named_at_once(topics: str, let_in: LetIn, caplog: pytest.LogCaptureFixture) -> None:
    began = time.monotonic()
    with pytest.raises(KafkaRefuses, match=r"rejects user emitter: .* Authentication failed"):
        create_topics(let_in("emitter", SASL_PASSWORD="another"))
    with pytest.raises(KafkaRefuses, match=r"rejects user emitter: .*invalid_client"):
        create_topics(let_in.by("token", "emitter", SASL_OAUTHBEARER_CLIENT_SECRET="another"))
    assert time.monotonic() - began < 15
    let_in("emitter", SASL_PASSWORD="another")
    check = kafka_checks()["Kafka"]
    assert check.verdict == "fail"
    assert "rejects user emitter" in check.finding
    with caplog.at_level(logging.WARNING, "lagloss"), Emitter("orders", "shop") as emitter:
        emitter.received("m", int(time.time() * 1_000))
        assert not emitter.flush(4)
        assert "Authentication failed" in (emitter.stats().last_error or "")
    assert sum("buffering beacons until" in record.message for record in caplog.records) == 1


def test_a_certificate_that_is_not_trusted_is_named(secured: SecuredKafka, let_in: LetIn, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "other", "another CA").path
    with pytest.raises(KafkaRefuses, match="certificate verify failed"):
        create_topics(let_in("prepare", SSL_CA_LOCATION=str(foreign)))
    with expired_listener(secured.authority) as bootstrap:
        let_in("prepare", BOOTSTRAP=bootstrap)
        with pytest.raises(KafkaRefuses, match=r"certificate (verify failed|has expired)"):
            create_topics(bootstrap)


def test_a_missing_acl_is_named(topics: str, let_in: LetIn) -> None:
    with pytest.raises(KafkaRefuses, match=r"CREATE on topics .*: an ACL is missing"):
        create_topics(let_in("service"))
    with Emitter("orders", "shop") as emitter:
        emitter.received("m", int(time.time() * 1_000))
        assert not emitter.flush(3)
        assert emitter.stats().last_error == f"topic {BEACONS} does not exist, or an ACL for DESCRIBE on it is missing"
    let_in("dashboard")
    with Emitter("orders", "shop") as emitter:
        emitter.received("m", int(time.time() * 1_000))
        assert not emitter.flush(3)
        assert "WRITE on" in (emitter.stats().last_error or "")
        assert "is not allowed: an ACL is missing" in (emitter.stats().last_error or "")
    let_in("emitter")
    log = BeaconLog(topics, BEACONS)
    ranges = [OffsetRange(place, 0, end - 1) for place, end in log.ends().items() if end]
    with pytest.raises(Exception, match=f"READ on topic {BEACONS} is not allowed: an ACL is missing") as refused:
        list(log.records(ranges))
    assert kafka_error(refused.value).str()  # type: ignore[arg-type]
    checks = kafka_checks()
    assert checks[BEACONS].finding.endswith(f"DESCRIBE_CONFIGS on topic {BEACONS} is not allowed: an ACL is missing")
    assert checks["Kafka clock"].verdict == "warn"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_works(secured: SecuredKafka, let_in: LetIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`up`, its services on local Spark, and the reference pipeline, as one user, on topics with a company's names."""
    let_in("up")
    names = {"lagloss.beacons": "acme.b", "lagloss.reports": "acme.r", "lagloss.sampling": "acme.s"}
    for documented, name in names.items():
        monkeypatch.setenv(f"LAGLOSS_KAFKA_TOPIC_{documented.partition('.')[2].upper()}", name)
    rights = [right for of_part in documented_rights().values() for right in of_part if right.name in names]
    secured.allow("up", [right._replace(name=names[right.name]) for right in rights])
    environment = {**os.environ, "LAGLOSS_DATA_DIR": str(tmp_path / "data")}
    output, next_minute = tmp_path / "demo.txt", rfc3339(int(time.time()) // 60 * 60 + 60)

    def is_measured() -> bool:
        """Whether the past hour is closed, and messages of the running pipeline are counted."""
        assert process.poll() is None, output.read_text()
        if "pipeline: load" not in output.read_text():
            return False
        time.sleep(1)  # each look is a process
        words = [*CLI, "windows", "clicks", "--from", "-65m", "--json"]
        answer = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=True)
        windows = json.loads(answer.stdout)
        counted = [window["window_start"] for window in windows if window["messages"]]
        return sum(window["state"] != "open" for window in windows) > 50 and max(counted) >= next_minute

    with output.open("w") as file:
        process = subprocess.Popen([*CLI, "demo"], env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        wait_until(is_measured, 400, "for the demo's windows")
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(120)
    assert code == 0, output.read_text()
    logs = [path.read_text("utf-8", "replace") for path in (tmp_path / "data").rglob("*.log")]
    said = "\n".join([output.read_text(), *logs])
    assert PASSWORDS["up"] not in said
    assert "consumer lag read failed" not in said
    for name in names.values():
        with closing(BeaconLog(secured.bootstrap, name)) as log:
            assert len(log.partitions()) > 0
    with closing(BeaconLog(secured.bootstrap, "acme.b")) as log:
        assert sum(log.ends().values()) > 0


@pytest.mark.slow
def test_executors_of_a_cluster_need_no_file_and_show_no_secret(
    topics: str, let_in: LetIn, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """One cluster for both ways of coming: an aggregator with a password, then one with tokens."""
    name, start_s = f"cluster-{uuid.uuid4().hex[:8]}", int(time.time()) // 60 * 60 - 60 * (MINUTES + 5)
    lost = [A_MINUTE // 50] * (MINUTES - 1)
    let_in("emitter")
    send_history(topics, name, start_s)

    def shown(cluster: Cluster, way: str) -> str:
        """What Spark's page shows once all windows are closed."""
        with fresh_database(postgres) as database_url, closing(Store(database_url)) as store:
            define(store, name)
            let_in.by(way, "aggregator")
            with aggregator(cluster, topics, database_url, tmp_path / way) as (_, url):
                wait_until(lambda: [row["lost"]["min"] for row in rows(store, name, start_s)][:-1] == lost, 300)
                (application,) = wait_until(lambda: asked(url, 60), 120, "for Spark's page")
                pages = ("environment", "sql?details=true&planDescription=true&length=1000", "jobs", "allexecutors")
                return "\n".join(httpx2.get(f"{url}/{application['id']}/{page}", timeout=60).text for page in pages)

    secrets = {"password": PASSWORDS["aggregator"], "token": SECRET_OF.format("aggregator")}
    with spark_cluster(tmp_path) as cluster:
        texts = [shown(cluster, way) for way in secrets]
    assert all(len(text) > 1_000 for text in texts)
    logs = [path for path in tmp_path.rglob("*") if path.name in ("stderr", "stdout") or path.suffix == ".log"]
    said = "\n".join([*texts, *(path.read_text("utf-8", "replace") for path in logs)])
    for word in secrets.values():
        assert word not in said
        assert word.replace("\\", "\\\\").replace('"', '\\"') not in said
    assert "LoginModule required" not in said
