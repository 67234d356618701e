"""The report as its sections in order, which Markdown and HTML only have to lay out; here those that judge it."""

from __future__ import annotations

from collections.abc import Callable

from dashboard.reports import charts, happened, wording
from dashboard.reports.jobs import jobs
from dashboard.reports.model import Report
from dashboard.reports.parts import NUMBERS, Cell, Layout, Pages, ReportSection, Table, numbers
from dashboard.reports.quality import quality
from lagloss_server.base import format as fmt
from lagloss_server.model.window import Lags
from lagloss_server.sums.error_budget import Attainment


def layout(report: Report, base_url: str = "") -> Layout:
    return Layout(
        title=wording.title(report),
        kind="SLA report",
        name=report.pipeline,
        description=report.description,
        span=report.span,
        made_at_s=report.made_at_s,
        status=report.status,
        sections=sections(report, base_url),
        charts={"burn-down": charts.burn_down(report), "days": charts.days(report)},
    )


def sections(report: Report, base_url: str = "") -> list[ReportSection]:
    """Return all of the report, in the order in which it is read."""
    pages = Pages(report, base_url)
    sections_ = [
        _objectives(pages),
        changes(report),
        _burn_down(report),
        _days(pages),
        _known(pages),
        happened.destinations(pages),
        happened.sources(pages),
        happened.sides(pages),
        happened.lag(report),
        happened.lag_by_hop(report),
        quality(pages),
        jobs(pages),
        happened.worst_hours(pages),
        happened.places(report),
        happened.repairs(pages),
        happened.lost_afterwards(pages),
        happened.reasons(report),
        happened.order(report),
        happened.incidents(pages),
        comparison(report),
        _targets(pages),
        _recomputing(pages),
    ]
    return [section for section in sections_ if section is not None]


def _objectives(pages: Pages) -> ReportSection:
    report = pages.report
    rows = [
        [
            Cell(wording.OBJECTIVES[attainment.objective]),
            Cell(wording.status(attainment.status), "", wording.STATUSES[attainment.status].meaning),
            Cell(wording.promises(attainment.objective, report.targets)),
            pages.range(wording.attained(attainment), report.span.from_s, report.span.to_s),
            Cell(fmt.count(attainment.of)),
            Cell(fmt.count_interval(attainment.bad)),
            Cell(fmt.count(int(attainment.allowed))),
            Cell(wording.spent(attainment)),
            Cell(wording.left(attainment.budget)),
        ]
        for attainment in report.whole.attainments
    ]
    heads = ("Objective", "Status", "Target", "Measured", "Messages", "Bad", "Budget", "Spent", "Left")
    sentences = [*wording.verdict_sentences(report), *wording.by_commit(report), *wording.repaired(report)]
    return ReportSection("Objectives", sentences, None, Table(heads, rows, 3))


def _burn_down(report: Report) -> ReportSection:
    note = (
        "The remaining error budgets: the number of messages that can still be bad. The band reaches from what is "
        "certain to what cannot be ruled out; a gap means no data."
    )
    return ReportSection("Error budget", (note,), "burn-down")


def _days(pages: Pages) -> ReportSection:
    rows = [
        [
            pages.range(wording.local_day(day.from_s, pages.zone), day.from_s, day.to_s),
            Cell(wording.status(day.status) if day.known.closed else "UNKNOWN"),
            *numbers(day),
            *(Cell(fmt.count(day.minutes_by_verdict[name])) for name in ("ok", "loss", "unknown", "missing", "idle")),
        ]
        for day in pages.report.days
        if day.known.closed or day.known.missing
    ]
    left_out = len(pages.report.days) - len(rows)
    note = f"Days of {pages.zone}." + (
        f" Not listed: {left_out} before the first day with data, or in the future." if left_out else ""
    )
    heads = ("Day", "Status", *NUMBERS, "Min. ok", "Loss", "Unknown", "Missing", "Idle")
    return ReportSection("Days", (note,), "days", Table(heads, rows, 2) if rows else None)


