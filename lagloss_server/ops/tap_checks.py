"""Checks of taps: the tapped topics and groups can be read, and what that says of the numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from typing import Any, Final

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, ResourceType
from sqlalchemy import Engine, select

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.broker.errors import kafka_error, needs
from lagloss.broker.topics import allows_unclean_election, connect
from lagloss.errors import LaglossError
from lagloss_server.base.settings import Settings
from lagloss_server.groups.consumer_groups import ConsumerGroups
from lagloss_server.groups.source_offsets import SourceOffsets
from lagloss_server.model.tables import AnyTap
from lagloss_server.model.taps import Tap
from lagloss_server.ops.checks import TIMEOUT_S, Check
from lagloss_server.store.schema.taps import TapRow, TapUnreadableRow
from lagloss_server.store.tap_rows import read_taps_of

OFFSETS_TOPIC: Final = "__consumer_offsets"
_ACLS: Final = "see docs/kafka.md (ACLs)"


def check_clusters(taps: Collection[Tap], settings: Settings) -> list[Check]:
    """Check each tapped topic, group and connector where it is. Raises nothing: a failure is a finding."""
    checks: list[Check] = []
    for cluster, taps_of in groupby(sorted(taps, key=lambda tap: tap.cluster), key=lambda tap: tap.cluster):
        try:
            cluster_: Cluster = KafkaConnection.named(cluster) if cluster else settings.require_kafka()
            checks += _check_cluster(cluster_, cluster, list(taps_of))
        except LaglossError as error:
            what, _, todo = str(error).partition(". ")
            checks.append(Check(f"taps on {cluster or 'Kafka'}", "fail", what, todo))
    return checks + list(_judge_connectors(taps, settings))


def check_tap_rows(engine: Engine) -> list[Check]:
    """Report taps that wait, records that taps could not read, and rows that cannot be compared again. Raises
    SQLAlchemyError."""
    row, unreadable = TapRow, TapUnreadableRow
    of_tap = (row.tap, row.pipeline, row.node)
    waits = select(*of_tap, row.trouble).where(row.trouble != "").order_by(row.pipeline, row.node)
    blocked = select(*of_tap, row.recheck_trouble).where(row.recheck_trouble != "").order_by(row.pipeline, row.node)
    bad = (
        select(
            *(*of_tap, unreadable.reason, unreadable.count.label("records")),
            *(unreadable.partition, unreadable.offset),
        )
        .join(row, row.emitter == unreadable.emitter)
        .order_by(unreadable.count.desc(), unreadable.reason)
    )
    with engine.connect() as connection:
        waiting = [f"{_named(tap)}: {row.trouble}" for tap, row in read_taps_of(connection.execute(waits))]
        rechecks = [f"{_named(tap)}: {row.recheck_trouble}" for tap, row in read_taps_of(connection.execute(blocked))]
        records = [
            f"{row.records} {row.reason} of {_named(tap)}, for example {row.partition}@{row.offset}"
            for tap, row in read_taps_of(connection.execute(bad))
        ]
    checks = []
    if waiting:
        checks.append(
            Check("waiting taps", "warn", _first(waiting), "see the log of the taps service and the health page")
        )
    if records:
        todo = "see the pipeline's page; docs/taps.md explains the reasons"
        checks.append(Check("unreadable records", "warn", _first(records), todo))
    if rechecks:
        checks.append(Check("rows compared again", "warn", _first(rechecks), "see docs/sinks.md (lost afterwards)"))
    return checks


def _check_cluster(cluster_: Cluster, cluster: str, taps: Sequence[Tap]) -> Iterator[Check]:
    """Check the taps of one cluster. Raises LaglossError."""
    admin, _ = connect(cluster_, TIMEOUT_S)
    on = f" on {cluster}" if cluster else ""
    topics = sorted({tap.topic for tap in taps})
    groups = sorted({tap.group for tap in taps if tap.group is not None and tap.offsets is None})
    described = _described(admin, [*topics, OFFSETS_TOPIC] if groups else topics)
    configs = _configs(admin, [topic for topic in topics if not isinstance(described[topic], KafkaException)])
    for topic in topics:
        places = {place for tap in taps if tap.topic == topic and tap.group is None for place in tap.places}
        yield _judge_topic(f"topic {topic}{on}", topic, described[topic], configs.get(topic), is_sent_to=bool(places))
    if groups:
        yield _judge_commit_log(f"group commits{on}", described[OFFSETS_TOPIC])
        yield from _judge_groups(cluster_, groups, taps, on)


def _described(admin: AdminClient, topics: Sequence[str]) -> dict[str, Any]:
    """Return by topic its description with the operations that are allowed, or the exception that was raised."""
    futures = admin.describe_topics(
        TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=TIMEOUT_S
    )
    return {topic: _answer(future) for topic, future in futures.items()}


def _configs(admin: AdminClient, topics: Sequence[str]) -> dict[str, Any]:
    """Return by topic its settings, or the exception that was raised."""
    if not topics:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    futures = admin.describe_configs(resources, request_timeout=TIMEOUT_S)
    return {resource.name: _answer(future) for resource, future in futures.items()}


def _answer(future: Any) -> Any:
    try:
        return future.result(2 * TIMEOUT_S)
    except KafkaException as error:
        return error


def _judge_topic(name: str, topic: str, described: Any, config: Any, *, is_sent_to: bool) -> Check:
    """Judge a topic by its description and settings; `is_sent_to`: its records are the beacons of an `out`."""
    if isinstance(described, KafkaException):
        problem = needs(kafka_error(described), "DESCRIBE", f"topic {topic}").str()
        return Check(name, "fail", problem, f"create the topic, or fix the tap in the definition; {_ACLS}")
    if not _may_read(described):
        return Check(name, "fail", f"READ on topic {topic} is not allowed: an ACL is missing", _ACLS)
    problem = f"{len(described.partitions)} partitions"
    if isinstance(config, KafkaException):
        why = needs(kafka_error(config), "DESCRIBE_CONFIGS", f"topic {topic}").str()
        return Check(name, "warn", f"{problem}; cannot read its settings: {why}", _ACLS)
    if is_sent_to and config["message.timestamp.type"].value != "LogAppendTime":
        problem += "; CreateTime: lags at its `out` depend on the producers' clocks"
    if allows_unclean_election(config):
        problem += "; unclean leader elections are allowed: windows in which a partition gets a new leader are unknown"
    if "compact" in config["cleanup.policy"].value.split(","):
        problem += "; compacted: losses cannot be measured, since records are removed once a newer one has their key"
        return Check(
            name, "warn", problem, "tap a topic with cleanup.policy=delete, or treat losses at this topic as unknown"
        )
    return Check(name, "ok", problem)


def _judge_commit_log(name: str, described: Any) -> Check:
    """Judge whether commits come with their times."""
    if not isinstance(described, KafkaException) and _may_read(described):
        return Check(name, "ok", f"read from {OFFSETS_TOPIC}, with exact times")
    error = kafka_error(described) if isinstance(described, KafkaException) else None
    why = f"READ on topic {OFFSETS_TOPIC} is not allowed" if error is None else error.str()
    polled = f"polled: times of receipt can be up to a second late; {why}"
    return Check(name, "warn", polled, f"allow READ and DESCRIBE on topic {OFFSETS_TOPIC}; {_ACLS}")


def _judge_groups(cluster_: Cluster, groups: Sequence[str], taps: Sequence[Tap], on: str) -> Iterator[Check]:
    """Judge each group by whether it has committed offsets of each topic that it is tapped for."""
    with closing(ConsumerGroups(cluster_, "lagloss-doctor")) as client:
        for group in groups:
            name = f"group {group}{on}"
            try:
                committed = client.committed([group]).get(group, {})
            except KafkaException as error:
                yield Check(name, "fail", needs(kafka_error(error), "DESCRIBE", f"group {group}").str(), _ACLS)
                continue
            topics = sorted({tap.topic for tap in taps if tap.group == group and tap.offsets is None})
            counts = {topic: sum(key[0] == topic for key in committed) for topic in topics}
            summary = ", ".join(
                f"committed in {number} partitions of {topic}" if number else f"not committed in {topic}"
                for topic, number in counts.items()
            )
            if all(counts.values()):
                yield Check(name, "ok", summary)
            else:
                todo = "check the group name and that its consumers run; taps only see offsets committed to Kafka"
                yield Check(name, "warn", summary, todo)


def _judge_connectors(taps: Iterable[Tap], settings: Settings) -> Iterator[Check]:
    """Judge each source connector by whether it has stored offsets of each topic that it is tapped for."""
    connectors = sorted({(tap.offsets, tap.group or "") for tap in taps if tap.offsets is not None})
    for storage, some in groupby(connectors, key=lambda connector: connector[0]):
        names = [name for _, name in some]
        on = f" on {storage.cluster}" if storage.cluster else ""
        try:
            cluster: Cluster = KafkaConnection.named(storage.cluster) if storage.cluster else settings.require_kafka()
            with closing(SourceOffsets(cluster, storage.topic, "lagloss-doctor")) as offsets:
                offsets.read()
                for name in names:
                    topics = sorted({tap.topic for tap in taps if (tap.offsets, tap.group) == (storage, name)})
                    yield _judge_connector(f"connector {name}{on}", name, topics, offsets)
        except (KafkaException, LaglossError) as error:
            finding = kafka_error(error).str() if isinstance(error, KafkaException) else str(error)
            todo = f"name the `offset.storage.topic` of the connector's workers as `offsets`; {_ACLS}"
            yield Check(f"offset topic {storage.topic}{on}", "fail", finding, todo)


def _judge_connector(name: str, connector: str, topics: Iterable[str], offsets: SourceOffsets) -> Check:
    stored = offsets.committed(connector)
    counts = {topic: sum(key[0] == topic for key in stored) for topic in topics}
    finding = ", ".join(
        f"offsets of {number} partitions of {topic}" if number else f"no offsets of one cluster for {topic}"
        for topic, number in counts.items()
    )
    if all(counts.values()):
        return Check(name, "ok", finding)
    if connector in offsets.not_of_topics:
        todo = "a connector of a database or of files, such as Debezium, is a source: tap its `out` alone"
        return Check(name, "fail", f"{finding}; its positions are not offsets of a topic", todo)
    return Check(name, "warn", finding, "check the connector's name, the topic, and that it has mirrored records")


def _may_read(described: Any) -> bool:
    """Return whether READ is allowed; a broker without ACLs allows everything, and an old one does not say."""
    allowed = described.authorized_operations
    return not allowed or bool({AclOperation.READ, AclOperation.ALL} & set(allowed))


def _named(tap: AnyTap) -> str:
    return f"{tap.source} for {tap.node} of {tap.pipeline}"


def _first(values: Sequence[str]) -> str:
    return values[0] + (f", and {len(values) - 1} more" if len(values) > 1 else "")
