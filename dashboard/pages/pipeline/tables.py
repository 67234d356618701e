"""Tables of a pipeline's page: shares of hops, worst minutes, reasons, and the quality of data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import dash_mantine_components as dmc
from dash import html

from dashboard.design import hues
from dashboard.figures.frame import SLOWEST
from dashboard.figures.loss import drawn_loss
from dashboard.figures.shares import BAR_PX, PIE_PX, HopShare, bar, pie, shares
from dashboard.format import (
    QUALITIES,
    QUALITY_NOTE,
    QUALITY_VERDICTS,
    VERDICTS,
    place_label,
    quality_target,
    quality_value,
)
from dashboard.pages.base import Part, TableColumn, aria, bare_table, faint, fold, moment, names, number, picture, table
from dashboard.pages.breakdown import REASONS, reasons
from dashboard.pages.pipeline import steps
from dashboard.queries.buckets import Bucket
from dashboard.queries.panels import Panels
from dashboard.queries.series import Series
from dashboard.queries.sla_periods import SlaPeriods
from dashboard.request import links
from dashboard.request.links import Address
from dashboard.request.zones import utc
from lagloss_server.base import format as fmt
from lagloss_server.model import hops
from lagloss_server.model.window import LossRatio
from lagloss_server.sums.quality import QualityCell, QualityRow
from lagloss_server.sums.rollup import PERIOD_S

_WORST: Final = 10
_REASONS: Final = 10
PERIODS: Final = {60: "minute", 3_600: "hour", 86_400: "day"}
"""Names of buckets by their length (s)."""


def shares_box(panels: Panels, address: Address) -> Part | None:
    """Return the share of each hop in the lag; None where no hop is known."""
    graph, total = panels.stored.definition.graph, panels.series.total
    path = steps.path_of(address, graph)
    shares_ = shares({} if total is None else hops.path_ms(total.lags, graph, None if path == SLOWEST else path))
    if not shares_:
        return None
    hue = hues(graph.steps)
    longest = max(shares_, key=lambda share: share.p95_ms)
    size = str(PIE_PX)
    image = picture(pie(shares_, hue), "the same data as a pie chart", className="pie", width=size, height=size)
    rows = bare_table(
        ("", "", TableColumn("", "number"), TableColumn("", "number")),
        [share_row(share, longest.p95_ms, hue) for share in shares_],
        tabularNums=True,
        verticalSpacing=3,
        horizontalSpacing=6,
        fz="sm",
        withRowBorders=False,
    )
    about = dmc.Text("p95 over the time range, from merged sketches", size="sm", className="faint")
    most = "" if longest.share is None else f"{longest.hop.label}: {fmt.percent(longest.share)}"
    return fold("shares", "Share of lag by hop", most, html.Div([about, html.Div([image, rows], className="shares")]))


def share_row(share: HopShare, longest_ms: float, hue: dict[str, str]) -> list[Part]:
    """Return a hop's row: its name, bar, lag, and share of the whole."""
    width, height = map(str, BAR_PX)
    image = picture(bar(share, longest_ms, hue), "", width=width, height=height)
    return [
        dmc.TableTh(share.hop.label, fw=400, attributes={"root": {"scope": "row"}}),
        image,
        fmt.duration(share.p95_ms),
        fmt.NOTHING if share.share is None else fmt.percent(share.share),
    ]


def worst_table(panels: Panels, address: Address) -> Part | None:
    """Return the way to a bucket for those who do not click on figures."""
    series = panels.series
    what = PERIODS[series.bucket_s]
    worst_buckets = worst(series, panels.sla_periods)
    if not worst_buckets:
        summary = f"Every {what} in this range has a verdict and met its targets."
        return dmc.Text(summary, size="sm", className="faint") if series.buckets else None
    columns: list[TableColumn | str] = [
        names(f"{what.capitalize()} ({address.zone.label(worst_buckets[0].start_s)})"),
        "Verdict",
        number("Loss"),
        number(f"E2E {', '.join(panels.sla_periods.percentiles)}"),
    ]
    dated = series.span.length_s > PERIOD_S["day"]
    rows = bare_table(
        columns,
        [_row(bucket, panels, address, dated) for bucket in worst_buckets],
        striped=True,
        tabularNums=True,
        verticalSpacing=4,
        horizontalSpacing=6,
        fz="sm",
        className="unbroken",
    )
    first = address.zone.clock(worst_buckets[0].start_s, date=dated)
    note = f"{first}, {VERDICTS[worst_buckets[0].verdict].word}"
    return fold("worst", f"Worst {what}s", note, dmc.TableScrollContainer(rows, minWidth=300, type="native"))


