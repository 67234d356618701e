"""Statuses, objectives and local times as people read them in a report."""

from __future__ import annotations

from typing import Final

from dashboard.format import VerdictLook
from dashboard.reports.model import Figures, Report
from dashboard.reports.ranges import CalendarRange
from dashboard.request.zones import Zone
from lagloss.wire.format import WINDOW_S
from lagloss_server.base import format as fmt
from lagloss_server.model.window import Interval
from lagloss_server.sums.error_budget import Attainment, Budget, BudgetShare, Objective, Status, Target

STATUSES: Final[dict[Status, VerdictLook]] = {
    "met": VerdictLook("MET", "✔", "teal", "ok", "circle", "within the target, regardless of missing data"),
    "missed": VerdictLook("MISSED", "✖", "red", "loss", "x", "certainly outside the target"),
    "unproven": VerdictLook("UNPROVEN", "?", "orange", "unknown", "diamond", "missing data could change this verdict"),
    "none": VerdictLook("NO MESSAGES", "○", "gray", "idle", "circle-open", "nothing to evaluate"),
}
OBJECTIVES: Final[dict[Objective, str]] = {"loss": "Loss", "on-time": "On time"}


def title(report: Report) -> str:
    title_of = report.pipeline if report.source is None else f"{report.pipeline}, messages of {report.source}"
    return f"SLA report: {title_of}, {range_words(report.span)}"


def range_words(span: CalendarRange) -> str:
    """`2026-11` or `2026-11-01 00:00 to 2026-11-08 00:00`, without the zone."""
    return span.name or f"{local(span.from_s, span.zone)} to {local(span.to_s, span.zone)}"


def range_sentence(span: CalendarRange, before: int, now_s: float) -> str:
    """`November 2026 so far, since Thu 2026-11-26 13:41 (first data), UTC`; `before`: its minutes before any data."""
    words = range_words(span)
    if span.unit == "month":
        words = Zone.named(span.zone).at(span.from_s).strftime("%B %Y")
    first_s = span.from_s + before * WINDOW_S
    so_far = " so far" if span.to_s > now_s else ""
    weekday = Zone.named(span.zone).at(first_s).strftime("%a")
    since = f", since {weekday} {local(first_s, span.zone)} (first data)" if before and first_s < now_s else ""
    return f"{words}{so_far}{since}, {span.zone}"


def local(at_s: float, zone: str) -> str:
    """`2026-11-21 08:40` in the zone; the caller says which. With its letters where this time comes twice."""
    local_zone = Zone.named(zone)
    return local_zone.moment(at_s) if local_zone.is_twice(at_s) else local_zone.clock(at_s, date=True)


def local_day(at_s: float, zone: str) -> str:
    return Zone.named(zone).at(at_s).strftime("%a %Y-%m-%d")


def hours(from_s: int, to_s: int, zone: str) -> str:
    """`2026-11-21 08:00 to 09:00`."""
    end = local(to_s, zone).partition(" ")[2]
    return f"{local(from_s, zone)} to {end}"


def status(look: Status) -> str:
    return f"{STATUSES[look].icon} {STATUSES[look].word}"


def promise(objective: Objective, target: Target) -> str:
    """Format a target: `at most 1 % of messages lost`."""
    if objective == "loss":
        return f"at most {fmt.percent(target.loss_max)} of messages lost"
    return f"at least {fmt.percent(target.on_time_min)} of messages within {fmt.duration(target.lag_ms)}"


def short_promises(targets: tuple[Target, ...]) -> str:
    """`≤ 1 % lost, ≥ 95 % in 5 s` of each version of a definition that changes it."""
    short = [
        f"≤ {fmt.percent(target.loss_max)} lost, ≥ {fmt.percent(target.on_time_min)} in {fmt.duration(target.lag_ms)}"
        for target in targets
    ]
    return "; then ".join(dict.fromkeys(short))


def promises(objective: Objective, targets: tuple[Target, ...]) -> str:
    """Return the same of several versions of a definition: each once, in their order."""
    return ", then ".join(dict.fromkeys(promise(objective, target) for target in targets))