def _known(pages: Pages) -> ReportSection:
    report, whole = pages.report, pages.report.whole
    kinds = {
        "ok": "lost and late messages are within the target",
        "loss": "certain loss is above the target",
        "unknown": "not enough evidence for a verdict",
        "idle": "no messages, confirmed by every emitter",
        "missing": "result expected, but none stored",
        "before": "before the first minute with data",
        "to_come": "in the future, or not closed yet",
    }
    rows = [
        [
            Cell(name.replace("_", " ").upper()),
            Cell(meaning),
            Cell(fmt.count(whole.minutes_by_verdict[name])),
            Cell(fmt.percent(whole.minutes_by_verdict[name] / whole.known.minutes)),
        ]
        for name, meaning in kinds.items()
    ]
    everything = pages.range("ALL", report.span.from_s, report.span.to_s)
    rows.append([everything, Cell("the range"), Cell(fmt.count(whole.known.minutes)), Cell(fmt.percent(1.0))])
    canary = report.canary
    shown = () if canary is None else (f"To check lagloss itself, its canary was {canary.text('this range')}.",)
    return ReportSection("Minutes by verdict", shown, None, Table(("Minutes", "", "Number", "Share"), rows, 2))


def _targets(pages: Pages) -> ReportSection:
    rows = [
        [
            pages.range(
                f"{wording.local(target.from_s, pages.zone)} to {wording.local(target.to_s, pages.zone)}",
                target.from_s,
                target.to_s,
            ),
            Cell(wording.promise("loss", target)),
            Cell(wording.promise("on-time", target)),
            Cell(str(target.version)),
        ]
        for target in pages.report.targets
    ]
    note = "Each window is evaluated by the version of the definition in force at its start; the budget is their sum."
    return ReportSection("Targets in force", (note,), None, Table(("Time", "Loss", "Lag", "Version"), rows, 3))


def _recomputing(pages: Pages) -> ReportSection:
    links = pages.report.links(pages.report.span.from_s, pages.report.span.to_s, pages.base_url)
    note = (
        "All figures are sums over one-minute windows of event time: the windows behind a link add up to the "
        "figure. The API returns a day at a time; its header Link points to the next page. Minutes are kept for "
        "weeks, older data as sums of each hour and day, from which percentiles can also be read."
    )
    rows = [
        [Cell("All windows of the range, as JSON"), Cell("API", links["windows"])],
        [Cell("Their sums by minute, hour or day, as JSON"), Cell("API", links["sums"])],
        [Cell("The same on the dashboard"), Cell("page", links["page"])],
    ]
    return ReportSection("Where the figures come from", (note,), None, Table(("", "Link"), rows, 2))


def changes(report: Report) -> ReportSection:
    return ReportSection(f"What changed since {wording.range_words(report.previous_span)}", report.changes)


def comparison(report: Report) -> ReportSection:
    now, before = report.whole, report.previous
    title = f"Compared with {wording.range_words(report.previous_span)}"
    if not before.known.closed:
        return ReportSection(title, ("No data for that range.",))
    (_, on_time), (_, on_time_before) = now.attainments, before.attainments
    lags_now, lags_before = Lags.of(now.total.e2e_lags), Lags.of(before.total.e2e_lags)
    rows = [
        _compared("Messages", now.total.messages, before.total.messages, fmt.count, _relative),
        _compared("Certainly lost", now.total.loss_ratio.min, before.total.loss_ratio.min, fmt.percent, _points),
        _compared("Certainly on time", on_time.good.min, on_time_before.good.min, fmt.percent, _points),
        _compared("Lag p95", lags_now.p95, lags_before.p95, fmt.duration, _relative),
        _compared("Minutes with a verdict", now.known_share, before.known_share, fmt.percent, _points),
        *(
            _status_row(attainment, other)
            for attainment, other in zip(now.attainments, before.attainments, strict=True)
        ),
    ]
    return ReportSection(title, (), None, Table(("", "This range", "Before", "Change"), rows))


def _compared(
    name: str, now: float | None, before: float | None, say: Callable[..., str], change: Callable[[float, float], str]
) -> list[Cell]:
    changed = fmt.NOTHING if now is None or before is None else change(now, before)
    return [Cell(name), Cell(say(now)), Cell(say(before)), Cell(changed)]


def _status_row(now: Attainment, before: Attainment) -> list[Cell]:
    name = f"{wording.OBJECTIVES[now.objective]} budget spent"
    return [
        Cell(name),
        Cell(f"{wording.spent(now)} {wording.STATUSES[now.status].icon}"),
        Cell(f"{wording.spent(before)} {wording.STATUSES[before.status].icon}"),
        Cell(fmt.NOTHING),
    ]


def _relative(now: float, before: float) -> str:
    return f"{100 * (now - before) / before:+.1f} %" if before else fmt.NOTHING


def _points(now: float, before: float) -> str:
    """Format a difference in percentage points: per cent of per cent would mislead."""
    return f"{100 * (now - before):+.3g} points"
