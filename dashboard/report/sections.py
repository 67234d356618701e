"""The report as sections of sentences and tables, which Markdown and HTML only have to lay out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from dashboard import words
from dashboard.report import wording
from dashboard.report.attainment import Attainment
from dashboard.report.model import Figures, Report, lost_places
from lagloss.incidents import Incident, place_words
from lagloss.result import Lags, rfc3339

Chart = Literal["burn-down", "days"]
MAX_ROWS: Final = 200
"""Of incidents and places; the JSON has all of them."""


@dataclass(frozen=True, slots=True)
class Cell:
    """`link`: where the windows of the figure are; `hint`: shown on hover, such as the time in UTC."""

    text: str
    link: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """`names`: how many columns at the left are text; the others hold numbers."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    names: int = 1


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    sentences: Sequence[str] = ()
    chart: Chart | None = None
    table: Table | None = None


def sections(report: Report, base_url: str = "") -> list[Section]:
    """All of the report, in the order in which it is read."""
    pages = _Pages(report, base_url)
    return [
        _objectives(pages),
        _burn_down(report),
        _days(pages),
        _known(pages),
        _lag(report),
        _worst_hours(pages),
        _places(report),
        _incidents(pages),
        _comparison(report),
        _targets(pages),
        _recomputing(pages),
    ]


@dataclass(frozen=True, slots=True)
class _Pages:
    """Cells that lead to the windows behind them."""

    report: Report
    base_url: str

    @property
    def zone(self) -> str:
        return self.report.span.zone

    def range(self, text: str, from_s: int, to_s: int) -> Cell:
        link = self.report.links(from_s, to_s, self.base_url)["page"]
        return Cell(text, link, f"{rfc3339(from_s)} to {rfc3339(to_s)}")

    def moment(self, at_s: float | None) -> Cell:
        return Cell(words.NOTHING) if at_s is None else Cell(wording.local(at_s, self.zone), "", rfc3339(int(at_s)))


def _objectives(pages: _Pages) -> Section:
    report = pages.report
    rows = [
        [
            Cell(wording.OBJECTIVES[one.objective]),
            Cell(wording.status(one.status), "", wording.STATUSES[one.status].meaning),
            Cell(wording.promises(one.objective, report.targets)),
            pages.range(wording.attained(one), report.span.from_s, report.span.to_s),
            Cell(words.count(one.of)),
            Cell(words.interval({"min": one.bad.min, "max": one.bad.max})),
            Cell(words.count(int(one.allowed))),
            Cell(wording.spent(one)),
            Cell(wording.left(one)),
        ]
        for one in report.whole.attainments
    ]
    heads = ("Objective", "Status", "Promised", "Measured", "Messages", "Bad", "Budget", "Spent", "Left")
    return Section("Objectives", wording.verdict_sentences(report), None, Table(heads, rows, 3))


def _burn_down(report: Report) -> Section:
    said = (
        "What is left of each error budget, the number of messages that may be bad. The band reaches from what is "
        "certain to what cannot be ruled out; a gap is a time of which nothing is known."
    )
    return Section("Error budget", (said,), "burn-down")


def _days(pages: _Pages) -> Section:
    rows = [
        [
            pages.range(wording.local_day(day.from_s, pages.zone), day.from_s, day.to_s),
            Cell(wording.status(day.status) if day.known.closed else _nothing_of(day)),
            *_numbers(day),
            *(Cell(words.count(day.minutes[name])) for name in ("ok", "loss", "unknown", "missing", "idle")),
        ]
        for day in pages.report.days
    ]
    heads = ("Day", "Status", *_NUMBERS, "Min. ok", "Loss", "Unknown", "Missing", "Idle")
    return Section("Days", (f"Days of {pages.zone}.",), "days", Table(heads, rows, 2))


_NUMBERS: Final = ("Messages", "Lost", "Loss", "On time")


