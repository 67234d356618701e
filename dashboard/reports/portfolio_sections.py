"""The portfolio as sections, which its page and all forms of it lay out."""

from __future__ import annotations

from typing import Final

from dashboard.reports import wording
from dashboard.reports.charts import burn_strip
from dashboard.reports.model import figure_links
from dashboard.reports.parts import Cell, Layout, ReportSection, Table
from dashboard.reports.portfolio import Portfolio, PortfolioLine, burn_rate
from dashboard.reports.trend import TRENDS
from dashboard.request import links
from dashboard.request.links import Address
from dashboard.request.shown_range import ShownRange
from lagloss_server.base import format as fmt
from lagloss_server.store.unreadable import some_of
from lagloss_server.sums.error_budget import Attainment

SHOWN: Final = 5
"""Pipelines that a summary names."""


def layout(portfolio: Portfolio, base_url: str = "") -> Layout:
    return Layout(
        title=f"SLA portfolio: {portfolio.name}, {wording.range_words(portfolio.span)}",
        kind="SLA portfolio",
        name=portfolio.name,
        description="",
        span=portfolio.span,
        made_at_s=portfolio.made_at_s,
        status=portfolio.status,
        sections=sections(portfolio, base_url),
    )


def sections(portfolio: Portfolio, base_url: str = "") -> list[ReportSection]:
    note = (
        f"Trends compare with {wording.range_words(portfolio.previous_span)}. Bars show the burn rate by day (UTC), "
        "or hour for a short range, of the worse objective; the line is at 1."
    )
    rows = [_row(line, portfolio, base_url) for line in portfolio.lines]
    heads = (
        *("Pipeline", "Status", "Open incidents", "Target", "Loss", "Loss trend", "Loss budget left"),
        *("On time", "On-time trend", "On-time budget left", "Burn rate"),
    )
    table = Table(heads, rows, 4) if rows else None
    return [ReportSection("Pipelines", (headline(portfolio), *([note] if rows else [])), None, table)]


def headline(portfolio: Portfolio) -> str:
    """`7 pipelines match team=web: 1 missed, 6 met.`, and which definitions are set aside."""
    aside = f" Unreadable: {some_of([str(row) for row in portfolio.unreadable])}." if portfolio.unreadable else ""
    matching = f"{'matches' if len(portfolio.lines) == 1 else 'match'} {portfolio.name}" if portfolio.matchers else ""
    if not portfolio.lines:
        return f"No pipeline {'matches ' + portfolio.name if portfolio.matchers else 'exists'}.{aside}"
    pipelines = fmt.counted(len(portfolio.lines), "pipeline")
    counts = ", ".join(f"{n} {wording.STATUSES[status].word.lower()}" for status, n in portfolio.statuses.items())
    return f"{pipelines}{' ' if matching else ''}{matching}: {counts}.{aside}"


def summary(portfolio: Portfolio) -> tuple[str, ...]:
    """Return the headline, and a sentence on each of the worst pipelines that did not keep all."""
    bad = [line for line in portfolio.lines if line.status in ("missed", "unproven")]
    more = (
        [f"{fmt.counted(len(bad) - SHOWN, 'more pipeline')} not proven to meet the targets."]
        if len(bad) > SHOWN
        else []
    )
    return (headline(portfolio), *map(_sentence, bad[:SHOWN]), *more)


def _sentence(line: PortfolioLine) -> str:
    loss, on_time = line.whole.attainments
    look = wording.STATUSES[line.status]
    return (
        f"{line.pipeline} {look.word}: loss {wording.attained(loss)} ({_against(line, loss)}), "
        f"on time {wording.attained(on_time)} ({_against(line, on_time)})."
    )


def _against(line: PortfolioLine, attainment: Attainment) -> str:
    return f"{TRENDS[line.trends[attainment.objective]].word}, budget left {wording.left(attainment.budget)}"


def _row(line: PortfolioLine, portfolio: Portfolio, base_url: str) -> list[Cell]:
    span, base = portfolio.span, base_url.rstrip("/")
    page = figure_links(line.pipeline, span.zone, span.from_s, span.to_s, base_url)["page"]
    report = Address(links.report(line.pipeline), {"zone": span.zone}).over(ShownRange(span.from_s, span.to_s)).href
    loss, on_time = line.whole.attainments
    return [
        Cell(line.pipeline, base + report, line.description),
        Cell(wording.status(line.status), "", wording.STATUSES[line.status].meaning),
        _incidents(line, base),
        Cell(wording.short_promises(line.targets)),
        Cell(wording.attained(loss), page),
        _trend(line, loss),
        Cell(wording.left(loss.budget)),
        Cell(wording.attained(on_time), page),
        _trend(line, on_time),
        Cell(wording.left(on_time.budget)),
        _burn(line),
    ]


def _trend(line: PortfolioLine, attainment: Attainment) -> Cell:
    trend = line.trends[attainment.objective]
    look = TRENDS[trend]
    if trend == "none":
        return Cell(fmt.NOTHING, "", f"no comparison: {look.meaning}")
    before = next(earlier for earlier in line.previous.attainments if earlier.objective == attainment.objective)
    return Cell(f"{look.icon} {look.word}", "", f"{look.meaning}; previously {wording.attained(before)}")


def _burn(line: PortfolioLine) -> Cell:
    rates = [burn_rate(step) for step in line.steps]
    known_rates = [rate for rate in rates if rate is not None]
    if not known_rates:
        return Cell(fmt.NOTHING)
    over = sum(rate > 1 for rate in known_rates)
    words = f"{over} of {len(known_rates)} above 1"
    return Cell(words, "", f"burn rate {words}, at most {max(known_rates):.1f}", burn_strip(rates))


def _incidents(line: PortfolioLine, base: str) -> Cell:
    counted = ((line.critical, "critical"), (line.warning, "warning"))
    words = ", ".join(f"{number} {severity}" for number, severity in counted if number)
    link = base + Address(links.ALERTS, {"pipeline": line.pipeline}).href
    return Cell(words, link) if words else Cell("none")
