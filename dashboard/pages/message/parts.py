"""Parts of a message's page: its fate, its Gantt chart, and its beacons one by one."""

from __future__ import annotations

from typing import Any, Final

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard import format as words
from dashboard.figures.gantt import gantt
from dashboard.pages.base import Part, TableColumn, alert, badge, moment, outward, table
from dashboard.queries.message import MessageRead, Where
from dashboard.queries.message_timeline import longest, stays
from dashboard.request import links
from dashboard.request.links import Address
from dashboard.request.zones import Zone, utc
from lagloss.wire.format import WINDOW_S
from lagloss.wire.traces import TraceContext
from lagloss_server.base import format as fmt
from lagloss_server.base.trace_links import TraceLinks
from lagloss_server.incidents.lost_afterwards import CAUSES, LostAfterwardsMessage
from lagloss_server.model.graph import Graph
from lagloss_server.model.hops import BEFORE_FIRST
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.message_trace import Search, Trail

_LOOKS: Final = {
    "lost": ("Lost", "✖", "red"),
    "perhaps": ("Possibly lost", "?", "orange"),
    "overdue": ("Overdue", "!", "orange"),
    "pending": ("Pending", "…", "blue"),
}
_WHY: Final = {
    "lost": "later messages have passed this place, and every emitter there has accounted for all it saw",
    "perhaps": "later messages have passed this place, but its evidence is incomplete: it could have passed unseen",
    "overdue": "not overtaken, but pending longer than maxWait",
    "pending": "not overtaken yet: late, not lost",
}
_SHOWN_STAYS: Final = 3
_SHOWN_BEACONS: Final = 500
"""A producer that gives every message the same id makes one message of them."""


def message_part(result: MessageRead, address: Address, traces: TraceLinks, *, dark: bool) -> Part:
    """Everything about a message, or why there is nothing."""
    parts: list[Any] = []
    if result.trouble is not None:
        summary = f"{result.trouble} Any data below is from the stored result of its window."
        parts.append(alert("The log cannot be read", summary, "orange", "!"))
    parts += [_lost_afterwards(lost, address) for lost in result.lost_afterwards]
    if result.trail is not None:
        parts += [
            _fate(result, address, traces),
            _chart(result, result.trail, address, dark),
            _beacons(result.trail, address.zone),
        ]
    elif result.verdict is not None:
        parts.append(_fate(result, address, traces))
    if result.search is not None and result.trail is None and (result.verdict is None or result.search.is_cut):
        parts.append(_not_found(result, result.search, address))
    return dmc.Stack(parts, gap="sm")


def _lost_afterwards(lost: LostAfterwardsMessage, address: Address) -> Part:
    zone, start_s = address.zone, lost.window_start_s
    window = dmc.Anchor(
        f"window {zone.minute(start_s)}",
        href=address.to(links.window(lost.pipeline, start_s)).href,
        underline="always",
    )
    said = [
        f"Its row in {lost.source} is {CAUSES[lost.cause]}: last seen ",
        *(_moment(zone, lost.seen_ms), ", missed since ", _moment(zone, lost.missed_ms), " · ", window),
    ]
    return alert("Lost afterwards", said, "red", "∅")


def _not_found(result: MessageRead, search: Search, address: Address) -> Part:
    zone = address.zone
    looked = "the log holds no window of this pipeline"
    if search.from_s is not None and search.to_s is not None:
        looked = f"searched {zone.moment(search.from_s)} to {zone.moment(search.to_s)}"
    if search.is_cut:
        return alert("Not found yet", _not_yet(result.where, search, looked, address), "blue", "…")
    reach = ""
    if search.oldest_s is not None:
        reach = f" The log goes back to {zone.moment(search.oldest_s)}; of older messages, only lost ones are stored."
    sample = " Its hash is outside the sample for which this pipeline sends beacons." if result.is_sampled_out else ""
    summary = [f"No beacon found for {result.asked}: {looked}.{reach}{sample}"]
    if result.where.goes_on:
        summary.append(" Windows covered by an earlier search were skipped.")
    return alert("Not found", summary, "orange", "∅")


