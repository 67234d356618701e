"""Servers that go away and come back, an older backup, and an aggregator that was off: all as if nothing had been."""

from __future__ import annotations

import re
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from sqlalchemy import text

from lagloss.broker.topics import BEACONS, REPORTS, create_topics
from lagloss.sdk.emitter import Emitter
from lagloss_server.base.settings import Settings
from lagloss_server.model.definition import parse_definition
from lagloss_server.ops.doctor import check_services
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.embedded.postgres_programs import find_programs
from lagloss_server.store import recompute_requests
from lagloss_server.store.migrate import migrate
from lagloss_server.store.store import Store
from tests.integration.aggregator.test_aggregator_process import aggregator, health, metric
from tests.support.closers import driven, wait_until
from tests.support.databases import COMPARED, differences, dump, restore
from tests.support.standby import primary_and_standby
from tests.support.window_documents import documents

MESSAGES = 200
BY_COMMITS = {"basis", "changed_basis", "revision"}
"""Columns that tell how often, and knowing how much, a window was closed on the way; ends are equal without them."""
ENDS = [table for table in COMPARED if table.name not in ("window_history", "audited")]


@pytest.fixture
def own_kafka(jars: None, own_dir: Path) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(own_dir / "kafka") as server:
        create_topics(server.bootstrap, 4, 2)
        yield server