def _numbers(figures: Figures) -> list[Cell]:
    if not figures.known.closed:
        return [Cell(words.NOTHING)] * len(_NUMBERS)
    total = figures.total
    return [
        Cell(words.count(total.messages)),
        Cell(words.interval({"min": total.lost_min, "max": total.lost_max})),
        Cell(wording.attained(figures.attainments[0])),
        Cell(words.share(total.on_time_share)),
    ]


def _nothing_of(day: Figures) -> str:
    if day.known.missing:
        return "NOT KNOWN"
    return "TO COME" if day.known.to_come else "BEFORE"


def _known(pages: _Pages) -> Section:
    report, whole = pages.report, pages.report.whole
    kinds = {
        "ok": "what was lost or is late is within the target",
        "loss": "more was lost for certain than the target allows",
        "unknown": "the evidence does not allow a verdict",
        "idle": "no messages, and every emitter says so",
        "missing": "should have a result and have none",
        "before": "before the first minute that anything is kept of",
        "to_come": "still to come, or not closed yet",
    }
    rows = [
        [
            Cell(name.replace("_", " ").upper()),
            Cell(meaning),
            Cell(words.count(whole.minutes[name])),
            Cell(words.share(whole.minutes[name] / whole.known.minutes)),
        ]
        for name, meaning in kinds.items()
    ]
    everything = pages.range("ALL", report.span.from_s, report.span.to_s)
    rows.append([everything, Cell("the range"), Cell(words.count(whole.known.minutes)), Cell(words.share(1.0))])
    return Section("Minutes by verdict", (), None, Table(("Minutes", "", "Number", "Share"), rows, 2))


def _lag(report: Report) -> Section:
    lags = Lags.of(report.whole.total.e2e_lags)
    rows = [[Cell("End to end"), *(Cell(words.lag(value)) for value in (lags.p50, lags.p95, lags.p99, lags.max))]]
    said = "Percentiles of all messages of the range together, within 1 %; none is an average of percentiles."
    return Section("Lag", (said,), None, Table(("Lag", "p50", "p95", "p99", "max"), rows))


def _worst_hours(pages: _Pages) -> Section:
    rows = [
        [
            pages.range(
                wording.hours(hour.figures.from_s, hour.figures.to_s, pages.zone),
                hour.figures.from_s,
                hour.figures.to_s,
            ),
            *_numbers(hour.figures),
            *(Cell(words.NOTHING if part is None else wording.percent(part)) for part in hour.spent),
        ]
        for hour in pages.report.worst_hours
    ]
    if not rows:
        return Section("Worst hours", ("No hour took anything of a budget.",))
    heads = ("Hour", *_NUMBERS, "Of loss budget", "Of on-time budget")
    return Section("Worst hours", ("Those that took most of a budget of the whole range.",), None, Table(heads, rows))


def _places(report: Report) -> Section:
    places = lost_places(report.whole.total)[:MAX_ROWS]
    title, lost = "Where messages were lost", report.whole.total.lost_max
    if not places:
        said = "No place is kept of these losses: they are older than places are told." if lost else "None were lost."
        return Section(title, (said,))
    certain = report.whole.total.lost_min
    rows = [
        [
            Cell(name.replace("->", " → ")),
            Cell(words.interval({"min": there.min, "max": there.max})),
            Cell(words.share(there.min / certain if certain else None)),
        ]
        for name, there in places
    ]
    said = "A message may be lost at several places, where routes part."
    return Section(title, (said,), None, Table(("Place", "Lost", "Of those lost for certain"), rows))


def _incidents(pages: _Pages) -> Section:
    found, times = pages.report.incidents.found, pages.report.incidents.times
    if not found:
        return Section("Incidents", ("None in this range.",))
    said = (
        f"{times.incidents} incident{'' if times.incidents == 1 else 's'}, {times.acknowledged} acknowledged "
        f"(mean time {_time(times.mean_to_acknowledge_s)}), {times.repaired} repaired "
        f"(mean time {_time(times.mean_to_resolve_s)}), {times.revised} revised away."
    )
    rows = [_incident(pages, one) for one in found[:MAX_ROWS]]
    more = [f"{len(found) - MAX_ROWS} more are in the JSON form."] if len(found) > MAX_ROWS else []
    heads = ("Opened", "Resolved", "Severity", "Rule", "What", "Where")
    return Section("Incidents", (said, *more), None, Table(heads, rows, len(heads)))


