"""Taps on a pipeline's page: a row each, with its source, how far it has read, and what it could not read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import dash_mantine_components as dmc
from dash import html

from dashboard.pages.base import DATED_S, Part, faint, fold, icon, moment, names, number, table
from dashboard.queries.taps import TapState, TapStatus, UnreadableCount
from dashboard.request.links import Address
from dashboard.request.zones import Zone, utc
from lagloss_server.base import format as fmt
from lagloss_server.model.tables import TableTap

_COLUMNS: Final = (names("Checkpoints"), "Source", "State", "Read through", number("Records"), "Unreadable")
_COMMITS: Final = {
    "log": "commits read from the log",
    "polled": "commits polled",
    "connect": "offsets of Kafka Connect",
}
_POLLED: Final = (
    "Commits are polled if the brokers' log of commits cannot be read: messages then count as received by the group "
    "at the time of the poll, up to a second late."
)


def taps_panel(taps: Sequence[TapStatus], address: Address, now_s: float) -> Part | None:
    """Return the table of taps; None for a pipeline without any."""
    if not taps:
        return None
    shown = table(
        "Taps",
        _COLUMNS,
        [_row(tap, address.zone, now_s) for tap in taps],
        striped=True,
        tabularNums=True,
        verticalSpacing=4,
        horizontalSpacing=12,
        fz="sm",
        miw=860,
    )
    about = (
        "Beacons derived from a topic's records, a reader's commits or a table's rows. Counts are since a tap started."
    )
    if any(tap.commits == "polled" for tap in taps):
        about += f" {_POLLED}"
    bad = sum(tap.is_bad for tap in taps)
    note = f"{bad} of {fmt.counted(len(taps), 'tap')} behind or waiting" if bad else f"all {len(taps)} reading"
    return fold("taps", "Taps", note, [dmc.Text(about, size="sm", className="faint", mb=4), shown])


def _row(tap: TapStatus, zone: Zone, now_s: float) -> list[Part]:
    return [
        [html.Div(checkpoint) for checkpoint in tap.checkpoints],
        _source(tap),
        _state(tap),
        _through(tap, zone, now_s),
        _records(tap),
        [_unreadable(records, zone) for records in tap.unreadable] or "none",
    ]


def _source(tap: TapStatus) -> list[Any]:
    if isinstance(tap.tap, TableTap):
        lines = [f"table {tap.tap.table.table}", faint(f"of database {tap.tap.table.database}")]
        if tap.recheck is not None:
            lines.append(faint(f"rows compared again for {tap.recheck}"))
        return lines
    cluster = f" on {tap.tap.cluster}" if tap.tap.cluster else ""
    if tap.tap.group is None:
        return [f"topic {tap.tap.topic}{cluster}"]
    lines = [tap.tap.reader, faint(f"of topic {tap.tap.topic}{cluster}")]
    return [*lines, faint(_COMMITS[tap.commits])] if tap.commits in _COMMITS else lines


def _state(tap: TapStatus) -> list[Any]:
    sign, colour = ("!", "orange") if tap.is_bad else ("✔", "teal")
    status = html.Span([icon(sign), f" {tap.state}"], className=f"status status-{colour}")
    not_compared = f"rows are not compared again: {tap.recheck_trouble}" if tap.recheck_trouble else ""
    return [status, *(faint(text) for text in (tap.trouble, not_compared) if text)]


def _through(tap: TapStatus, zone: Zone, now_s: float) -> list[Any]:
    if tap.through_s is None:
        return [fmt.NOTHING]
    dated = now_s - tap.through_s > DATED_S
    when = moment(zone.clock(tap.through_s, seconds=True, date=dated), utc(tap.through_s))
    behind = "" if tap.state is TapState.READING else f"{fmt.duration_s(tap.behind_s)} behind"
    return [when, faint(behind)] if behind else [when]


def _records(tap: TapStatus) -> list[Any]:
    more = (
        (tap.left_out, "excluded by its filter"),
        (tap.early, "from before its first minute"),
        (tap.gone, "deleted before being read"),
    )
    return [fmt.count(tap.records), *(faint(f"{fmt.count(number)} {what}") for number, what in more if number)]


def _unreadable(records: UnreadableCount, zone: Zone) -> Part:
    when = moment(zone.clock(records.at_s, seconds=True, date=True), utc(records.at_s))
    example = [" such as ", html.Code(records.place), " of ", when]
    return html.Div([f"{fmt.count(records.count)} {records.reason}", faint(example)])
