"""The sections that say what happened in a report's range: how late messages were, when and where they were lost."""

from __future__ import annotations

from typing import Final

from dashboard.format import place_label
from dashboard.reports import wording
from dashboard.reports.model import DestinationFigures, Report, lost_places
from dashboard.reports.parts import NUMBERS, Cell, Pages, ReportSection, Table, numbers
from lagloss_server.base import format as fmt
from lagloss_server.incidents.incident import Incident, place_words
from lagloss_server.incidents.lost_afterwards import CAUSES
from lagloss_server.incidents.response_times import time_to_repair_s
from lagloss_server.model.window import Lags

MAX_ROWS: Final = 200
"""Of incidents and places; the JSON has all of them."""


def lag(report: Report) -> ReportSection:
    lags = Lags.of(report.whole.total.e2e_lags)
    rows = [[Cell("End to end"), *(Cell(fmt.duration(value)) for value in (lags.p50, lags.p95, lags.p99, lags.max))]]
    note = "Percentiles over all messages of the range, accurate to 1 %; they are not averages of percentiles."
    return ReportSection("Lag", (note,), None, Table(("Lag", "p50", "p95", "p99", "max"), rows))


def destinations(pages: Pages) -> ReportSection | None:
    """Return a line per destination; None for a single one, which the whole report is of."""
    destinations_ = pages.report.destinations
    if len(destinations_) < 2:
        return None
    note = (
        "Messages due at each destination, against its own targets; the totals cover all destinations together. "
        "Linked windows list them as `destinations`."
    )
    heads = (
        *("Destination", "Status", "Target", "Attainment", "Due", "Lost", "Dead-lettered", "Loss budget left"),
        *("On time", "On-time budget left", "E2E lag p95"),
    )
    rows = [_destination(pages, destination) for destination in destinations_]
    return ReportSection("Destinations", (*attainments(pages.report), note), None, Table(heads, rows, 3))


def sources(pages: Pages) -> ReportSection | None:
    """Return a line per source; None for a single one, which the whole report is of."""
    sources_ = pages.report.sources
    if len(sources_) < 2:
        return None
    note = (
        "The messages of each source, against the pipeline's targets. A message seen neither at a source nor where "
        "only one source leads belongs to none. Linked windows list them as `sources`."
    )
    heads = ("Source", "Status", *NUMBERS, "Dead-lettered", "Loss budget left", "On-time budget left", "E2E lag p95")
    rows = [
        [
            pages.source(source.name),
            Cell(wording.status(source.whole.status), "", wording.STATUSES[source.whole.status].meaning),
            *numbers(source.whole),
            Cell(fmt.count(source.whole.total.dead)),
            *(Cell(wording.left(attainment.budget)) for attainment in source.whole.attainments),
            Cell(fmt.duration(Lags.of(source.whole.total.e2e_lags).p95)),
        ]
        for source in sources_
    ]
    return ReportSection("Sources", (note,), None, Table(heads, rows, 2))


def sides(pages: Pages) -> ReportSection | None:
    """Return a line per side of a graph that is cut; None where it is not."""
    sides_ = pages.report.sides
    if len(sides_) < 2:
        return None
    note = (
        "The graph is split where messages get new ids, and each side is evaluated separately. The status of the "
        "report is that of the worst side."
    )
    heads = ("Side", "Status", *NUMBERS[:3], "Loss budget left")
    rows = [
        [
            Cell(side.name),
            Cell(wording.status(side.whole.status), "", wording.STATUSES[side.whole.status].meaning),
            *numbers(side.whole)[:3],
            Cell(wording.left(side.whole.attainments[0].budget)),
        ]
        for side in sides_
    ]
    return ReportSection("Sides of the graph", (note,), None, Table(heads, rows, 2))


def attainments(report: Report) -> tuple[str, ...]:
    """`Attainment, the share of messages due that was not lost: conn-ga 99.98 %, conn-fb 97.1 %.`, where there are
    several."""
    if len(report.destinations) < 2:
        return ()
    targets = ", ".join(
        f"{destination.name} {wording.kept(destination.whole.attainments[0])}" for destination in report.destinations
    )
    return (f"Attainment, the share of messages due that was not lost: {targets}.",)