def _not_yet(where: Where, search: Search, looked: str, address: Address) -> list[Any]:
    """Return where to go on: a search around a time has left out windows on both its sides."""
    order = "newest first" if where.around_s is None else f"outwards from {address.zone.moment(where.around_s)}"
    earlier = address.asking(before=rfc3339(search.from_s or 0), after=None)
    summary: list[Any] = [f"Not found so far: {looked}, {order}, within 30 s. "]
    summary.append(dmc.Anchor("Search earlier windows", href=earlier.href, underline="always"))
    if where.around_s is not None:
        later = address.asking(after=rfc3339(search.to_s or 0), before=None)
        summary += [" or ", dmc.Anchor("search later windows", href=later.href, underline="always")]
    return summary


def _fate(result: MessageRead, address: Address, traces: TraceLinks) -> Part:
    """Draw the message's fate, its place and its last observation; links to its window and its trace."""
    trail, summary = result.trail, result.verdict
    start_s = trail.window_start_s if trail is not None else summary.window_start_s if summary is not None else 0
    name = (trail and trail.message_id) or (summary and summary.message_id) or result.asked
    seen_ms = trail.last_seen_ms if trail is not None else summary.last_seen_ms if summary is not None else 0.0
    last = trail.beacons[-1].checkpoint if trail is not None else summary.last_checkpoint if summary is not None else ""
    zone = address.zone
    window = dmc.Anchor(
        f"window {zone.minute(start_s)}",
        href=address.to(links.window(result.pipeline, start_s)).href,
        underline="always",
    )
    return dmc.Paper(
        html.Div(
            [
                _badge(result),
                html.Div(
                    [
                        dmc.Text(name, fw=600, className="mono"),
                        dmc.Text(_sentence(result), size="sm"),
                        dmc.Text(
                            ["Last seen: ", _moment(zone, seen_ms), f" at {last} · ", window],
                            size="sm",
                        ),
                        _trace(result.trace, start_s, traces),
                        _elsewhere(result, start_s, address),
                    ],
                    className="grows",
                ),
            ],
            className="said",
        ),
        p="sm",
        withBorder=True,
    )


def _trace(trace: TraceContext | None, start_s: int, traces: TraceLinks) -> Part | None:
    if trace is None:
        return None
    shown, url = html.Span(trace.trace_id, className="mono"), traces.url(trace, start_s)
    return dmc.Text(["Trace: ", shown if url is None else outward(shown, url)], size="sm")


def _badge(result: MessageRead) -> Part:
    if not result.missing_at:
        return badge("Nothing missing", "✔", "teal", size="lg")
    word, sign, colour = _LOOKS.get(result.verdict.kind if result.verdict else "", ("Missing", "✖", "orange"))
    return badge(word, sign, colour, size="lg")


def _sentence(result: MessageRead) -> str:
    if not result.missing_at:
        return "It was delivered, filtered or dead-lettered on every path that it took."
    where = ", ".join(words.place_label(place) for place in result.missing_at)
    if result.verdict is None:
        return f"Missing at {where}. Its window has no verdict yet, or its result stores no more names."
    return f"Missing at {where}: {_WHY.get(result.verdict.kind, result.verdict.kind)}."


def _elsewhere(result: MessageRead, start_s: int, address: Address) -> Part | None:
    """Return an id that was used again is missing in several windows."""
    others = [message for message in result.known if message.window_start_s != start_s]
    if not others:
        return None
    summary: list[Any] = ["Also missing in: "]
    for index, pipeline in enumerate(others[:10]):
        href = address.to(links.window(result.pipeline, pipeline.window_start_s)).href
        summary += [
            ", " if index else "",
            dmc.Anchor(address.zone.minute(pipeline.window_start_s), href=href, size="sm", underline="always"),
        ]
    return dmc.Text(summary, size="sm")


