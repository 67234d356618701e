"""`lagloss tap discover`: a definition to edit, from consumer groups, the topics that they read, and samples."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer
from confluent_kafka.admin import AdminClient

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.broker.errors import reaching
from lagloss.errors import UsageError
from lagloss_server.base.errors import NotEnoughData
from lagloss_server.base.fields import DurationMs, Name
from lagloss_server.base.settings import Settings
from lagloss_server.cli.options import DataDir, demand
from lagloss_server.groups.consumer_groups import ConsumerGroups
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.taps import GroupId, TopicName
from lagloss_server.net.schema_registry import registry_of
from taps.clusters import cluster_of
from taps.discovery import TopicGuess, as_yaml, propose
from taps.sample import read_between, read_newest
from taps.topic_reader import TopicReader

MAX_TOPICS: Final = 30
MAX_RECORDS: Final = 50_000
"""Records of a topic that are compared: as many as come within `--span`, if they are fewer."""
ANSWER_S: Final = 10.0


def discover(
    group: Annotated[list[str] | None, typer.Option("--group", help="consumer group (repeatable)")] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="topic to include in addition to those of the groups (repeatable)"),
    ] = None,
    name: Annotated[str, typer.Option(help="name of the pipeline")] = "discovered",
    lookback: Annotated[str, typer.Option(help="how far in the past the taps start")] = "10m",
    span: Annotated[int, typer.Option(min=5, help="length of the compared range of records, in seconds")] = 120,
    cluster: Annotated[str, typer.Option(help="name of the Kafka cluster (default: the one that lagloss uses)")] = "",
    data_dir: DataDir = None,
) -> None:
    """Propose a definition with taps, as YAML on stdout to edit and apply. Without --group, all groups are looked at.

    Exit codes: 2 usage, 3 a server cannot be reached, 4 no topic has records.
    """
    fields = [(Name, "--name", name), (DurationMs, "--lookback", lookback)]
    fields += [(Name, "--cluster", cluster)] if cluster else []
    fields += [(GroupId, "--group", name) for name in group or ()] + [
        (TopicName, "--topic", name) for name in topic or ()
    ]
    for kind, option, text in fields:
        demand(kind, option, text)
    connection = cluster_of(cluster, Settings.load(data_dir=data_dir))
    with reaching(connection):
        read = _read_topics(connection, group or ())
        topics = _sample(connection, cluster, _choose(connection, read, group, topic), span)
    text = as_yaml(name, propose(topics, read), lookback, cluster)
    parse_definition(text, "the proposal")  # so that what is printed can be applied
    typer.echo(text.encode(), nl=False)  # in UTF-8, which `apply` reads, whatever the terminal's encoding


def _choose(
    cluster: Cluster, read: Mapping[str, Sequence[str]], group: Sequence[str] | None, topic: Sequence[str] | None
) -> list[str]:
    """Return the topics to compare: those of the groups, and those that are named; without either, all."""
    missing = sorted(set(group or ()) - {group_name for group_name, topics in read.items() if topics})
    if missing:
        raise UsageError(detail=f"expected groups with committed offsets, found no offsets of {', '.join(missing)}")
    topics_to_read = list(dict.fromkeys([*(topic or ()), *(topic for topics in read.values() for topic in topics)]))
    if not topic and not group:
        topics_to_read = [
            topic for topic in _all_topics(cluster) if topic in topics_to_read or not topic.startswith("lagloss.")
        ]
    if len(topics_to_read) > MAX_TOPICS:
        raise UsageError(
            detail=f"expected up to {MAX_TOPICS} topics, found {len(topics_to_read)}; select with --topic or --group"
        )
    return topics_to_read


def _sample(connection: Cluster, cluster: str, wanted_topics: Sequence[str], span_s: int) -> list[TopicGuess]:
    """Sample topics and guess, those without records left out. Raises NotEnoughData if no topic is left."""
    until_ms = time.time_ns() // 1_000_000  # the same for all: what one topic has later, the others cannot share
    guesses = (_guess(connection, topic, cluster, until_ms - span_s * 1_000, until_ms) for topic in wanted_topics)
    topics = [guess for guess in guesses if guess is not None]
    if not topics:
        raise NotEnoughData(
            detail=f"no records to compare in these topics: {', '.join(wanted_topics) or '(no topics exist)'}"
        )
    return topics


def _read_topics(cluster: Cluster, groups: Sequence[str]) -> dict[str, list[str]]:
    """Return the topics of which each group has committed offsets; without groups, of all groups."""
    client = ConsumerGroups(cluster, "lagloss-tap-discover")
    try:
        names = list(groups) or [group_name for group_name in _all_groups(cluster) if _can_be_named(group_name)]
        committed = client.committed(names)
    finally:
        client.close()
    return {group_name: sorted({topic for topic, _ in offsets}) for group_name, offsets in committed.items()}


def _can_be_named(group: str) -> bool:
    """Return whether a definition can name a group: Kafka lets any text be one."""
    try:
        demand(GroupId, "group", group)
    except UsageError as error:
        typer.echo(f"Skipping a group whose name is not allowed in a definition: {error}", err=True)
        return False
    return True


def _all_groups(cluster: Cluster) -> list[str]:
    admin = _admin(cluster)  # it answers as long as it is there
    groups = admin.list_consumer_groups(request_timeout=ANSWER_S).result(ANSWER_S)
    return sorted(group_listing.group_id for group_listing in groups.valid)


def _all_topics(cluster: Cluster) -> list[str]:
    return sorted(name for name in _admin(cluster).list_topics(timeout=ANSWER_S).topics if not name.startswith("__"))


def _admin(cluster: Cluster) -> AdminClient:
    return AdminClient(KafkaConnection.of(cluster).client({"log_level": 0}))


def _guess(connection: Cluster, topic: str, cluster: str, since_ms: int, until_ms: int) -> TopicGuess | None:
    """Sample a topic and guess; None if it has no records."""
    reader = TopicReader(connection, topic)
    try:
        sample = read_between(reader, since_ms, until_ms, MAX_RECORDS)
        if not len(sample):
            sample = read_newest(reader)
    finally:
        reader.close()
    return TopicGuess.of(sample, registry_of(cluster)) if len(sample) else None