def _destination(pages: Pages, figures: DestinationFigures) -> list[Cell]:
    total, (loss, on_time) = figures.whole.total, figures.whole.attainments
    return [
        Cell(figures.name),
        Cell(wording.status(figures.whole.status), "", wording.STATUSES[figures.whole.status].meaning),
        Cell(wording.short_promises(figures.targets)),
        pages.range(wording.kept(loss), figures.whole.from_s, figures.whole.to_s),
        Cell(fmt.count(total.messages)),
        Cell(fmt.count_interval(total.lost)),
        Cell(fmt.count(total.dead)),
        Cell(wording.left(loss.budget)),
        Cell(wording.kept(on_time)),
        Cell(wording.left(on_time.budget)),
        Cell(fmt.duration(Lags.of(total.e2e_lags).p95)),
    ]


def lag_by_hop(report: Report) -> ReportSection | None:
    """Return what each hop adds to the p95, this range and the one before; None where no lag is known."""
    now, before = report.lag, report.previous_lag
    if not now.hops:
        return None
    rows = [
        [
            Cell(hop.label),
            Cell(fmt.duration(value)),
            Cell(fmt.percent(now.share(hop))),
            Cell(fmt.duration(before.hops.get(hop))),
            Cell(fmt.percent(before.share(hop))),
        ]
        for hop, value in now.hops.items()
    ]
    path = "an unknown path" if now.delivery is None else f"the slowest path, to {now.delivery}"
    note = (
        "What each hop adds to the p95 of the lag: the p95 where messages leave it minus the p95 where they enter, so "
        f"it can be negative. Shares are of {path}."
    )
    heads = ("Hop", "p95", "Share", "Before", "Share before")
    return ReportSection("Lag by hop", (note,), None, Table(heads, rows))


def worst_hours(pages: Pages) -> ReportSection:
    rows = [
        [
            pages.range(
                wording.hours(hour.figures.from_s, hour.figures.to_s, pages.zone),
                hour.figures.from_s,
                hour.figures.to_s,
            ),
            *numbers(hour.figures),
            *(Cell(wording.of_budget(part)) for part in hour.spent),
        ]
        for hour in pages.report.worst_hours
    ]
    if not rows:
        return ReportSection("Worst hours", ("No hour used any budget.",))
    heads = ("Hour", *NUMBERS, "Loss budget used", "On-time budget used")
    return ReportSection(
        "Worst hours",
        ("The hours that used most of a budget of the range; certain use ranks before possible use.",),
        None,
        Table(heads, rows),
    )


def places(report: Report) -> ReportSection | None:
    """Return where messages were lost; None of a source's messages, of which that is not known."""
    if report.source is not None:
        return None
    places = lost_places(report.whole.total)[:MAX_ROWS]
    title, lost = "Where messages were lost", report.whole.total.lost_max
    if not places:
        note = "The places of these losses are unknown." if lost else "No messages were lost."
        return ReportSection(title, (note,))
    certain = report.whole.total.lost_min
    rows = [
        [
            Cell(place_label(name)),
            Cell(fmt.count_interval(place)),
            Cell(fmt.percent(place.min / certain if certain else None)),
        ]
        for name, place in places
    ]
    note = "A message can be lost at several places where routes split."
    return ReportSection(title, (note,), None, Table(("Place", "Lost", "Share of certain loss"), rows))


def repairs(pages: Pages) -> ReportSection | None:
    """Return the repairs of the range, with what was lost before and what is lost now; None if there is none."""
    rows = [
        [
            Cell(repair.name),
            Cell(place_label(repair.place)),
            pages.range(wording.local(repair.from_s, pages.zone), repair.from_s, repair.to_s),
            Cell(repair.state if repair.stop_reason is None else f"{repair.state}: {repair.stop_reason}"),
            Cell(fmt.count_interval(repair.lost_before)),
            *(Cell(fmt.count(repair.count(name))) for name in ("sent", "arrived", "gone")),
            Cell(fmt.count_interval(repair.lost_after)),
        ]
        for repair in pages.report.repairs[:MAX_ROWS]
    ]
    if not rows:
        return None
    note = "Messages that were lost and then sent again. All other sections show what is lost now."
    heads = ("Repair", "Place", "Windows from", "State", "Lost before", "Sent", "Arrived", "Gone", "Lost now")
    return ReportSection("Repairs", (note,), None, Table(heads, rows, 4))