def attained(attainment: Attainment) -> str:
    """Return the measured share: of messages lost, or on time."""
    low, high = attainment.good.min, attainment.good.max
    if low is None or high is None:
        return fmt.NOTHING
    if attainment.objective == "on-time":
        return kept(attainment)
    return fmt.interval(fmt.percent, attainment.bad.min / attainment.of, attainment.bad.max / attainment.of)


def kept(attainment: Attainment) -> str:
    """Return the attainment: the share of messages that was not lost, or on time."""
    low, high = attainment.good.min, attainment.good.max
    return fmt.NOTHING if low is None or high is None else fmt.interval(fmt.percent, low, high)


def of_budget(part: BudgetShare | None) -> str:
    """Format the spent part of a budget."""
    return fmt.NOTHING if part is None else fmt.interval(fmt.percent, part.min, part.max)


def spent(attainment: Attainment) -> str:
    """Return the share of its budget that is used up, in per cent; without decimals where it is much."""
    budget = attainment.budget
    if budget is None:
        return fmt.NOTHING
    if not budget.allowed:
        return f"{fmt.count_interval(budget.used)} bad, none allowed"
    return of_budget(budget.spent)


def left(budget: Budget | None) -> str:
    """`72 %`, `12 % – 72 %`, `at most 72 %` where it may be used up, `none, at least 130 % used`."""
    if budget is None:
        return fmt.NOTHING
    part, used = budget.left, budget.used
    if part is None:
        return f"{fmt.count_interval(used)} bad, none allowed"
    if budget.is_used_up:
        return f"none, {'' if used.min == used.max else 'at least '}{fmt.percent(1 - part.max)} used"
    if part.min <= 0:
        return f"at most {fmt.percent(part.max)}"
    return fmt.percent_interval(part)


def verdict_sentences(report: Report) -> list[str]:
    """Return one sentence per objective, and one about unknown time."""
    sentences = []
    for attainment in report.whole.attainments:
        look, promise = STATUSES[attainment.status], promises(attainment.objective, report.targets)
        fate = "lost" if attainment.objective == "loss" else "delivered on time"
        measured = (
            f"{attained(attainment)} of {fmt.count(attainment.of)} messages {fate}" if attainment.of else "no messages"
        )
        sentences.append(f"{OBJECTIVES[attainment.objective]} {look.word}: {measured}; target: {promise}.")
    return [*sentences, *not_known(report.whole)]


def by_commit(report: Report) -> list[str]:
    """Return at which destinations a message is delivered once a group has committed it."""
    return [f"{line}." for line in fmt.delivered_by_commit(report.committed_by)]


def repaired(report: Report) -> list[str]:
    """Return how much more was lost before repairs: what was repaired was lost all the same."""
    more = report.repaired
    if not more.max:
        return []
    total = report.whole.total
    before = fmt.count_interval(Interval(total.lost_min + more.min, total.lost_max + more.max))
    return [f"Before repairs, {before} messages were lost, {fmt.count_interval(more)} more than now."]


def not_known(figures: Figures) -> list[str]:
    """Return the caveat of a figure: how much of its time is unknown."""
    known_minutes, unknown = figures.known, figures.minutes_by_verdict["unknown"]
    note = []
    if not known_minutes.closed:
        note.append("No window of this range is closed: there is nothing to report yet.")
    elif unknown or known_minutes.missing:
        note.append(
            f"Unknown: {fmt.counted(unknown, 'minute')} without enough evidence for a verdict and "
            f"{fmt.counted(known_minutes.missing, 'minute')} without a result, together "
            f"{fmt.percent(1 - (figures.known_share or 0))} of the time. They never count as good: the upper "
            "bound of a spent budget counts all their messages as bad."
        )
    if known_minutes.cut:
        note.append(
            f"Of these, {fmt.counted(known_minutes.cut, 'minute')} are stored only within hours that cross "
            "a day or the boundary of the range, because minutes of that age are dropped."
        )
    if known_minutes.before:
        note.append(f"{fmt.counted(known_minutes.before, 'minute').capitalize()} lie before the first one with data.")
    if known_minutes.to_come:
        note.append(f"{fmt.counted(known_minutes.to_come, 'minute').capitalize()} are in the future or not closed yet.")
    return note
