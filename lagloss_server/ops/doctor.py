"""`lagloss doctor`: a list of small checks, each with a finding and advice."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from importlib import metadata
from typing import Final
from uuid import uuid4

import httpx2
from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

import lagloss
from lagloss.broker.connection import KafkaConnection
from lagloss.broker.errors import kafka_error, needs
from lagloss.broker.topics import BEACONS, REPORTS, SAMPLING, connect, relied_on, wrong_settings
from lagloss.errors import EXIT_OK, EXIT_UNREACHABLE, LaglossError
from lagloss_server.base.instances import find_running, read_endpoints
from lagloss_server.base.settings import Settings
from lagloss_server.net.health_server import LEASE
from lagloss_server.net.http_answers import BOUNDED
from lagloss_server.net.schema_registry import RegistryConnection, SchemaRegistry
from lagloss_server.net.table_urls import own_database
from lagloss_server.ops import disk, jars, machine
from lagloss_server.ops.checks import TIMEOUT_S, Check, Verdict
from lagloss_server.ops.java import find_java
from lagloss_server.ops.table_checks import check_tables
from lagloss_server.ops.tap_checks import check_clusters, check_tap_rows
from lagloss_server.ops.unreadable_rows import read_unreadable
from lagloss_server.store.engine import engine_for
from lagloss_server.store.migrate import revisions
from lagloss_server.store.store import Store
from lagloss_server.store.unreadable import some_of

NO_SPARK: Final = "not needed: this installation has no Spark, so it cannot run the aggregator, broker or demo"
SET_ASIDE: Final = re.compile("unreadable|set_aside")
"""In the answer of a service that is healthy, and does not do all of its work."""
SERVICES: Final = ("aggregator", "alerting", "taps", "canary", "collector", "dashboard")
_DISK_FIRST: Final = "fix the disk first; `lagloss up` restarts its servers once the disk is writable"
CLOCK_WARN_MS: Final = 1_000
CLOCK_FAIL_MS: Final = 30_000
"""Half of the default grace: further apart, windows close before their beacons have arrived."""


def run(settings: Settings) -> list[Check]:
    """Run all checks, in the order in which they build on each other. Raises nothing: a failure is a finding."""
    checks = [check for check_ in ALL_CHECKS for check in _guarded(check_, settings)]
    if not any(check.name == "disk" and check.verdict == "fail" for check in checks):
        return checks
    return [replace(check, what_to_do=_DISK_FIRST) if _may_want_disk(check) else check for check in checks]


def exit_code(checks: Iterable[Check]) -> int:
    """Return 0, or 3 if a check failed."""
    return EXIT_UNREACHABLE if any(check.verdict == "fail" for check in checks) else EXIT_OK


def show(checks: list[Check], settings: Settings, console: Console) -> None:
    """Print the checks, then the settings with secrets blanked."""
    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    table = Table("", "check", "found", "what to do", box=None)
    for check in checks:
        colour = colours[check.verdict]
        table.add_row(
            f"[{colour}]{check.verdict}[/]", escape(check.name), escape(check.finding), escape(check.what_to_do)
        )
    console.print(table)
    console.print("\nsettings:", style="bold")
    connection = KafkaConnection.of(settings.kafka_bootstrap).printable()
    registry = RegistryConnection.of_environment()
    for name, value in {**settings.printable(), **connection, **(registry.printable() if registry else {})}.items():
        console.print(f"  {name} = {value}", markup=False, highlight=False, soft_wrap=True)


def check_python(settings: Settings) -> list[Check]:
    """Report Python, and the versions of packages that have to fit together."""
    parts = (
        ("pyspark", "pyarrow", "confluent-kafka", "SQLAlchemy")
        if jars.spark_home()
        else ("confluent-kafka", "SQLAlchemy")
    )
    versions = ", ".join((f"lagloss {lagloss.__version__}", *(f"{part} {metadata.version(part)}" for part in parts)))
    return [Check("Python", "ok", f"{sys.version.split()[0]}; {versions}")]


def check_java(settings: Settings) -> list[Check]:
    """Check for Java 17 or newer, if Spark is installed."""
    if not jars.spark_home():
        return [Check("Java", "ok", NO_SPARK)]
    java = find_java()
    return [Check("Java", "ok", f"{machine.java_version(str(java))} at {java}")]


def check_space(settings: Settings) -> list[Check]:
    """Check the memory, and the disks of the data directory."""
    memory_mb = machine.memory_mb()
    needs_all = jars.spark_home() and not _runs_elsewhere(settings)  # Spark and the broker take most
    problem = next(machine.memory_problems(), "") if needs_all else ""
    memory = Check("memory", "ok", f"{memory_mb} MB" if memory_mb else "unknown")
    if problem:
        memory = Check("memory", "fail", *problem.split(". ", 1))
    return [memory, *(_judge_room(room) for room in disk.rooms(settings.data_dir))]


def check_jars(settings: Settings) -> list[Check]:
    """Check that every jar that is needed is present and as locked, if Spark is installed."""
    if not jars.spark_home():
        return [Check("jars", "ok", NO_SPARK)]
    root = jars.jars_dir()
    no_broker = settings.kafka_bootstrap and not (root / jars.BROKER.name).exists()  # as `up` decides what to fetch
    locked = [jar for jar_set in ((jars.SPARK,) if no_broker else jars.SETS) for jar in jar_set.locked()]
    bad = [jar.name for jar in locked if jars.differs(jar, root)]
    if bad:
        todo = "run `make setup` or `python -m lagloss_server.ops.jars`"
        return [
            Check("jars", "fail", f"{len(bad)} of {len(locked)} are missing or damaged: {', '.join(bad[:3])}", todo)
        ]
    return [Check("jars", "ok", f"{len(locked)} jars in {root} match jars.lock")]


def check_kafka(settings: Settings) -> list[Check]:
    """Check that Kafka answers, its topics have the settings that the arithmetic relies on, and its clock is right."""
    bootstrap = settings.require_kafka()
    admin, brokers = connect(bootstrap, TIMEOUT_S)
    listed = admin.list_topics(timeout=TIMEOUT_S).topics
    protocol = KafkaConnection.of(bootstrap).properties.get("security.protocol", "PLAINTEXT")
    checks = [Check("Kafka", "ok", f"{bootstrap}, {brokers} broker(s), {protocol}")]
    for topic in (BEACONS, REPORTS, SAMPLING):
        if topic in listed:
            checks.append(_judge_topic(admin, topic, len(listed[topic].partitions)))
        else:
            todo = "run `python -m lagloss_server.ops.prepare` or `lagloss up`, and check that an ACL allows DESCRIBE"
            checks.append(Check(topic, "fail", "missing", todo))
    return [*checks, _check_kafka_clock(bootstrap, admin)]


def check_schema_registry(settings: Settings) -> list[Check]:
    """Check that the schema registry answers, if there is one."""
    connection = RegistryConnection.of_environment()
    if connection is None:
        return []
    with closing(SchemaRegistry(connection)) as registry:
        return [Check("schema registry", "ok", f"{connection}: {', '.join(registry.kinds())}")]


def check_database(settings: Settings) -> list[Check]:
    """Check that PostgreSQL answers, its tables are of this version and its clock is right; report the quarantine."""
    engine = engine_for(settings.require_database())
    try:
        with engine.connect() as connection:
            version = connection.execute(text("SHOW server_version")).scalar_one()
            before_ms = time.time() * 1000
            clock_ms = float(
                connection.execute(text("SELECT extract(epoch FROM clock_timestamp()) * 1000")).scalar_one()
            )
            ahead_ms = clock_ms - (before_ms + time.time() * 1000) / 2
            tables = set(connection.execute(text("SELECT tablename FROM pg_tables")).scalars())
            revision = (
                connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
                if "alembic_version" in tables
                else None
            )
            reasons = (
                connection.execute(
                    text("SELECT reason, sum(count) FROM quarantine_count GROUP BY reason ORDER BY reason")
                ).all()
                if "quarantine_count" in tables
                else []
            )
            failed = (
                connection.execute(text("SELECT kind, pipeline, item, error FROM set_aside ORDER BY failed_at")).all()
                if "set_aside" in tables
                else []
            )
    except SQLAlchemyError as error:
        todo = "start `lagloss up`, or check LAGLOSS_DATABASE_URL"
        return [Check("PostgreSQL", "fail", str(getattr(error, "orig", error)).strip().splitlines()[0], todo)]
    finally:
        engine.dispose()
    return [
        Check("PostgreSQL", "ok", f"version {version}"),
        _judge_tables(revision),
        _judge_clock("PostgreSQL clock", ahead_ms),
        _judge_quarantine({row[0]: row[1] for row in reasons}),
        _judge_set_aside([f"{row.kind} {row.pipeline}/{row.item} ({row.error})" for row in failed]),
    ]


def check_rows(settings: Settings) -> list[Check]:
    """Check that this version can read what is stored: definitions, tokens, silences, users and taps."""
    store = Store(settings.require_database())
    try:
        unreadable = read_unreadable(store, store.versions().unreadable)
    except SQLAlchemyError:  # which the check of PostgreSQL, or of its tables, has said
        return []
    finally:
        store.close()
    if not unreadable:
        return [Check("stored rows", "ok", "all readable")]
    todo = "upgrade this lagloss or store them again; pipelines with an unreadable definition wait (docs/upgrading.md)"
    return [Check("stored rows", "warn", f"{len(unreadable)}: {some_of([str(row) for row in unreadable])}", todo)]


def check_taps(settings: Settings) -> list[Check]:
    """Check that tapped topics, groups and tables can be read; report taps that wait, and what they could not read."""
    store = Store(settings.require_database())
    try:
        definitions = [stored.definition for stored in store.pipelines()]
        rows = check_tap_rows(store.engine)
    except SQLAlchemyError:  # which the check of PostgreSQL, or of its tables, has said
        return []
    finally:
        store.close()
    taps = [tap for definition in definitions for tap in definition.taps]
    tables = [tap for definition in definitions for tap in definition.table_taps]
    if not taps and not tables:
        return [Check("taps", "ok", "none defined"), *rows]
    with _databases_of_up(settings):
        return [*check_clusters(taps, settings), *check_tables(tables), *rows]


@contextmanager
def _databases_of_up(settings: Settings) -> Iterator[None]:
    """Have the environment name the databases that the taps of `up` know, if it runs with the database of these
    settings."""
    running = map(read_endpoints, find_running(settings.data_dir))
    is_own = any(endpoints.get("database") == settings.database_url for endpoints in running)
    added = own_database(os.environ, settings) if is_own else {}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def check_services(settings: Settings) -> list[Check]:
    """Check that each service that `up` runs answers."""
    return [_check_service(name, settings) for name in SERVICES if name != "canary" or settings.canary_url]


ALL_CHECKS: Final[tuple[Callable[[Settings], list[Check]], ...]] = (
    check_python,
    check_java,
    check_space,
    check_jars,
    check_kafka,
    check_schema_registry,
    check_database,
    check_rows,
    check_taps,
    check_services,
)


def _may_want_disk(check: Check) -> bool:
    return check.verdict == "fail" and check.name in ("Kafka", "PostgreSQL", *SERVICES)


def _guarded(check: Callable[[Settings], list[Check]], settings: Settings) -> list[Check]:
    try:
        return check(settings)
    except LaglossError as error:
        name = check.__name__.removeprefix("check_").replace("kafka", "Kafka").replace("database", "PostgreSQL")
        name = name.replace("_", " ")
        problem, _, todo = str(error).partition(". ")
        return [Check(name, "fail", problem, todo)]


def _judge_room(room: disk.Room) -> Check:
    problem = room.problem or next(machine.disk_problems(str(room.folder), machine.MIN_DISK_MB), "")
    if problem:
        return Check("disk", "fail", *str(problem).split(". ", 1))
    if room.warning is not None:
        todo = "free up space or enlarge the disk: Kafka and PostgreSQL stop when it is full"
        return Check("disk", "warn", room.warning, todo)
    return Check("disk", "ok", f"{room.free_mb} MB free in {room.folder}")


def _runs_elsewhere(settings: Settings) -> bool:
    """Return whether settings say where each service runs by itself, in a container for example; not if `up` runs
    here."""
    urls = (settings.aggregator_url, settings.alerting_url, settings.taps_url)
    return any(urls) and not find_running(settings.data_dir)


def _check_service(name: str, settings: Settings) -> Check:
    url = getattr(settings, f"{name}_url")
    if name == "dashboard":
        url = settings.dashboard_health_url or url
    if not url:
        return Check(name, "warn", "unknown address", "start `lagloss up`, or set the LAGLOSS_…_URL of this service")
    try:
        with httpx2.Client(timeout=TIMEOUT_S, event_hooks=BOUNDED) as client:
            answer = client.get(f"{url.rstrip('/')}/healthz", params={"exclude": LEASE})
        good = answer.status_code == httpx2.codes.OK
        is_noted = SET_ASIDE.search(answer.text) is not None
        answer_text = f"{url} returned {answer.status_code}" + (f", {answer.text}" if is_noted or not good else "")
    except httpx2.HTTPError as error:
        good, is_noted, answer_text = False, False, f"{url}: {error}"
    if good:
        return Check(name, "warn" if is_noted else "ok", answer_text, _see_log(name, settings) if is_noted else "")
    if name == "dashboard" and not settings.dashboard_health_url and _runs_elsewhere(settings):
        todo = "this is the address for browsers; set LAGLOSS_DASHBOARD_HEALTH_URL to one that this machine can reach"
        return Check(name, "warn", answer_text, todo)
    return Check(name, "fail", answer_text, _see_log(name, settings))


def _see_log(name: str, settings: Settings) -> str:
    """Return the advice to read a service's log; only `up` writes it into a file."""
    log = settings.data_dir / "logs" / f"{name}.log"
    return f"see its log, {log}" if log.exists() else "see its log"


