"""Parts of the overview: the totals in words, filters that are links, and a row a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import dash_mantine_components as dmc
from dash import html

from dashboard.figures.sparkline import HEIGHT_PX, WIDTH_PX, sparkline, spoken
from dashboard.format import VERDICTS
from dashboard.pages.base import Part, alert, aria, data, picture
from dashboard.pages.printing import element, inside_link, small, status
from dashboard.queries.condition import Condition
from dashboard.queries.overview import Overview
from dashboard.queries.pipeline_status import Hour, Minute, Order, PipelineStatus, State
from dashboard.reports.wording import left
from dashboard.request import links
from dashboard.request.links import Address
from dashboard.request.zones import Zone, utc
from lagloss.wire.format import WINDOW_S
from lagloss_server.base import format as fmt
from lagloss_server.store.partitions import DAY_S

_PHRASES: Final[Mapping[State, tuple[str, str]]] = {
    State.LOSS: ("loses messages", "lose messages"),
    State.CRITICAL: ("has a critical incident open", "have critical incidents open"),
    State.BLIND: ("is blind", "are blind"),
    State.STALE: ("is stale", "are stale"),
    State.UNKNOWN: ("has no verdict", "have no verdict"),
    State.LATE: ("is late", "are late"),
    State.BUDGET: ("has used up an error budget", "have used up an error budget"),
    State.WARNING: ("has a warning open", "have warnings open"),
    State.NOT_CLOSED: ("has no closed minute yet", "have no closed minute yet"),
    State.OK: ("is healthy", "are healthy"),
    State.IDLE: ("is idle", "are idle"),
}
"""The row of one pipeline, and headlines of several."""
_LOOKS: Final[Mapping[State, tuple[str, str, str]]] = {
    State.LOSS: ("Loss", VERDICTS["loss"].icon, "red"),
    State.CRITICAL: ("Critical", "▲", "red"),
    State.BLIND: ("Blind", "✖", "red"),
    State.STALE: ("Stale", "!", "orange"),
    State.UNKNOWN: ("Unknown", VERDICTS["unknown"].icon, "orange"),
    State.LATE: ("Late", "◷", "orange"),
    State.BUDGET: ("Budget used up", "▽", "orange"),
    State.WARNING: ("Warning", "△", "yellow"),
    State.NOT_CLOSED: ("Not closed yet", "…", "blue"),
    State.OK: ("OK", VERDICTS["ok"].icon, "teal"),
    State.IDLE: ("Idle", VERDICTS["idle"].icon, "gray"),
}
"""Word, sign and Mantine colour."""
_OF_CONDITION: Final[Mapping[Condition, State]] = {
    Condition.BLIND: State.BLIND,
    Condition.STALE: State.STALE,
    Condition.NOT_CLOSED: State.NOT_CLOSED,
}
_COLUMNS: Final[Mapping[str, Order | None]] = {
    "Pipeline": Order.NAME,
    "Status": Order.WORST,
    "Loss": Order.LOSS,
    "E2E lag": Order.LAG,
    "Error budget left": Order.BUDGET,
    "24 hours": None,
    "Open incidents": Order.INCIDENTS,
    "Newest minute": Order.NEWEST,
}
"""And what their heads order by."""


def totals(overview: Overview) -> str:
    """`3 of 200 pipelines lose messages; 2 are blind; 195 are well.`"""
    total, counts = len(overview.standings), overview.counts
    first, *rest = [(number, _PHRASES[state][number != 1]) for state, number in counts.items()]
    what = fmt.counted(total, "pipeline")
    number, phrase = first
    opening = f"{what} {phrase}" if number == total else f"{fmt.count(number)} of {what} {phrase}"
    return "; ".join([opening, *(f"{fmt.count(number)} {phrase}" for number, phrase in rest)]) + "."


def state_filter(overview: Overview, address: Address, chosen: State | None) -> Part:
    """Return a link for each state that some pipeline is in: the same page, showing those only."""
    everything = address.asking(state=None, page=None)
    items = [_state_link(f"All {fmt.count(len(overview.standings))}", everything, chosen is None)]
    for state, number in overview.counts.items():
        word, sign, _ = _LOOKS[state]
        to = address.asking(state=state, page=None)
        items.append(_state_link(f"{sign} {word} {fmt.count(number)}", to, chosen is state))
    return html.Nav(dmc.Group(items, gap=4), **aria(label="pipelines by state"))


def _state_link(text: str, to: Address, is_current: bool) -> Part:
    marks: dict[str, Any] = aria(current="true") if is_current else {}
    return dmc.Anchor(text, href=to.href, size="sm", fw=700 if is_current else 400, className="nav-link", **marks)


def nothing_matches(address: Address, text: str, chosen: State | None) -> Part:
    criteria = [f"whose name or description contains “{text}”"] if text else []
    criteria += [f"in the state “{_LOOKS[chosen][0]}”"] if chosen else []
    everything = address.asking(q=None, state=None, page=None).href
    summary = [f"No pipeline matches: {' and '.join(criteria)}. ", dmc.Anchor("Show all pipelines", href=everything)]
    return alert("No matches", summary, "blue", "∅")


def _head(name: str, by: Order | None, address: Address, order: Order) -> Part:
    """Return the head of a column: a link that orders by it, where that is of use."""
    if by is None:
        return element("th", name, role="columnheader", scope="col")
    to = address.asking(sort=None if by is Order.WORST else by, page=None).href
    ordered = aria(sort="ascending" if by is Order.NAME else "descending") if by is order else {}
    return element("th", inside_link(name, to), role="columnheader", scope="col", **ordered)


def table(standings: Sequence[PipelineStatus], address: Address, now_s: float, order: Order = Order.WORST) -> Part:
    """Return a row each, in the order given; on narrow screens the rows are cards (overview.css)."""
    names = [_head(name, by, address, order) for name, by in _COLUMNS.items()]
    head = html.Thead(html.Tr(names, role="row"), role="rowgroup")
    rows = [_row(standing, address, now_s) for standing in standings]
    return html.Table([head, html.Tbody(rows, role="rowgroup")], role="table", className="overview")


def _row(standing: PipelineStatus, address: Address, now_s: float) -> Part:
    name, zone = standing.pipeline, address.zone
    to_page = inside_link(name, address.to(links.pipeline(name)).href, className="stretched")
    cells = [
        element("th", [to_page, small(standing.description)], role="rowheader", scope="row"),
        _cell("Status", *_now(standing, zone)),
        _cell("Loss", *_loss(standing), is_bad=_is_lossy(standing)),
        _cell("E2E lag", *_lag(standing), is_bad=_is_late(standing)),
        _cell("Error budget left", *_budgets(standing)),
        _cell("24 hours", _spark(standing)),
        _cell("Open incidents", _incidents(standing, address)),
        _cell("Newest minute", *_newest(standing, zone, now_s)),
    ]
    return element("tr", cells, role="row", **data(key=name))


def _cell(label: str, *children: Part, is_bad: bool = False) -> Part:
    return element("td", children, role="cell", className="bad" if is_bad else None, **data(label=label))


def _now(standing: PipelineStatus, zone: Zone) -> list[Part]:
    """Return the newest verdict and since when; where that is not of now, what is the matter, and what the last one
    was."""
    minute = standing.newest
    if minute is None or not standing.is_current:
        state = _OF_CONDITION[standing.condition]
        last = f"was {VERDICTS[minute.verdict].word}" if minute is not None else "no verdict so far"
        return [status(*_LOOKS[state]), small("" if state is State.NOT_CLOSED else last)]
    look = VERDICTS[minute.verdict]
    return [status(look.word, look.icon, look.colour), small(_since(minute, zone))]


def _since(minute: Minute, zone: Zone) -> str:
    if minute.since_s is None:
        return "for more than 6 h"
    today = zone.clock(minute.since_s, date=True)[:10] == zone.clock(minute.start_s, date=True)[:10]
    return f"since {zone.clock(minute.since_s, date=not today)}"


def _is_lossy(standing: PipelineStatus) -> bool:
    """Now: what was lost before a pipeline went blind or stale is no loss of now."""
    ratio = standing.newest.loss_ratio.min if standing.newest is not None and standing.is_current else None
    return ratio is not None and ratio > standing.targets.loss


def _is_late(standing: PipelineStatus) -> bool:
    return standing.newest is not None and standing.is_current and standing.newest.is_late


def _loss(standing: PipelineStatus) -> list[Part]:
    text = fmt.NOTHING if standing.newest is None else _loss_of(standing.newest)
    return _of_now(standing, text, f"{fmt.percent(standing.targets.loss)} allowed")


def _of_now(standing: PipelineStatus, text: str, target: str) -> list[Part]:
    """Return the value, unless the pipeline is blind or stale: then the last known one stands below."""
    if standing.newest is None or standing.is_current:
        return [text, small(target)]
    return [fmt.NOTHING, small(f"was {text}, {target}")]


def _loss_of(minute: Minute) -> str:
    """Format the loss; for a minute that could not be judged, certain loss as a lower bound, and no number without
    any."""
    ratio = minute.loss_ratio
    if minute.verdict != "unknown" or ratio.min is None or minute.lost_min < minute.lost_max:
        return fmt.percent_interval(ratio)
    return f"at least {fmt.percent(ratio.min)}" if minute.lost_min else fmt.NOTHING


def _lag(standing: PipelineStatus) -> list[Part]:
    minute, targets = standing.newest, standing.targets
    percentile, target = fmt.percentile(targets.lag_percentile), fmt.duration(targets.lag_ms)
    if minute is not None and minute.lag_ms is None and minute.on_time_share is not None:
        target_text = f"{fmt.percent(targets.lag_percentile / 100)} within {target}"
        return _of_now(standing, f"{fmt.percent(minute.on_time_share)} on time", f"target {target_text}")
    text = fmt.duration(None if minute is None else minute.lag_ms)
    return _of_now(standing, text, f"{percentile}, target {target}")


def _budgets(standing: PipelineStatus) -> list[Part]:
    """Draw the remaining budget of each objective; an exhausted one is marked."""
    return [
        element(
            "div",
            f"{objective}: {left(budget)}",
            className=f"budget{' bad' if budget is not None and budget.is_used_up else ''}",
        )
        for objective, budget in standing.budgets.items()
    ]


def _spark(standing: PipelineStatus) -> Part:
    """Draw the last day; of a younger pipeline all there is of it, by minutes in its first hours, and say so."""
    hours, unit = _since_data(standing.hours), "hour"
    if standing.minutes:
        hours, unit = _since_data(standing.minutes), "minute"
    if not hours:
        return fmt.NOTHING
    note = spoken(hours, standing.targets, unit)
    image = picture(sparkline(hours, standing.targets), note, title=note, width=str(WIDTH_PX), height=str(HEIGHT_PX))
    is_day = len(hours) == len(standing.hours) and unit == "hour"
    return [image, small("" if is_day else f"last {fmt.counted(len(hours), unit)}")]


def _since_data(steps: Sequence[Hour]) -> Sequence[Hour]:
    """Return the steps from the first one with data on."""
    first = (index for index, hour in enumerate(steps) if hour.lag_ms is not None or hour.loss_ratio is not None)
    return steps[next(first, len(steps)) :]


def _incidents(standing: PipelineStatus, address: Address) -> Part:
    counted = [(standing.critical, "▲", "critical"), (standing.warning, "△", "warning")]
    summary = ", ".join(f"{sign} {number} {severity}" for number, sign, severity in counted if number)
    href = address.to(links.ALERTS, pipeline=standing.pipeline).href
    return inside_link(summary, href, className="above") if summary else "none"


def _newest(standing: PipelineStatus, zone: Zone, now_s: float) -> list[Part]:
    """Return how old the newest closed minute is, or when the pipeline was last heard of."""
    minute, reported_s = standing.newest, standing.fresh.reported_s
    if minute is None:
        heard = "no reports so far" if reported_s is None else f"last report {_aged(now_s - reported_s)}"
        return [fmt.NOTHING, small(heard)]
    shown = zone.minute(minute.start_s) if now_s - minute.start_s > DAY_S else zone.clock(minute.start_s)
    when = element("time", shown, title=utc(minute.start_s))
    return [when, small(f"ended {_aged(now_s - minute.start_s - WINDOW_S)}")]


def _aged(seconds: float) -> str:
    """Return the age in whole minutes, so that a row does not change with every refresh."""
    return fmt.ago(seconds // 60 * 60) if seconds >= 60 else "within a minute"