def _row(bucket: Bucket, panels: Panels, address: Address, dated: bool) -> list[Part]:
    look, loss = VERDICTS[bucket.verdict], drawn_loss(bucket)
    href = steps.of_bucket(address, panels.stored.name, bucket.start_s, bucket.length_s).href
    when = moment(address.zone.clock(bucket.start_s, date=dated), utc(bucket.start_s))
    interval = None if loss is None else LossRatio(*loss)
    percentile = f"{panels.sla_periods.percentile(bucket)} " if len(panels.sla_periods.percentiles) > 1 else ""
    return [
        dmc.Anchor(when, href=href, size="sm"),
        f"{look.icon} {look.word}",
        fmt.percent_interval(interval),
        f"{percentile}{fmt.duration(panels.sla_periods.lag_ms(bucket))}",
    ]


def worst(series: Series, sla_periods: SlaPeriods) -> list[Bucket]:
    """Buckets with loss or lag beyond the target of their time, or without a verdict, the worst first."""

    def is_bad(bucket: Bucket) -> bool:
        return bool(bucket.verdicts.keys() & {"loss", "unknown"}) or sla_periods.is_late(bucket)

    def rank(bucket: Bucket) -> tuple[bool, tuple[float, float], float, int]:
        return "loss" in bucket.verdicts, lost_share(bucket), sla_periods.lag_ms(bucket) or 0.0, bucket.start_s

    return sorted(filter(is_bad, series.buckets), key=rank, reverse=True)[:_WORST]


def lost_share(bucket: Bucket) -> tuple[float, float]:
    return drawn_loss(bucket) or (0.0, 0.0)


def reasons_box(total: Bucket | None) -> Part | None:
    """Return why messages of the span were filtered or dead; None where none was."""
    rows = [] if total is None else total.reason_rows[:_REASONS]
    if not rows:
        return None
    about = "from minutes whose beacons were read; minutes proven by tallies have no reasons"
    note = f"{fmt.reason(rows[0].reason)}, {fmt.count(rows[0].count)}"
    return fold("reasons", REASONS, note, [dmc.Text(about, size="sm", className="faint", mb=4), reasons(rows)])


def quality_panel(rows: Sequence[QualityRow], pipeline: str, address: Address) -> Part | None:
    """Return the table of qualities; None where no minute of the span is closed."""
    if not rows:
        return None
    shown = table(
        "Data quality",
        [names("Stage"), *map(number, QUALITIES.values())],
        [[place_label(row.stage.label), *(_cell(cell, pipeline, address) for cell in row.cells)] for row in rows],
        striped=True,
        tabularNums=True,
        verticalSpacing=4,
        horizontalSpacing=12,
        fz="sm",
        className="unbroken",
    )
    missed = sum(cell is not None and cell.verdict == "bad" for row in rows for cell in row.cells)
    note = f"{fmt.counted(missed, 'target')} missed" if missed else "no target missed"
    about = dmc.Text(QUALITY_NOTE, size="sm", className="faint", mb=4)
    return fold("quality", "Data quality", note, [about, shown])


def _cell(cell: QualityCell | None, pipeline: str, address: Address) -> Part:
    if cell is None:
        return dmc.TableTd(fmt.NOTHING, className="number faint")
    look = QUALITY_VERDICTS[cell.verdict]
    value: Any = quality_value(cell)
    if cell.worst_s is not None:
        hint = f"worst minute: {address.zone.clock(cell.worst_s, date=True)}, {utc(cell.worst_s)}"
        href = address.to(links.window(pipeline, cell.worst_s)).href
        value = dmc.Anchor(html.Span(value, title=hint), href=href, size="sm")
    sign = html.Span(look.icon, role="img", className=f"of-{look.role}", **aria(label=look.word.lower()))
    target = faint(quality_target(cell))
    return [sign, " ", value, target]
