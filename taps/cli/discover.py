"""`lagloss tap discover`: a definition to edit, from consumer groups, the topics that they read, and samples."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import typer
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.broker.errors import reaching
from lagloss.broker.partition_bounds import Key
from lagloss.errors import UsageError
from lagloss_server.base.errors import BadDefinition, NotEnoughData
from lagloss_server.base.fields import DurationMs, Name
from lagloss_server.base.settings import Settings
from lagloss_server.cli.options import DataDir, demand
from lagloss_server.groups.consumer_groups import ConsumerGroups
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.taps import GroupId, TopicName
from lagloss_server.net.schema_registry import registry_of
from lagloss_server.net.table_urls import databases_of
from taps.clusters import cluster_of
from taps.discovery import Proposal, as_yaml, propose
from taps.discovery.summary import Connected, why_groups_are_not_connected
from taps.discovery.survey import DENIED, TopicSurvey
from taps.discovery.table_survey import TableSurvey

ANSWER_S: Final = 10.0
ASKED: Final = 100
"""Groups per request for their offsets."""
MAX_STEM: Final = 90
"""Characters of the name that those of further flows begin with."""
OWN_GROUPS: Final = "lagloss-"
OWN_TOPICS: Final = "lagloss."


@dataclass(frozen=True, slots=True)
class _Groups:
    """The topics that each group has committed offsets of, and by group that was left out why."""

    topics: dict[str, list[str]]
    reasons: dict[str, str]


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
    """Propose definitions with taps, a document per flow, as YAML on stdout to edit and apply. Without --group, all
    groups and topics are looked at, and the tables of databases that the environment names. What share of them is
    connected, and why not the rest, is printed on stderr.

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
    until_ms = time.time_ns() // 1_000_000  # the same for all: what one topic has later, the others cannot share
    survey = TopicSurvey(connection, registry_of(cluster), until_ms - span * 1_000, until_ms)
    with reaching(connection):
        groups = _read_groups(connection, group or ())
        topics = _choose(survey, groups, group, topic)
        with _progress() as progress:
            task = progress.add_task("topics", total=len(topics))
            survey.run(topics, lambda count: progress.advance(task, count))
    tables = TableSurvey(survey.guesses)
    tables.run(databases_of(os.environ))
    proposal = propose(survey.guesses, groups.topics, topic or (), tables.guesses)
    reasons = survey.reasons | proposal.reasons
    documents = _documents(proposal, name, lookback, cluster, reasons)
    left_out = why_groups_are_not_connected(groups.topics, reasons) | groups.reasons
    parts = [Connected("topics", len(topics), reasons), Connected("groups", len(groups.topics | left_out), left_out)]
    if tables.names:
        parts.append(Connected("tables", len(tables.names), tables.reasons | proposal.table_reasons))
    for database, problem in tables.problems.items():
        typer.echo(f"Skipping the tables of {database}: {problem}", err=True)
    if not documents:
        lines = parts[0].lines()[1:] or ["  (no topics exist)"]
        raise NotEnoughData(detail="\n".join(["no records to compare in these topics:", *lines]))
    text = "---\n".join(documents)
    typer.echo(text.encode(), nl=False)  # in UTF-8, which `apply` reads, whatever the terminal's encoding
    typer.echo("\n".join(line for part in parts for line in part.lines()), err=True)


def _documents(proposal: Proposal, name: str, lookback: str, cluster: str, reasons: dict[str, str]) -> list[str]:
    """Return the flows as definitions that can be applied; add a reason for the topics of one that could not be."""
    documents: list[str] = []
    for nodes in proposal.flows:
        number = len(documents) + 1
        document = as_yaml(name if number == 1 else f"{name[:MAX_STEM]}-{number}", nodes, lookback, cluster)
        try:
            parse_definition(document, "the proposal")
        except BadDefinition as error:
            typer.echo(f"Skipping a flow that no definition can have: {error}", err=True)
            reasons |= dict.fromkeys((output.topic for node in nodes for output in node.outputs), "no valid definition")
            continue
        documents.append(document)
    return documents


def _progress() -> Progress:
    """Return a progress bar on stderr; none where that is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


def _choose(
    survey: TopicSurvey, groups: _Groups, group: Sequence[str] | None, topic: Sequence[str] | None
) -> list[str]:
    """Return the topics to compare: those of the groups, and those that are named; without either, all."""
    missing = sorted(name for name in set(group or ()) if not groups.topics.get(name))
    if missing:
        raise UsageError(detail=f"expected groups with committed offsets, found no offsets of {', '.join(missing)}")
    chosen = [*(topic or ()), *(name for topics in groups.topics.values() for name in topics)]
    if not topic and not group:
        chosen += [name for name in survey.topics() if not name.startswith(OWN_TOPICS)]
    return list(dict.fromkeys(chosen))


def _read_groups(cluster: Cluster, names: Sequence[str]) -> _Groups:
    """Return the topics of which each group has committed offsets; without names, of all groups but lagloss's own."""
    reasons: dict[str, str] = {}
    wanted = list(names)
    if not names:
        for name in _all_groups(cluster):
            if not name.startswith(OWN_GROUPS):
                if _can_be_named(name):
                    wanted.append(name)
                else:
                    reasons[name] = "name not allowed in a definition"
    topics: dict[str, list[str]] = {}
    client = ConsumerGroups(cluster, "lagloss-tap-discover")
    try:
        for start in range(0, len(wanted), ASKED):
            committed, denied = _committed(client, wanted[start : start + ASKED])
            reasons |= dict.fromkeys(denied, DENIED)
            topics |= {
                name: sorted({topic for topic, _ in offsets if not topic.startswith("__")})
                for name, offsets in committed.items()
            }
    finally:
        client.close()
    return _Groups(topics, reasons)


def _committed(client: ConsumerGroups, groups: Sequence[str]) -> tuple[dict[str, dict[Key, int]], list[str]]:
    """Return the committed offsets of each group, and the groups whose coordinator refuses to say them."""
    try:
        return client.committed(groups), []
    except KafkaException as error:
        if len(groups) == 1:
            if "uthorization" not in str(error):
                raise
            return {}, list(groups)
    half = len(groups) // 2
    (first, denied), (second, more) = (_committed(client, some) for some in (groups[:half], groups[half:]))
    return first | second, denied + more


def _can_be_named(group: str) -> bool:
    """Return whether a definition can name a group: Kafka lets any text be one."""
    try:
        demand(GroupId, "group", group)
    except UsageError as error:
        typer.echo(f"Skipping a group whose name is not allowed in a definition: {error}", err=True)
        return False
    return True


def _all_groups(cluster: Cluster) -> list[str]:
    admin = AdminClient(KafkaConnection.of(cluster).client({"log_level": 0}))  # it answers as long as it is there
    groups = admin.list_consumer_groups(request_timeout=ANSWER_S).result(ANSWER_S)
    return sorted(group_listing.group_id for group_listing in groups.valid)
