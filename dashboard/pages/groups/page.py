"""All consumer groups of the clusters, named by a definition or not: how far each is behind, worst first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import dash_mantine_components as dmc
from dash import html

from dashboard.format import STATUSES, rate
from dashboard.pages.base import Part, alert, data, live
from dashboard.pages.page import LIGHT, Control, Instead, Page, Panel, Visit
from dashboard.pages.paging import PageOf, chosen_page, pager
from dashboard.pages.printing import Printed, card_row, card_table, inside_link, small, status
from dashboard.queries.cluster_groups import ClusterGroups, GroupFilters, clusters_of, read_groups
from dashboard.request import links
from dashboard.request.links import Address
from lagloss_server.base import format as fmt
from lagloss_server.groups.cluster_groups import OWN_CLUSTER, ClusterGroup, GroupReading, cluster_text

_COLUMNS: Final = (
    "Group",
    "Status",
    "Behind",
    "Unread",
    "Committed",
    "Appended",
    "Time to loss",
    "Furthest behind",
    "Pipelines",
)
_ALL: Final = "all"
_NOT_READ: Final = (
    "The aggregator lists the groups of Kafka every 10 s. If none appears, check that it runs (Health), that a group "
    "has committed offsets, and that an ACL lets lagloss DESCRIBE groups and topics."
)


class GroupsId(StrEnum):
    """Ids of this page."""

    NOTICE = "groups-notice"
    TOTALS = "groups-totals"
    FIND = "groups-find"
    CLUSTER = "groups-cluster"
    ROWS = "groups-rows"
    PAGER = "groups-pager"


def frame(_params: Mapping[str, str], address: Address) -> Part:
    filters = filters_of(address)
    find = dmc.TextInput(
        id=GroupsId.FIND,
        label="Find a group by name, or a glob such as orders-*",
        placeholder="press Enter to filter",
        value=filters.text,
        debounce=True,
        size="xs",
        w={"base": "100%", "sm": 320},
    )
    cluster = dmc.Select(
        id=GroupsId.CLUSTER, label="Cluster", data=_choices(filters, ()), value=_shown(filters.cluster), size="xs",
        allowDeselect=False, w=200,
    )  # fmt: skip
    return html.Div(
        [
            html.H1("Consumer groups", className="page-title"),
            live(GroupsId.TOTALS, className="totals"),
            live(GroupsId.NOTICE),
            dmc.Group([find, cluster], align="end", gap="md", my="sm"),
            html.Div(id=GroupsId.ROWS),
            html.Div(id=GroupsId.PAGER),
        ]
    )


def filters_of(address: Address) -> GroupFilters:
    """Parse the filters in the address."""
    return GroupFilters(address.query.get("cluster"), address.query.get("q", ""))


def _shown(cluster: str | None) -> str:
    return _ALL if cluster is None else cluster_text(cluster)


def _choices(filters: GroupFilters, clusters: Sequence[str]) -> list[str]:
    """Return the clusters to choose from; one that is chosen stays, there or not."""
    chosen = [] if filters.cluster is None else [filters.cluster]
    return [_ALL, *(_shown(cluster) for cluster in sorted({*clusters, *chosen}))]


def read(visit: Visit) -> ClusterGroups:
    """Read the groups that the address asks for.

    Raises:
        Instead: no group can be seen.
    """
    groups = read_groups(visit.store, filters_of(visit.address))
    if not groups.total:
        raise Instead(alert("No consumer groups", _NOT_READ, "gray", "○"))
    return groups


def _totals(groups: ClusterGroups, _visit: Visit) -> str:
    matching = fmt.counted(len(groups.matching), "group")
    shown = matching if len(groups.matching) == groups.total else f"{matching} of {fmt.count(groups.total)}"
    return f"{shown}, {fmt.count(groups.waiting)} with unread messages"


def _notice(groups: ClusterGroups, visit: Visit) -> Part:
    stale = sorted({reading.group.cluster for reading in groups.matching if not reading.is_current(visit.now_s)})
    if stale:
        names = ", ".join(_shown(cluster) for cluster in stale)
        what = f"Cluster {names}: not read in the last minute. Numbers are of the last reading."
        return alert("Not current", what, "orange", "!")
    return None if groups.matching else alert("No matches", "No consumer group matches.", "blue", "∅")


def _page(groups: ClusterGroups, visit: Visit) -> PageOf:
    return PageOf(chosen_page(visit.address), len(groups.matching))


def _rows(groups: ClusterGroups, visit: Visit) -> Part | None:
    """Return a row each."""
    readings = _page(groups, visit).rows(groups.matching)
    if not readings:
        return None
    several = len(groups.clusters) > 1
    return card_table(_COLUMNS, [_row(reading, visit, several=several) for reading in readings])


def _row(reading: GroupReading, visit: Visit, *, several: bool) -> Printed:
    group = reading.group
    values: tuple[Part, ...] = (
        _status(group),
        [_behind(group), small(_basis(group))],
        fmt.count(group.lag),
        rate(group.commits_per_s),
        rate(group.appends_per_s),
        fmt.duration_s(group.time_to_loss_s(visit.now_s)),
        _hottest(group),
        _pipelines(group, visit.address),
    )
    name = [group.group, small(_about(group, several=several))]
    return card_row(_COLUMNS, name, values, **data(key=f"{group.cluster}/{group.group}"))


def _about(group: ClusterGroup, *, several: bool) -> str:
    cluster = f"{_shown(group.cluster)}: " if several else ""
    if group.kind == "connect":
        return f"{cluster}source connector"
    kind = "share group, " if group.kind == "share" else ""
    return f"{cluster}{kind}{group.state}, {fmt.counted(group.members, 'member')}"


def _status(group: ClusterGroup) -> Part:
    if group.status is None:
        return fmt.NOTHING
    look = STATUSES[group.status]
    return status(look.word, look.icon, look.colour, look.meaning)


def _behind(group: ClusterGroup) -> str:
    return fmt.NOTHING if group.behind_s is None else fmt.duration_s(group.behind_s)


def _basis(group: ClusterGroup) -> str:
    """Say what the time is by, or why there is none."""
    if group.behind_s is None:
        return next((topic.problem for topic in group.topics if topic.problem), "")
    return {"event-time": "by event time", "timestamp": "by timestamp", None: ""}[group.basis]


def _hottest(group: ClusterGroup) -> str:
    return fmt.NOTHING if group.hottest is None else f"{group.hottest.topic}/{group.hottest.partition}"


def _pipelines(group: ClusterGroup, address: Address) -> Part:
    shown: list[Part] = []
    for named in group.named_by:
        to_page = inside_link(f"{named.pipeline}/{named.node}", address.to(links.pipeline(named.pipeline)).href)
        shown += [", ", to_page] if shown else [to_page]
    return shown or fmt.NOTHING


PAGE: Final = Page(
    name="groups",
    pattern=re.compile(re.escape(links.GROUPS)),
    title=lambda _params: "Consumer groups",
    frame=frame,
    notice=Panel(GroupsId.NOTICE, _notice),
    read=read,
    panels=(
        Panel(GroupsId.ROWS, _rows, LIGHT),
        Panel(GroupsId.TOTALS, _totals, blank=""),
        Panel(GroupsId.PAGER, lambda groups, visit: pager(_page(groups, visit), "group", visit.address, "foot")),
    ),
    controls=(
        Control(
            GroupsId.FIND,
            lambda address: filters_of(address).text,
            lambda address, text: address.asking(q=(text or "").strip() or None, page=None),
        ),
        Control(
            GroupsId.CLUSTER,
            lambda address: _shown(filters_of(address).cluster),
            lambda address, chosen: address.asking(
                cluster=None if chosen == _ALL else "" if chosen == OWN_CLUSTER else chosen, page=None
            ),
            choices=lambda services, address: _choices(filters_of(address), clusters_of(services.store)),
        ),
    ),
)