def _chart(result: MessageRead, trail: Trail, address: Address, dark: bool) -> Part:
    assert result.graph is not None
    event_ms = trail.event_ms if trail.event_ms is not None else (trail.window_start_s + WINDOW_S) * 1_000
    kind = result.verdict.kind if result.verdict is not None else ""
    missing = {place: _LOOKS[kind][0].lower() if kind in _LOOKS else "missing" for place in result.missing_at}
    stays_ = stays(result.graph, trail.beacons[:_SHOWN_BEACONS])
    figure = gantt(stays_, missing, event_ms, trail.last_seen_ms, address.zone, dark)
    config: Any = {"displayModeBar": False, "responsive": True, "showTips": False}
    unknown = "" if trail.event_ms is not None else " Its event time is unknown; the end of its minute is used instead."
    return dmc.Paper(
        [
            dmc.Title("Path of the message", order=2, fz=16),
            dmc.Text(_where_time_went(result.graph, trail), size="sm"),
            dmc.Text(f"The table below has the same data.{unknown}", size="sm", c="dimmed"),
            dcc.Graph(id="message-gantt", figure=figure, config=config, style={"height": figure.layout.height}),
        ],
        p="sm",
        withBorder=True,
    )


def _where_time_went(graph: Graph, trail: Trail) -> str:
    """Return the places that held it longest, in a sentence; empty where none held it at all."""
    longest_stays = [(place, ms) for place, ms in longest(graph, trail.beacons[:_SHOWN_BEACONS]) if ms > 0][
        :_SHOWN_STAYS
    ]
    names = {BEFORE_FIRST: "before the first node"}
    parts = [
        f"{fmt.duration(ms)} {names.get(place) or f'at {words.place_label(place)}'}" for place, ms in longest_stays
    ]
    return f"Most time spent: {', '.join(parts)}." if parts else ""


def _beacons(trail: Trail, zone: Zone) -> Part:
    columns = (TableColumn("Checkpoint", "checkpoint", names_rows=True), "Observed at", "Lag", "Emitter", "Note")
    counts: dict[str, int] = {}
    rows = []
    for beacon in trail.beacons[:_SHOWN_BEACONS]:
        counts[beacon.checkpoint] = counts.get(beacon.checkpoint, 0) + 1
        notes = [f"occurrence {counts[beacon.checkpoint]}"] if counts[beacon.checkpoint] > 1 else []
        notes += [f"replay {beacon.replay}"] if beacon.replay else []
        notes += [f"reason: {beacon.reason}"] if beacon.reason else []
        notes += ["out of order"] if beacon.is_out_of_order else []
        notes += [f"checksum {beacon.payload_crc:08x}"] if beacon.payload_crc is not None else []
        host = f" on {beacon.host}" if beacon.host else ""
        emitter = f"{beacon.emitter[:8]}{host}"
        observed = _moment(zone, beacon.observed_ms)
        rows.append([beacon.checkpoint, observed, fmt.duration(beacon.lag_ms), emitter, ", ".join(notes)])
    first = f", the first {_SHOWN_BEACONS} shown" if len(trail.beacons) > _SHOWN_BEACONS else ""
    return dmc.Paper(
        [
            dmc.Title(f"{fmt.count(len(trail.beacons))} beacons{first}", order=2, fz=16, mb="xs"),
            table(
                "beacons",
                columns,
                rows,
                withTableBorder=True,
                miw=640,
                striped=True,
                tabularNums=True,
                verticalSpacing=4,
            ),
        ],
        p="sm",
        withBorder=True,
    )


def _moment(zone: Zone, epoch_ms: float) -> Part:
    """To the millisecond."""
    at_s = epoch_ms / 1_000
    local = f"{zone.clock(at_s, date=True)[:10]} {zone.precise(epoch_ms)} {zone.label(at_s)}"
    return moment(local, utc(at_s, seconds=True))
