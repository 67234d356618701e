"""Consumer groups on a pipeline's page: a row a group, with its worst partitions, and what retention takes from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import dash_mantine_components as dmc
from dash import html

from dashboard.format import STATUSES, rate
from dashboard.pages.base import DATED_S, Part, TableColumn, aria, badge, faint, fold, moment, number, table
from dashboard.queries.consumer_groups import ConsumerGroup
from dashboard.request.links import Address
from dashboard.request.zones import Zone, utc
from lagloss_server.base import format as fmt
from lagloss_server.groups.progress import PartitionNow
from lagloss_server.groups.velocity import Velocity

_SHOWN: Final = 5
"""The worst partitions of a group that are listed."""
_NOTE: Final = (
    "Current state at the brokers; rates are over five minutes. Retention deletes whole segments, so the times are the "
    "earliest possible ones."
)
_HEADS: Final = ("Group", "State", "Status", "Lag", "Commits", "Appends", "Caught up", "Deletion starts", "At risk")


def groups_panel(groups: Sequence[ConsumerGroup], address: Address, now_s: float) -> Part | None:
    """Return the table of consumer groups; None where no node names one."""
    if not groups:
        return None
    columns: list[TableColumn | str] = [*_HEADS[:3], *map(number, _HEADS[3:])]
    shown = table(
        "Consumer groups",
        columns,
        [row for group in groups for row in _rows(group, address.zone, now_s)],
        tabularNums=True,
        verticalSpacing=4,
        horizontalSpacing=12,
        fz="sm",
        className="unbroken",
    )
    bad = [group.group for group in groups if group.status not in ("ok", None)]
    note = f"{len(bad)} of {len(groups)} not OK: {', '.join(bad[:3])}" if bad else f"all {len(groups)} OK or unknown"
    about = dmc.Text(_NOTE, size="sm", className="faint", mb=4)
    losses = [_loss(group, address.zone, now_s) for group in groups]
    return [*losses, fold("groups", "Consumer groups", note, [about, shown])]


def _loss(group: ConsumerGroup, zone: Zone, now_s: float) -> Part | None:
    """Return what the group loses in a sentence; None where that is nothing."""
    risk = group.at_risk(now_s)
    parts = [] if risk is None else [risk.words(now_s, lambda at_s: zone.clock(at_s, date=at_s - now_s > DATED_S))]
    if group.deleted:
        parts.append(f"{fmt.counted(group.deleted, 'message')} of {group.group} deleted unread in this range")
    return dmc.Text([html.Span("✖ ", **aria(hidden="true")), "; ".join(parts)], size="sm", fw=600) if parts else None


def _rows(group: ConsumerGroup, zone: Zone, now_s: float) -> list[list[Part]]:
    """Return the row of a group, and one of each partition of it that is not well."""
    name = dmc.TableTh([group.node, faint(group.group)], attributes={"root": {"scope": "row"}})
    look = None if group.status is None else STATUSES[group.status]
    status = fmt.NOTHING if look is None else badge(look.word, look.icon, look.colour, size="sm")
    risk = group.at_risk(now_s)
    cells: list[Part] = [
        _state(group, zone, now_s),
        html.Span(status, title="unknown" if look is None else look.meaning),
        *_numbers(group.lag, group.velocity, group.catches_up_s),
        _deleted_from(group.deletes_ms, zone, now_s),
        fmt.count(0 if risk is None else risk.messages),
    ]
    bad = [
        partition
        for partition in group.partitions
        if partition.status not in ("ok", None) or partition.loss_ms is not None
    ]
    rows = [[name, *cells]]
    if len(group.partitions) > 1:
        rows += [_partition_row(partition, zone, now_s) for partition in bad[:_SHOWN]]
        if len(bad) > _SHOWN:
            more = f"and {fmt.counted(len(bad) - _SHOWN, 'partition')} more"
            rows.append([dmc.TableTd(more, className="faint", tableProps={"colSpan": len(_HEADS)})])
    return rows


def _partition_row(partition: PartitionNow, zone: Zone, now_s: float) -> list[Part]:
    return [
        dmc.TableTd(f"{partition.of.topic}/{partition.of.partition}", className="faint"),
        "",
        fmt.NOTHING if partition.status is None else STATUSES[partition.status].word,
        *_numbers(partition.lag, partition.velocity, partition.catches_up_s),
        _deleted_from(partition.deletes_ms, zone, now_s),
        fmt.count(partition.at_risk or 0),
    ]


def _state(group: ConsumerGroup, zone: Zone, now_s: float) -> list[Part | str]:
    """Return the state with the number of members, and since when it has been so."""
    parts = group.described
    if parts is None:
        return [fmt.NOTHING]
    since_s = parts.since_ms / 1_000
    since = moment(f"for {fmt.duration_s(round(max(0.0, now_s - since_s)))}", utc(since_s))
    return [f"{parts.state}, {fmt.counted(parts.members, 'member')}", faint(since)]


def _numbers(lag: int | None, moving: Velocity, catches_up_s: float | None) -> list[str]:
    rates = (rate(moving.commits_per_s), rate(moving.appends_per_s))
    return [fmt.count(lag), *rates, _ahead(lag, moving, catches_up_s)]


def _ahead(lag: int | None, moving: Velocity, catches_up_s: float | None) -> str:
    """Say when the group will have caught up, or how fast it falls behind."""
    if lag == 0:
        return "no lag"
    if catches_up_s is not None:
        return f"in {fmt.duration_s(catches_up_s)}"
    gain = moving.gain_per_s
    if gain is None:
        return fmt.NOTHING
    behind = rate(-gain)
    return "never at this rate" if gain >= 0 or behind == rate(0.04) else f"falling behind by {behind}"


def _deleted_from(deletes_ms: int | None, zone: Zone, now_s: float) -> Part | str:
    """Return when the next message can be deleted; behind it, for how long it is there."""
    if deletes_ms is None:
        return fmt.NOTHING
    left_s = deletes_ms / 1_000 - now_s
    return moment(f"in {fmt.duration_s(left_s)}" if left_s > 0 else "now", utc(deletes_ms / 1_000))
