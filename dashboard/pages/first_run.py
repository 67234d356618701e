"""What a reader sees before the first pipeline: what this installation knows by itself, and the commands to go on."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

import dash_mantine_components as dmc
from dash import html

from dashboard.pages import notices
from dashboard.pages.base import SCRIPTED, Part, alert
from dashboard.pages.page import Visit
from dashboard.queries.cluster_groups import GroupFilters, read_groups
from dashboard.request import links
from dashboard.request.current_user import asking
from lagloss_server.base import format as fmt
from lagloss_server.base.settings import Settings
from lagloss_server.groups.cluster_groups import ClusterGroup

_NAMED = 3
"""Groups that the commands name: those that are furthest behind."""


def first_run(visit: Visit) -> Part:
    """Return what to do next; for who sees only some pipelines, why there are none: they need not declare one."""
    if not asking().grants.is_whole:
        return notices.no_pipeline_of_teams()
    groups = [reading.group for reading in read_groups(visit.store, GroupFilters()).matching]
    return html.Div(
        [
            alert("No pipeline yet", _known(groups, visit), "blue", "+"),
            *_steps(groups, visit.services.settings),
        ]
    )


def _known(groups: Sequence[ClusterGroup], visit: Visit) -> list[Part]:
    broker = visit.services.settings.kafka_bootstrap
    where = f" at {broker}" if broker else ""
    if not groups:
        return [f"lagloss runs and watches Kafka{where}; it knows no consumer group there yet."]
    topics = {(group.cluster, topic.topic) for group in groups for topic in group.topics}
    waiting = sum(group.waits for group in groups)
    return [
        f"lagloss watches Kafka{where}: ",
        dmc.Anchor(fmt.counted(len(groups), "consumer group"), href=visit.address.to(links.GROUPS).href),
        f" of {fmt.counted(len(topics), 'topic')}, {fmt.count(waiting)} with unread messages.",
        " A pipeline defines which belong together, and how much may be lost or late.",
    ]


def _steps(groups: Sequence[ClusterGroup], settings: Settings) -> list[Part]:
    own = [group for group in groups if not group.cluster and group.kind == "consumer"][:_NAMED]
    broker = f"export LAGLOSS_KAFKA_BOOTSTRAP={quote(settings.kafka_bootstrap)}\n" if settings.kafka_bootstrap else ""
    named = "".join(f" --group {quote(group.group)}" for group in own)
    measured = f"{broker}lagloss tap discover{named} > pipeline.yaml\nlagloss apply pipeline.yaml"
    names = [f"{group.group}: {_behind(group)}" for group in own]
    sdk = f"{broker}pip install lagloss"
    return [
        _step(
            "Measure topics and consumer groups, without a line of code",
            f"Proposed from the groups that are furthest behind ({'; '.join(names)})." if names else "",
            measured,
        ),
        _step("Measure inside a service", "Then wrap its consumer and producer: docs/instrument.md.", sdk),
        _step("Look at an example first", "A pipeline with faults, on servers of its own.", "lagloss demo"),
    ]


def _behind(group: ClusterGroup) -> str:
    behind = "" if group.behind_s is None else f", {fmt.duration_s(group.behind_s)} behind"
    topics = fmt.counted(len(group.topics), "topic")
    return f"{topics}, {fmt.count(group.lag)} unread{behind}"


def _step(title: str, about: str, commands: str) -> Part:
    copy = html.Button("Copy", type="button", className=f"copy {SCRIPTED}", title="copy these commands")
    return dmc.Paper(
        [
            dmc.Title(title, order=2, fz=16),
            dmc.Text(about, size="sm", className="faint") if about else None,
            html.Div([html.Pre(commands, className="commands"), copy], className="copied-box"),
        ],
        p="sm",
        mb="sm",
        withBorder=True,
    )