def _judge_topic(admin: AdminClient, topic: str, partitions: int) -> Check:
    try:
        wrong = wrong_settings(admin, topic)
    except KafkaException as error:
        problem = needs(kafka_error(error), "DESCRIBE_CONFIGS", f"topic {topic}").str()
        return Check(
            topic, "warn", f"{partitions} partitions; cannot read its settings: {problem}", "see docs/kafka.md (ACLs)"
        )
    if not wrong:
        return Check(topic, "ok", f"{partitions} partitions")
    problem = ", ".join(f"{key}={value}" for key, value in wrong.items())
    todo = ", ".join(f"{key}={value}" for key, value in relied_on(topic).items())
    return Check(topic, "fail", problem, f"delete the topic, or change its settings: {todo}")


def _judge_clock(name: str, ahead_ms: float) -> Check:
    difference = f"{abs(ahead_ms):.0f} ms {'ahead of' if ahead_ms > 0 else 'behind'} this machine's clock"
    if abs(ahead_ms) < CLOCK_WARN_MS:
        return Check(name, "ok", difference)
    verdict: Verdict = "fail" if abs(ahead_ms) >= CLOCK_FAIL_MS else "warn"
    return Check(
        name, verdict, difference, "synchronize the clocks of both machines with NTP (chrony, systemd-timesyncd)"
    )