def _incident(pages: _Pages, one: Incident) -> list[Cell]:
    ended = one.resolved_at.timestamp() if one.resolved_at and one.state == "resolved" else None
    opened = wording.local(one.opened_at.timestamp(), pages.zone)
    return [
        pages.range(opened, one.first_window_s, one.last_window_s + 60),
        pages.moment(ended) if ended else Cell("still open"),
        Cell(one.severity),
        Cell(one.rule),
        Cell(one.text),
        Cell(", ".join(place_words(place) for place in one.where[:3]) or words.NOTHING),
    ]


def _time(seconds: float | None) -> str:
    return words.NOTHING if seconds is None else words.lag(1_000 * seconds)


def _comparison(report: Report) -> Section:
    now, before = report.whole, report.previous
    title = f"Compared with {wording.range_words(report.previous_span)}"
    if not before.known.closed:
        return Section(title, ("Nothing is known of that range.",))
    lags_now, lags_before = Lags.of(now.total.e2e_lags), Lags.of(before.total.e2e_lags)
    rows = [
        _compared("Messages", now.total.messages, before.total.messages, words.count, _relative),
        _compared(
            "Lost for certain", now.total.loss_ratio["min"], before.total.loss_ratio["min"], words.share, _points
        ),
        _compared("On time", now.total.on_time_share, before.total.on_time_share, words.share, _points),
        _compared("Lag p95", lags_now.p95, lags_before.p95, words.lag, _relative),
        _compared("Minutes known", now.known_share, before.known_share, words.share, _points),
        *(_status_row(one, other) for one, other in zip(now.attainments, before.attainments, strict=True)),
    ]
    return Section(title, (), None, Table(("", "This range", "Before", "Change"), rows))


def _compared(
    name: str, now: float | None, before: float | None, say: Callable[..., str], change: Callable[[float, float], str]
) -> list[Cell]:
    changed = words.NOTHING if now is None or before is None else change(now, before)
    return [Cell(name), Cell(say(now)), Cell(say(before)), Cell(changed)]


def _status_row(now: Attainment, before: Attainment) -> list[Cell]:
    name = f"{wording.OBJECTIVES[now.objective]} budget spent"
    return [
        Cell(name),
        Cell(f"{wording.spent(now)} {wording.STATUSES[now.status].icon}"),
        Cell(f"{wording.spent(before)} {wording.STATUSES[before.status].icon}"),
        Cell(words.NOTHING),
    ]


def _relative(now: float, before: float) -> str:
    return f"{100 * (now - before) / before:+.1f} %" if before else words.NOTHING


def _points(now: float, before: float) -> str:
    """In percentage points, where per cent of per cent would mislead."""
    return f"{100 * (now - before):+.3g} points"


def _targets(pages: _Pages) -> Section:
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
    said = "Every window is judged by the version of the definition in force when it began; the budget is their sum."
    return Section("Targets in force", (said,), None, Table(("Time", "Loss", "Lag", "Version"), rows, 3))


def _recomputing(pages: _Pages) -> Section:
    links = pages.report.links(pages.report.span.from_s, pages.report.span.to_s, pages.base_url)
    said = (
        "All figures are sums over one-minute windows of event time: add up the windows behind a link, and get the "
        "figure. Minutes are kept for weeks; what is older is kept as sums of each hour and day."
    )
    rows = [
        [Cell("All windows of the range, as JSON"), Cell("API", links["windows"])],
        [Cell("The same on the dashboard"), Cell("page", links["page"])],
    ]
    return Section("Where the figures come from", (said,), None, Table(("", "Link"), rows, 2))
