"""A Kafka that knows its clients by their certificates: each of the three clients comes with one, and no password."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from pyspark.sql import SparkSession

from aggregator.kernel.spark_reader import BlockReader
from lagloss.broker.topics import BEACONS, connect, create_topics
from lagloss.errors import KafkaRefuses, KafkaUnreachable
from lagloss.sdk.emitter import Emitter
from lagloss.wire.format import OffsetRange
from lagloss_server.base.settings import Settings
from lagloss_server.groups.consumer_groups import ConsumerGroups
from lagloss_server.ops import doctor
from lagloss_server.queries.beacon_log import BeaconLog
from tests.support.kafka_log import wait_for
from tests.support.secured_kafka import ADMIN, Authority, certificate_kafka

pytestmark = pytest.mark.slow
KEY_PASSWORD = 'key "pass" \\ word'

ComeAs = Callable[..., str]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def bootstrap(jars: None, authority: Authority) -> Iterator[str]:
    with certificate_kafka(authority) as kafka:
        yield kafka.bootstrap


@pytest.fixture
def come_as(bootstrap: str, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> ComeAs:
    """Sets the environment of a user with a certificate of this authority; returns the broker's address."""

    def come(user: str, issuer: Authority = authority) -> str:
        certificate, key = issuer.issue(user, password=KEY_PASSWORD)
        values = {
            "BOOTSTRAP": bootstrap,
            "SECURITY_PROTOCOL": "SSL",
            "SSL_CA_LOCATION": str(authority.path),
            "SSL_CERTIFICATE_LOCATION": str(certificate),
            "SSL_KEY_LOCATION": str(key),
            "SSL_KEY_PASSWORD": KEY_PASSWORD,
        }
        for name, value in values.items():
            monkeypatch.setenv(f"LAGLOSS_KAFKA_{name}", value)
        return bootstrap

    return come


def test_emitter_spark_and_consumer_groups_come_with_a_certificate_whose_key_is_encrypted(
    come_as: ComeAs, spark: SparkSession
) -> None:
    bootstrap = come_as(ADMIN)
    create_topics(bootstrap)
    with Emitter("orders", "shop", first=True) as emitter:
        for at in range(100):
            emitter.received(f"m-{at}", int(time.time() * 1_000))
        assert emitter.flush(20), emitter.stats()
    with closing(BeaconLog(bootstrap, BEACONS)) as log:
        ranges = [OffsetRange(place, 0, end - 1) for place, end in log.ends().items() if end]
        kept = sorted(record.value for record in log.records(ranges))
    assert kept
    read = BlockReader(spark, bootstrap, BEACONS, 2).records(ranges).select("value").collect()
    assert sorted(bytes(row["value"]) for row in read) == kept
    with closing(ConsumerGroups(bootstrap)) as groups:
        wait_for(lambda: groups.committed(["none"]) == {"none": {}}, what="a coordinator")
    checks = {check.name: check for check in doctor.run(Settings())}
    assert (checks["Kafka"].verdict, checks[BEACONS].verdict) == ("ok", "ok")
    assert KEY_PASSWORD not in "".join(check.finding for check in checks.values())


def test_a_certificate_without_rights_is_named_by_what_it_misses(come_as: ComeAs) -> None:
    with pytest.raises(KafkaRefuses, match=r"CREATE on topics .*: an ACL is missing"):
        create_topics(come_as("stranger"), beacons="orders.beacons")


def test_who_has_no_certificate_of_the_authority_is_not_let_in(
    come_as: ComeAs, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap = come_as(ADMIN, Authority(tmp_path_factory.mktemp("foreign"), "another CA"))
    with pytest.raises(KafkaUnreachable, match=r"SSL handshake failed|certificate"):
        connect(bootstrap, timeout_s=5)
    for name in ("CERTIFICATE_LOCATION", "KEY_LOCATION", "KEY_PASSWORD"):
        monkeypatch.delenv(f"LAGLOSS_KAFKA_SSL_{name}")
    with pytest.raises(KafkaUnreachable, match=r"SSL handshake failed|certificate"):
        connect(bootstrap, timeout_s=5)
