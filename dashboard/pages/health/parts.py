"""Parts of the health page: problems in words, and one bounded table per topic, the worst rows first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import dash_mantine_components as dmc
from dash import html

from dashboard.pages.base import Part, alert, aria, icon
from dashboard.pages.printing import inside_link
from dashboard.queries.consumer_lag import LagNow
from dashboard.queries.health import Health, HealthProblem
from dashboard.queries.taps import TapStatus
from dashboard.request import links
from dashboard.request.links import Address
from dashboard.request.zones import Zone, utc
from lagloss_server.base import format as fmt
from lagloss_server.judging.clock_skew import AGREE_WITHIN_MS

SHOWN: Final = 30
"""Rows of a table; the rest is a number, and one pipeline at a time can be looked at."""
Row = tuple[bool, Sequence[Part]]
"""Whether it is bad, and its cells."""


def verdict(health: Health) -> Part:
    """Return whether lagloss can be trusted now: every problem with what to do about it."""
    scope = f" for {health.pipeline}" if health.pipeline else ""
    if not health.problems:
        summary = "Minutes close on time, every node reports, clocks agree, and an alerter is active."
        silent = sum(node.silent for node in health.nodes)
        if silent:
            fell = "1 emitter stopped" if silent == 1 else f"{fmt.count(silent)} emitters stopped"
            summary += f" {fell} reporting within the last day, while others of the same node report: see below."
        if health.reports.behind is None:
            summary += " The number of unprocessed reports is unknown."
        return alert(f"lagloss is healthy{scope}", summary, "teal", "✔")
    title = f"{fmt.counted(len(health.problems), 'issue')}{scope}"
    return alert(title, dmc.List([_problem(problem) for problem in health.problems], size="sm"), "orange", "!")


def _problem(problem: HealthProblem) -> Part:
    summary: list[Part] = [html.B(problem.what), f" {problem.todo} "]
    if problem.runbook:
        summary.append(
            dmc.Anchor("Runbook", href=f"/runbooks/{problem.runbook}", target="_blank", size="sm", underline="always")
        )
    return dmc.ListItem(html.Span(summary))


def sections(health: Health, address: Address) -> Part:
    """Return all tables."""
    zone = address.zone
    shown = [
        _section("Canary", _canary(health, zone)) if health.canary is not None else None,
        _section("Reports", _reports(health, zone)),
        _section("Pipelines", _closings(health, address)),
        _section("Emitters by node", _nodes(health, address)),
        _section("Silent emitters, last 24 hours", _silent(health, address)),
        _section("Taps", _taps(health, address)),
        _section("Clocks by host", _hosts(health)),
        _section("Quarantine, last 24 hours", _bad_records(health)) if health.is_whole else None,
        _section("Failed and unreadable", _set_aside(health, zone)),
        _section("Undeclared names", _strangers(health, zone)),
        _section("Alerting", _alerting(health, zone)),
        _section("Recompute requests", _recomputes(health, address)),
        _section("Table sizes", _sizes(health, zone)) if health.is_whole else None,
    ]
    return html.Div(shown, className="sections")


def _section(title: str, content: Part) -> Part:
    return html.Section([html.H2(title), content], **aria(label=title))


def _table(columns: Sequence[str], rows: Iterable[Row], nothing: str) -> Part:
    """Draw the first rows and the number of further ones; `nothing` for an empty table."""
    rows = list(rows)
    if not rows:
        return html.P(nothing)
    head = html.Tr([html.Th(name, scope="col") for name in columns])
    body = [
        html.Tr([html.Td(cell) for cell in cells], className="bad" if is_bad else None)
        for is_bad, cells in rows[:SHOWN]
    ]
    more = f"and {fmt.count(len(rows) - SHOWN)} more; the API returns all of them" if len(rows) > SHOWN else None
    table = html.Table([html.Thead(head), html.Tbody(body)], className="facts")
    # what is wider than a narrow screen can be scrolled by itself, with the keyboard too
    box = html.Div(table, className="scrolls", tabIndex=0, role="group", **aria(label=", ".join(columns)))
    return html.Div([box, html.P(more) if more else None])


def _status(is_bad: bool, good: str, bad: str) -> Part:
    sign, word, colour = ("!", bad, "orange") if is_bad else ("✔", good, "teal")
    return html.Span([icon(sign), f" {word}"], className=f"status status-{colour}")


def _at(epoch_s: float | None, zone: Zone, now_s: float) -> Part:
    """Return how long ago, with the moment beside it on hover."""
    if epoch_s is None:
        return fmt.NOTHING
    return html.Time(_aged(now_s - epoch_s), title=f"{zone.moment(epoch_s, seconds=True)}, {utc(epoch_s)}")


def _aged(seconds: float) -> str:
    """Coarse, so that rows do not change with every refresh."""
    return "within a minute" if seconds < 60 else fmt.ago(seconds // 60 * 60)


def _canary(health: Health, zone: Zone) -> Part:
    assert health.canary is not None
    standing = health.canary.standing
    rows: list[Row] = [
        (not standing.ok and not standing.is_young, ["now", health.canary.text]),
        (False, ["last minute that was right", _at(standing.last_ok_s, zone, health.now_s)]),
        *((False, [f"not due: {zone.moment(minute)}", why]) for minute, why in standing.not_due),
    ]
    return _table(("item", "value"), rows, "")


def _reports(health: Health, zone: Zone) -> Part:
    summary = health.reports
    if summary.behind is None:
        behind = f"unknown: {summary.why}"
    else:
        behind = "none" if not summary.behind else f"{fmt.count(summary.behind)} unprocessed"
    rows: list[Row] = [
        (False, ["newest processed report", _at(summary.appended_s, zone, health.now_s)]),
        (summary.is_stuck(health.now_s), ["unprocessed reports", behind]),
    ]
    return _table(("item", "value"), rows, "")


def _closings(health: Health, address: Address) -> Part:
    rows: list[Row] = []
    for closing in health.closings:
        is_late = closing.is_late(health.now_s)
        waits = fmt.duration_s(closing.waits_s(health.now_s)) if is_late else fmt.NOTHING
        link = inside_link(closing.pipeline, address.to(links.pipeline(closing.pipeline)).href)
        newest = _at(None if closing.newest_s is None else closing.newest_s + 60, address.zone, health.now_s)
        is_unknown = closing.newest_s is None and not closing.due  # nothing came in yet that could be closed
        status = fmt.NOTHING if is_unknown else _status(is_late, "on time", "late")
        rows.append((is_late, [link, status, newest, fmt.NOTHING if is_unknown else fmt.count(closing.due), waits]))
    columns = ("pipeline", "closing", "newest closed minute ended", "minutes overdue", "longest delay")
    return _table(columns, rows, "No pipeline is declared yet.")


def _nodes(health: Health, address: Address) -> Part:
    rows: list[Row] = []
    for node in health.nodes:
        dead = f", {node.long_dead} for more than a day" if node.long_dead else ""
        silent = f"{node.silent}{dead}" if node.silent or dead else "none"
        cells: list[Part] = [
            inside_link(node.pipeline, address.to(links.HEALTH, pipeline=node.pipeline).href),
            node.node,
            _status(node.is_bad, "reporting" if node.reporting else "ended", "silent"),
            fmt.count(node.reporting),
            silent,
            fmt.count(node.closed),
            _at(node.reported_s, address.zone, health.now_s),
            _consumer_lag(node.consumer_lag),
        ]
        rows.append((node.is_bad, cells))
    columns = ("pipeline", "node", "state", "reporting", "silent", "closed", "last report", "consumer lag")
    return _table(columns, rows, "No emitter has ever reported: are the nodes instrumented (docs/instrument.md)?")


def _taps(health: Health, address: Address) -> Part:
    rows: list[Row] = []
    for tap in sorted(health.taps, key=lambda tap: (not tap.is_bad, not tap.unreadable)):
        cells: list[Part] = [
            inside_link(tap.tap.pipeline, address.to(links.pipeline(tap.tap.pipeline)).href),
            tap.tap.node,
            tap.tap.source,
            _status(tap.is_bad, tap.state, tap.state),
            _at(tap.through_s, address.zone, health.now_s),
            _unreadable(tap),
            tap.trouble or fmt.NOTHING,
        ]
        rows.append((tap.is_bad, cells))
    columns = ("pipeline", "node", "source", "state", "read through", "unreadable", "waiting for")
    return _table(columns, rows, "No definition declares a tap.")


def _unreadable(tap: TapStatus) -> str:
    named = ", ".join(f"{fmt.count(reason.count)} {reason.reason}" for reason in tap.unreadable)
    return named or "none"


def _silent(health: Health, address: Address) -> Part:
    """Draw silent emitters with their last report; they stay listed when no window expects them any more."""
    zone = address.zone
    rows: list[Row] = [
        (
            emitter.is_awaited,
            [
                inside_link(emitter.pipeline, address.to(links.HEALTH, pipeline=emitter.pipeline).href),
                emitter.node,
                emitter.host,
                html.Code(emitter.emitter[:8], title=emitter.emitter),
                html.Time(zone.moment(emitter.reported_s, seconds=True), title=utc(emitter.reported_s)),
                _at(emitter.reported_s, zone, health.now_s),
                "windows are waiting for it" if emitter.is_awaited else "no longer waited for",
            ],
        )
        for emitter in health.silent_emitters
    ]
    columns = ("pipeline", "node", "host", "emitter", "silent since", "last report", "state")
    return _table(columns, rows, "None: every emitter of the last day is reporting or has closed.")


def _consumer_lag(lag: LagNow | None) -> str:
    if lag is None or lag.offsets is None:
        return fmt.NOTHING
    if not lag.offsets and not lag.in_flight:
        return "0"
    behind = f"{fmt.duration(lag.behind_ms)} behind"
    if lag.in_flight is not None:
        behind = f"{fmt.count(lag.in_flight)} in flight, {behind}"
    return f"{fmt.count(lag.offsets)} ({behind})"


def _hosts(health: Health) -> Part:
    rows: list[Row] = []
    for host in health.hosts:
        is_off = abs(host.skew_ms) >= AGREE_WITHIN_MS
        side = "behind" if host.skew_ms > 0 else "ahead"
        summary = f"{fmt.duration(abs(host.skew_ms))} {side}" if host.skew_ms else "0 ms"
        rows.append((is_off, [host.host, _status(is_off, "ok", "off"), summary, fmt.count(host.emitters)]))
    return _table(
        ("host", "clock", "compared with the broker's", "emitters"), rows, "No emitter reported in the last hour."
    )


def _bad_records(health: Health) -> Part:
    rows: list[Row] = [
        (True, [bad.topic, bad.reason, fmt.count(bad.count), html.Code(bad.first_bytes or fmt.NOTHING)])
        for bad in health.bad_records
    ]
    return _table(
        ("topic", "reason", "records", "newest starts with (hex)"), rows, "Empty: every record could be read."
    )


def _set_aside(health: Health, zone: Zone) -> Part:
    rows: list[Row] = []
    for item in health.set_aside:
        tried = _at(item.failed_at_s, zone, health.now_s)
        rows.append((True, [item.kind, item.pipeline, item.item, item.error, fmt.count(item.tries), tried]))
    columns = ("kind", "pipeline", "item", "error", "tries", "last tried")
    return _table(columns, rows, "None: all windows were closed, all periods rolled up, and all rows read.")


def _strangers(health: Health, zone: Zone) -> Part:
    rows: list[Row] = [
        (
            True,
            [
                stranger.kind,
                stranger.pipeline,
                stranger.checkpoint or fmt.NOTHING,
                _at(stranger.since_s, zone, health.now_s),
            ],
        )
        for stranger in health.strangers
    ]
    return _table(
        ("kind", "pipeline", "checkpoint", "first reported"), rows, "None: all names in reports are declared."
    )


def _alerting(health: Health, zone: Zone) -> Part:
    summary = health.alerting
    is_well = summary.is_well(health.now_s)
    well_at = None if summary.well_at is None else summary.well_at.timestamp()
    rows: list[Row] = [
        (not is_well, ["active alerter", summary.host or "none so far"]),
        (not is_well, ["last heartbeat", _at(well_at, zone, health.now_s)]),
    ]
    if summary.receivers is not None:
        receivers = ", ".join(
            f"{receiver['name']} ({receiver['kind']}{', fallback' if receiver['fallback'] else ''})"
            for receiver in summary.receivers
        )
        rows.append((not receivers, ["receivers", receivers or "none: no notifications are sent"]))
    return _table(("item", "value"), rows, "")


def _recomputes(health: Health, address: Address) -> Part:
    zone = address.zone
    rows: list[Row] = [
        (
            False,
            [
                inside_link(recompute.pipeline, address.to(links.pipeline(recompute.pipeline)).href),
                f"{zone.moment(recompute.from_s)} to {zone.moment(recompute.to_s)}",
                "waiting"
                if recompute.of is None
                else f"{fmt.count(recompute.done)} of {fmt.count(recompute.of)} minutes",
                _at(recompute.requested_at.timestamp(), zone, health.now_s),
            ],
        )
        for recompute in health.recomputes
    ]
    return _table(("pipeline", "minutes", "done", "requested"), rows, "There are no open recompute requests.")


def _sizes(health: Health, zone: Zone) -> Part:
    rows: list[Row] = [
        (
            False,
            [
                size.table,
                fmt.size(size.bytes),
                fmt.count(size.partitions) if size.partitions else fmt.NOTHING,
                fmt.NOTHING if size.before_s is None else f"before {zone.moment(size.before_s)}",
            ],
        )
        for size in health.sizes
    ]
    return _table(("table", "size with indexes", "day partitions", "dropped"), rows, "")
