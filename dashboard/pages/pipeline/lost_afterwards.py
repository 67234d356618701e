"""Messages on a pipeline's page that are lost afterwards: a row a minute, with links to the minute and the names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import dash_mantine_components as dmc
from dash import html

from dashboard.pages.base import Part, aria, faint, fold, moment, number, table
from dashboard.queries.problem_messages import LOST_AFTERWARDS
from dashboard.request import links
from dashboard.request.links import Address
from dashboard.request.zones import Zone, utc
from lagloss.wire.format import SAMPLE_ALL, share_of
from lagloss_server.base import format as fmt
from lagloss_server.incidents.lost_afterwards import CAUSES, LostMinute, by_node

_SHOWN: Final = 50
"""The newest minutes, which are listed."""
_ABOUT: Final = (
    "Their rows were in the table and are not any more. They had arrived, so loss and error budgets do not count them."
)
_COLUMNS: Final = ("Minute", "Checkpoint", number("Lost"), number("Accepted"), "Rows", "Compared", "First missed")


def lost_afterwards_panel(minutes: Sequence[LostMinute], pipeline: str, address: Address) -> Part | None:
    """Return the minutes of which messages are lost afterwards; None if there is none."""
    if not minutes:
        return None
    newest = [*reversed(minutes)][:_SHOWN]
    shown = table(
        "Lost afterwards",
        _COLUMNS,
        [_row(minute, pipeline, address) for minute in newest],
        tabularNums=True,
        verticalSpacing=4,
        horizontalSpacing=12,
        fz="sm",
        miw=760,
    )
    names = dmc.Anchor("Names of the messages", href=address.to(links.message(pipeline), kind=LOST_AFTERWARDS).href)
    rest = f" The newest {len(newest)} of {len(minutes)} minutes are listed." if len(newest) < len(minutes) else ""
    lost, accepted = sum(minute.lost for minute in minutes), sum(minute.accepted for minute in minutes)
    note = fmt.counted(lost, "message") + (f", {fmt.count(accepted)} accepted" if accepted else "")
    about = dmc.Text([f"{_ABOUT}{rest} ", names], size="sm", className="faint", mb=4)
    words = [node.words for node in by_node(minute for minute in minutes if minute.outstanding)]
    losses = [dmc.Text([html.Span("✖ ", **aria(hidden="true")), text], size="sm", fw=600) for text in words]
    return [*losses, fold("lost-afterwards", "Lost afterwards", note, [about, shown])]


def _row(minute: LostMinute, pipeline: str, address: Address) -> list[Part]:
    start_s, zone = minute.window_start_s, address.zone
    label = moment(zone.minute(start_s), utc(start_s))
    accepted = [fmt.count(minute.accepted)]
    if minute.accepted_why:
        accepted.append(faint(f"by {minute.accepted_by}: {minute.accepted_why}"))
    compared = fmt.counted(minute.compared, "row")
    if minute.sample < SAMPLE_ALL:
        compared += f", a sample of {fmt.percent(share_of(minute.sample))}"
    return [
        dmc.Anchor(label, href=address.to(links.window(pipeline, start_s)).href, size="sm"),
        [minute.checkpoint, faint(minute.source)],
        fmt.count(minute.lost),
        accepted,
        CAUSES[minute.cause],
        [compared, faint(["until ", _clock(minute.until_ms, zone)])],
        _clock(minute.missed_ms, zone),
    ]


def _clock(at_ms: int, zone: Zone) -> Part:
    return moment(zone.clock(at_ms / 1_000, seconds=True, date=True), utc(at_ms / 1_000))