def _judge_tables(revision: str | None) -> Check:
    newest = revisions()[0]
    if revision == newest:
        return Check("tables", "ok", f"at revision {revision}")
    return Check(
        "tables",
        "fail",
        f"at {revision}, expected {newest}",
        "run `python -m lagloss_server.ops.prepare` or `lagloss up`",
    )


def _judge_quarantine(reasons: dict[str, int]) -> Check:
    if not reasons:
        return Check("quarantine", "ok", "empty")
    counts = ", ".join(f"{reason}: {count}" for reason, count in reasons.items())
    return Check(
        "quarantine", "warn", counts, "see table `quarantine` for the topic, partition and offset of each bad record"
    )


def _judge_set_aside(failed: Sequence[str]) -> Check:
    if not failed:
        return Check("failed work", "ok", "none")
    summary = f"{len(failed)}: {failed[0]}" + (", ..." if len(failed) > 1 else "")
    return Check("failed work", "warn", summary, "see the aggregator's log; retry windows with `lagloss recompute`")


def _check_kafka_clock(bootstrap: str, admin: AdminClient) -> Check:
    """Compare the broker's clock with ours; it stamps a record of a temporary topic."""
    name, topic = "Kafka clock", f"lagloss.doctor.{uuid4().hex[:8]}"
    stamps: list[int] = []

    def delivered(error: object, message: Message) -> None:
        if error is None:
            stamps.append(message.timestamp()[1])

    config = {"message.timestamp.type": "LogAppendTime", "retention.ms": "3600000"}
    producer = Producer(
        KafkaConnection.of(bootstrap).client({"message.timeout.ms": 4000, "linger.ms": 0, "log_level": 0})
    )
    try:
        admin.create_topics([NewTopic(topic, 1, -1, config=config)])[topic].result(TIMEOUT_S)
        producer.produce(topic, b"what time is it?", on_delivery=delivered)
        producer.flush(TIMEOUT_S)  # the first record also waits for metadata; the second is measured
        stamps.clear()
        before_ms = time.time() * 1000
        producer.produce(topic, b"what time is it?", on_delivery=delivered)
        producer.flush(TIMEOUT_S)
        middle_ms = (before_ms + time.time() * 1000) / 2
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    except KafkaException as error:
        problem = needs(kafka_error(error), "CREATE and DELETE", "topics lagloss.doctor.*").str()
        return Check(name, "warn", f"unknown: {problem}", "see docs/kafka.md (ACLs), or compare the clocks manually")
    except TimeoutError:
        return Check(
            name, "warn", f"unknown: no response within {TIMEOUT_S:g} s", "run doctor again; the broker is busy"
        )
    if not stamps:
        return Check(name, "warn", "unknown: the broker did not accept a record", "see the broker's log")
    return _judge_clock(name, stamps[0] - middle_ms)