@pytest.fixture
def own_postgres(own_dir: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(own_dir / "postgres") as server:
        migrate(server.url)
        yield server


class Minutes:
    """A pipeline src -> snk that fills one window after another of half an hour ago; 2 % are lost on the way."""

    def __init__(self, bootstrap: str) -> None:
        self.name = f"outages-{uuid.uuid4().hex[:8]}"
        self.start_s = int(time.time()) // 60 * 60 - 1_800
        self._emitters = [Emitter(self.name, node, bootstrap, first=node == "src") for node in ("src", "snk")]
        self._sent = 0

    def send(self) -> None:
        """The next window's messages, to queues in memory: the broker may be away."""
        for at in range(MESSAGES):
            event_ms = (self.start_s + 60 * self._sent) * 1000 + at * 100
            for node, emitter in enumerate(self._emitters):
                if node == 0 or at % 50:
                    emitter.received(f"{self._sent}-{at}", event_ms, observed_at=event_ms + 5 + 10 * node)
                    emitter.sent(f"{self._sent}-{at}", event_ms, observed_at=event_ms + 9 + 10 * node)
        self._sent += 1

    def flush(self) -> None:
        for emitter in self._emitters:
            assert emitter.flush(60)

    def close(self) -> None:
        for emitter in self._emitters:
            emitter.close()

    def define(self, store: Store) -> None:
        nodes = "{name: src, to: [snk]}, {name: snk}"
        head = f"apiVersion: lagloss/v1, kind: Pipeline, metadata: {{name: {self.name}}}"
        store.apply(parse_definition(f"{{{head}, spec: {{nodes: [{nodes}]}}}}"))

    def closed(self, store: Store) -> list[dict[str, Any]]:
        """The closed windows with messages."""
        found = documents(store.windows(self.name, self.start_s, self.start_s + 1_800))
        return [window for window in found if window["state"] == "closed" and window["messages"]]


def connections(store: Store) -> int:
    """How many connections there are to the database, from everybody."""
    with store.engine.connect() as connection:
        return int(
            connection.execute(
                text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            ).scalar_one()
        )


@pytest.mark.slow
def test_after_each_outage_it_catches_up_with_nothing_lost_and_nothing_twice(
    own_kafka: EmbeddedKafka, own_postgres: EmbeddedPostgres, spark: SparkSession, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(closing(Store(own_postgres.url)))
        minutes = stack.enter_context(closing(Minutes(own_kafka.bootstrap)))
        minutes.define(store)
        url, log = own_postgres.url, tmp_path / "aggregator.log"
        with aggregator(own_kafka.bootstrap, url, tmp_path) as process:
            settings = Settings(
                aggregator_url=process.url, dashboard_url=process.url, collector_url=process.url, data_dir=tmp_path
            )

            def waits_for(server: str) -> bool:
                return health(process)[0] == 503 and f"waiting for {server} since" in health(process)[1]

            def is_told(server: str) -> None:
                wait_until(lambda: waits_for(server), 60, f"for /healthz to tell that {server} is away")
                assert metric(process.url, f'lagloss_waiting_seconds{{server="{server}"}}') > 0
                (found,) = [check for check in check_services(settings) if check.name == "aggregator"]
                assert (found.verdict, f"waiting for {server} since" in found.finding) == ("fail", True)

            def caught_up(windows: int) -> None:
                minutes.flush()
                wait_until(lambda: len(minutes.closed(store)) == windows, 60, f"for window {windows}")
                wait_until(lambda: health(process) == (200, "ok"), 60, "for all to be well")
                assert metric(process.url, "lagloss_waiting_seconds") == 0

            minutes.send()
            caught_up(1)
            backup = dump(store.engine)

            own_postgres.stop()
            minutes.send()
            is_told("postgresql")
            own_postgres.start()
            caught_up(2)

            written = len(log.read_text())
            restore(store.engine, backup)
            assert len(minutes.closed(store)) == 1
            caught_up(2)
            # For DatabaseRestored; or, if a commit came first, for the lease, whose owner in the backup is the session
            # of before the restart. After either all is read anew.
            assert re.search(r"waiting +pause_s=\S+ server=(postgresql|lease)", log.read_text()[written:])

            own_kafka.stop()
            minutes.send()
            is_told("kafka")
            own_kafka.start()
            caught_up(3)
            assert connections(store) < 10  # each try closes what it opened
        minutes.send()
        minutes.close()
        with aggregator(own_kafka.bootstrap, url, tmp_path) as process:
            wait_until(lambda: len(minutes.closed(store)) == 4, 60, "for the last window")
            assert [window["messages"] for window in minutes.closed(store)] == [MESSAGES] * 4
            # a message of the first windows counts as overdue until time has them judged again, minutes from now
            request = recompute_requests.add(store, minutes.name, minutes.start_s, minutes.start_s + 600)
            wait_until(lambda: recompute_requests.answer_to(store, request), 30, "for all windows to be closed again")
            calm = stack.enter_context(closing(Store(own_postgres.create_database("calm"))))
            migrate(own_postgres.database_url("calm"))
            minutes.define(calm)
            with driven(spark, own_kafka.bootstrap, calm, BEACONS, REPORTS) as parts:
                parts.follow_all()
                until_s = minutes.start_s + 600

                def differing() -> list[str]:
                    return differences(dump(store.engine), dump(calm.engine), until_s, BY_COMMITS, ENDS)

                def agree() -> bool:
                    """Once time has told both what time alone may tell."""
                    now_ms = int(time.time() * 1000)
                    while parts.closer.tick(now_ms, now_ms):
                        pass
                    return not differing()

                with suppress(AssertionError):
                    wait_until(agree, 20)
                assert differing() == []
        ends = minutes.closed(calm)
        assert [window["messages"] for window in ends] == [MESSAGES] * 4
        assert [window["lost"]["max"] for window in ends] == [MESSAGES // 50] * 4
        assert log.read_text().count("waiting") < 30


@pytest.mark.slow
def test_a_backup_of_pg_dump_is_healed_by_the_log(
    own_kafka: EmbeddedKafka, own_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """As docs/upgrading.md says: restored into an empty database, and what came after it followed and closed again."""
    programs, backup = find_programs(None, lambda: tmp_path), tmp_path / "backup"

    def run(program: str, url: str, *words: str | Path) -> None:
        subprocess.run([programs / program, f"--dbname={url}", *words], check=True, timeout=60)

    with closing(Minutes(own_kafka.bootstrap)) as minutes:
        with closing(Store(own_postgres.url)) as store, aggregator(own_kafka.bootstrap, own_postgres.url, tmp_path):
            minutes.define(store)
            for number in (1, 2):
                minutes.send()
                minutes.flush()
                wait_until(lambda number=number: len(minutes.closed(store)) == number, 120, f"for window {number}")  # type: ignore[misc]
                if number == 1:
                    run("pg_dump", own_postgres.url, "--format=custom", f"--file={backup}")
            before = minutes.closed(store)
        url = own_postgres.create_database("restored")
        run("pg_restore", url, "--exit-on-error", backup)
        migrate(url)
        minutes.send()
        minutes.flush()
        with closing(Store(url)) as store, aggregator(own_kafka.bootstrap, url, tmp_path) as process:
            assert len(minutes.closed(store)) == 1
            wait_until(lambda: len(minutes.closed(store)) == 3, 120, "for all windows")
            wait_until(lambda: health(process) == (200, "ok"), 60, "for all to be well")
            after = minutes.closed(store)
            same = "window_start", "messages", "delivered", "checkpoints", "e2e_lag_ms"
            assert [[one[name] for name in same] for one in after[:2]] == [
                [one[name] for name in same] for one in before
            ]
            assert [one["lost"]["max"] + one["pending"] for one in after] == [MESSAGES // 50] * 3
            names = {found.message_id for found in store.missing(minutes.name, minutes.start_s + 60)}
            assert names == {f"1-{at}" for at in range(0, MESSAGES, 50)}


@pytest.mark.slow
def test_a_failover_to_a_stand_by_that_had_not_received_everything_loses_nothing(
    own_kafka: EmbeddedKafka, own_dir: Path, tmp_path: Path
) -> None:
    with primary_and_standby(own_dir) as pair, closing(Store(pair.url)) as store:
        migrate(pair.url)
        minutes = Minutes(own_kafka.bootstrap)
        minutes.define(store)
        with aggregator(own_kafka.bootstrap, pair.url, tmp_path) as process:
            minutes.send()
            minutes.flush()
            wait_until(lambda: len(minutes.closed(store)) == 1, 120, "for window 1")
            wait_until(lambda: pair.lag_bytes() == 0, 30, "for the stand-by")
            pair.hold_back(held=True)
            minutes.send()
            minutes.flush()
            wait_until(lambda: len(minutes.closed(store)) == 2, 60, "for window 2")
            pair.fail_over()
            began = time.monotonic()
            minutes.send()
            minutes.flush()
            wait_until(lambda: len(minutes.closed(store)) == 3, 90, "for all windows")
            print(f"all windows {time.monotonic() - began:.1f} s after the failover")
            wait_until(lambda: health(process) == (200, "ok"), 60, "for all to be well")
        minutes.close()
        closed = minutes.closed(store)
        assert [window["messages"] for window in closed] == [MESSAGES] * 3
        assert [window["lost"]["max"] for window in closed] == [MESSAGES // 50] * 3


@pytest.mark.slow
def test_topics_that_are_created_anew_while_it_works_are_noticed_at_once(
    own_kafka: EmbeddedKafka, database_url: str, tmp_path: Path
) -> None:
    """Their offsets begin at 0 again: what was closed stays, and what comes is closed."""
    admin = AdminClient({"bootstrap.servers": own_kafka.bootstrap, "log_level": 0})
    with closing(Store(database_url)) as store, aggregator(own_kafka.bootstrap, database_url, tmp_path) as process:
        before, after = Minutes(own_kafka.bootstrap), None
        before.define(store)
        for _ in range(3):
            before.send()
        before.flush()
        before.close()
        wait_until(lambda: len(before.closed(store)) == 3, 120, "for the windows of the first topics")
        first = before.closed(store)
        for future in admin.delete_topics([BEACONS, REPORTS], operation_timeout=30).values():
            future.result(30)
        wait_until(lambda: not {BEACONS, REPORTS} & set(admin.list_topics(timeout=10).topics), 30, "for their end")
        create_topics(own_kafka.bootstrap, 4, 2)
        after = Minutes(own_kafka.bootstrap)
        after.define(store)
        for _ in range(3):
            after.send()
        after.flush()
        after.close()
        wait_until(lambda: len(after.closed(store)) == 3, 120, "for the windows of the second topics")
        assert [(one["messages"], one["lost"]) for one in after.closed(store)][:2] == [
            (
                MESSAGES,
                {"min": 0, "max": MESSAGES // 50},
            )  # what reports of the first topic said of these minutes is lost
        ] * 2
        assert [
            one["state"] for one in documents(store.windows(before.name, before.start_s, before.start_s + 180))
        ] == ["sealed"] * 3
        changing = {"state", "revision", "closed_at"}
        kept = documents(store.windows(before.name, before.start_s, before.start_s + 180))
        assert [{name: one[name] for name in one.keys() - changing} for one in kept] == [
            {name: one[name] for name in one.keys() - changing} for one in first
        ]
        assert process.poll() is None
        assert "topic recreated" in (tmp_path / "aggregator.log").read_text()