def lost_afterwards(pages: Pages) -> ReportSection | None:
    """Return the messages whose rows a table has no more, by node; None if there is none."""
    nodes = pages.report.lost_afterwards
    if not nodes:
        return None
    rows = [
        [
            Cell(node.node),
            Cell(", ".join(node.sources)),
            pages.range(wording.local(node.from_s, pages.zone), node.from_s, node.to_s),
            Cell(" or ".join(CAUSES[cause] for cause in node.causes)),
            Cell("all" if node.share == 1 else fmt.percent(node.share)),
            Cell(fmt.count(node.lost)),
            Cell(fmt.count(node.accepted)),
        ]
        for node in nodes
    ]
    note = (
        "Messages that had arrived, and whose rows are not in the table any more. No other figure counts them; "
        "accepted ones were deleted on purpose."
    )
    heads = ("Node", "Table", "Minutes from", "Rows", "Compared", "Lost afterwards", "Accepted")
    return ReportSection("Lost afterwards", (note,), None, Table(heads, rows, 4))


def reasons(report: Report) -> ReportSection | None:
    """Return why messages were filtered or dead; None if none was."""
    reason_rows = report.whole.total.reason_rows
    if not reason_rows:
        return None
    rows = [
        [Cell(row.node), Cell(row.exit), Cell(fmt.reason(row.reason)), Cell(fmt.count(row.count))]
        for row in reason_rows[:MAX_ROWS]
    ]
    note = "Reasons come from windows whose beacons were read; windows proven by tallies have none."
    heads = ("Node", "Exit", "Reason", "Beacons")
    return ReportSection("Why messages were filtered or dead-lettered", (note,), None, Table(heads, rows, 3))


def order(report: Report) -> ReportSection | None:
    """Return where messages were out of order; None if none was."""
    rows = [
        [Cell(name), Cell(fmt.count(sums.out_of_order)), Cell(fmt.percent(sums.out_of_order / sums.distinct))]
        for name, sums in report.whole.total.checkpoints.items()
        if sums.out_of_order
    ]
    if not rows:
        return None
    note = "Messages observed after one with the same key and a later event time."
    return ReportSection("Out of order", (note,), None, Table(("Checkpoint", "Messages", "Share"), rows))


def incidents(pages: Pages) -> ReportSection:
    incidents_, times = pages.report.incidents.listed, pages.report.incidents.times
    if not incidents_:
        return ReportSection("Incidents", ("None in this range.",))
    note = (
        f"{fmt.counted(times.incidents, 'incident')}, {times.acknowledged} acknowledged "
        f"(MTTA {_time(times.mean_to_acknowledge_s)}), {times.repaired} repaired "
        f"(MTTR {_time(times.mean_to_resolve_s)}), {times.revised} revised."
    )
    rows = [_incident(pages, incident) for incident in incidents_[:MAX_ROWS]]
    more = [f"{len(incidents_) - MAX_ROWS} more are in the JSON report."] if len(incidents_) > MAX_ROWS else []
    heads = ("Opened", "Resolved", "Repaired in", "Severity", "Rule", "Breach", "Where", "Cause")
    return ReportSection("Incidents", (note, *more), None, Table(heads, rows, len(heads)))


def _incident(pages: Pages, incident: Incident) -> list[Cell]:
    ended = incident.resolved_at.timestamp() if incident.resolved_at and incident.state == "resolved" else None
    opened = wording.local(incident.opened_at.timestamp(), pages.zone)
    return [
        pages.range(opened, incident.first_window_s, incident.last_window_s + 60),
        pages.moment(ended) if ended else Cell("still open"),
        Cell(_time(time_to_repair_s(incident))),
        Cell(incident.severity),
        Cell(incident.rule),
        Cell(incident.text),
        Cell(", ".join(place_words(place) for place in incident.where[:3]) or fmt.NOTHING),
        Cell(incident.cause or "not analysed", pages.incident(incident)),
    ]


def _time(seconds: float | None) -> str:
    return fmt.NOTHING if seconds is None else fmt.duration_s(seconds)
