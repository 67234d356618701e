"""Parts of a pipeline's page beside its figures: the verdict now, its numbers, a caption, the worst minutes."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import Final

import dash_mantine_components as dmc
from dash import html

from dashboard import format as words
from dashboard.figures.loss import drawn_loss
from dashboard.format import VERDICTS
from dashboard.pages.base import Column, Part, badge, bare_table, moment, names, number
from dashboard.pages.breakdown import REASONS, destinations, reasons, sides, source_choice, source_of, sources
from dashboard.pages.pipeline import steps as pipeline_steps
from dashboard.queries.buckets import Bucket, knows_messages
from dashboard.queries.consumer_lag import ConsumerLag
from dashboard.queries.panels import Panels
from dashboard.queries.series import Series
from dashboard.queries.sla_periods import SlaPeriods, is_held, target_percentile
from dashboard.request import links
from dashboard.request.links import Address
from dashboard.request.zones import Zone, utc
from lagloss.wire.format import WINDOW_S
from lagloss_server import format as fmt
from lagloss_server.model.definition import Definition, Sla
from lagloss_server.model.window import ListedWindow, LossRatio
from lagloss_server.rules.rollup import PERIOD_S

_WORST: Final = 10
_REASONS: Final = 10
_NAMES: Final = {60: "minute", 3_600: "hour", 86_400: "day"}


def headline(panels: Panels, here: Address, now_s: float) -> Part | None:
    """Return the verdict of the newest closed minute in a sentence, how fresh it is, and its numbers."""
    newest = panels.newest
    if newest is None:
        return None
    sla, start_s, names = panels.newest_sla, newest.start_s, panels.stored.definition.graph.sources
    look = VERDICTS[words.verdict_of(newest)]
    closed_ago = fmt.ago(now_s - words.parse_utc_s(newest.closed_at)) if newest.closed_at else fmt.NOTHING
    name = panels.stored.name
    fresh = [
        dmc.Anchor(
            moment(here.zone.minute(start_s), utc(start_s)), href=here.to(links.window(name, start_s)).href, size="sm"
        ),
        f" · closed {closed_ago} · read at {here.zone.clock(now_s, seconds=True)} {here.zone.label(now_s)}",
        f" · {panels.fresh.reporting} of {panels.fresh.emitters} emitters reporting" if panels.fresh.emitters else "",
    ]
    summary = [
        dmc.Text(words.verdict_sentence(newest, sla.loss.max), fw=600),
        dmc.Text(fresh, size="sm", className="faint"),
    ]
    verdict = badge(look.word, look.icon, look.colour, size="xl")
    tiles = [_tile(*tile) for tile in _tiles(newest, sla)]
    return dmc.Paper(
        [
            html.Div([verdict, html.Div(summary, className="grows")], className="said"),
            dmc.SimpleGrid(tiles, cols={"base": 2, "sm": 4}, mt="sm", spacing="sm"),
            destinations(newest, sla),
            *_by_commit(panels.stored.definition),
            sources(newest, sla),
            sides(newest),
            source_choice(here, names, source_of(here, names)),
        ],
        p="sm",
        withBorder=True,
    )


def _by_commit(definition: Definition) -> list[Part]:
    return [dmc.Text(line, size="sm", mt=6) for line in fmt.delivered_by_commit(definition.committed_by)]


def _tiles(newest: ListedWindow, sla: Sla) -> list[tuple[str, str, str]]:
    """(title, value, what it stands beside) of the newest closed minute."""
    e2e, percentile = newest.e2e_lag_ms, target_percentile(sla.lag)
    is_known = knows_messages(newest.messages, [words.verdict_of(newest)])
    ends = [f"{fmt.count(getattr(newest, kind))} {kind}" for kind in ("delivered", "filtered", "dead", "pending")]
    judged = "" if is_held(sla.lag) else " by the on-time share"
    target = f"SLA {fmt.percentile(sla.lag.percentile)} ≤ {fmt.duration(sla.lag.target)}{judged}"
    lag_target = f"{target} · max {fmt.duration(e2e.max)}"
    return [
        ("Loss", fmt.percent_interval(newest.loss_ratio), f"target ≤ {fmt.percent(sla.loss.max)}"),
        (f"E2E lag {percentile}", fmt.duration(getattr(e2e, percentile)), lag_target),
        ("On time", fmt.percent(newest.on_time_share), f"delivered within {fmt.duration(sla.lag.target)}"),
        ("Messages", fmt.count(newest.messages), " · ".join(ends))
        if is_known
        else ("Messages", fmt.NOTHING, "no report says whether any came in"),
    ]


def _tile(title: str, value: str, beside: str) -> Part:
    texts = [
        dmc.Text(title, size="xs", className="faint"),
        html.Div(value, className="tile-value"),
        dmc.Text(beside, size="xs", className="faint"),
    ]
    return dmc.Paper(texts, p="xs", className="tile")


def caption(panels: Panels, here: Address) -> list[Part]:
    """Return the panels in words, and the way to what they have no room for."""
    more = panels.happenings.more_incidents
    source = source_of(here, panels.stored.definition.graph.sources)
    summary = "" if source is None else f"messages, loss and E2E lag of {source}; verdicts and hops of all messages; "
    summary += describe_panels(panels.series, panels.sla_periods, here.zone) + describe_consumer_lag(
        panels.consumer_lag, here.zone
    )
    if not more:
        return [summary]
    href = here.to(links.ALERTS, pipeline=panels.stored.name, tab="history").href
    link = dmc.Anchor(f"and {fmt.count(more)} more", href=href, inherit=True)
    shown = fmt.count(len(panels.happenings.incidents))
    return [f"{summary}; {shown} incidents are shown, critical ones first, then the newest: ", link]


def describe_panels(series: Series, sla_periods: SlaPeriods, zone: Zone) -> str:
    """Describe the panels for screen readers."""
    found = series.buckets
    if not found:
        return "nothing is known of this span"
    verdicts: Counter[str] = Counter()
    for bucket in found:
        verdicts.update(bucket.verdicts)
    parts = [", ".join(f"{fmt.count(verdicts[key])} {look.word}" for key, look in VERDICTS.items() if verdicts[key])]
    lagging = max(found, key=lambda bucket: sla_periods.lag_ms(bucket) or 0.0)
    if (lag_ms := sla_periods.lag_ms(lagging)) is not None:
        at = zone.clock(lagging.start_s, date=True)
        parts.append(f"highest E2E {sla_periods.percentile(lagging)} {fmt.duration(lag_ms)} at {at}")
    lossy = max(found, key=_loss)
    if _loss(lossy) > (0.0, 0.0):
        low, high = _loss(lossy)
        summary = fmt.percent_interval(LossRatio(low, high))
        parts.append(f"highest loss {summary} at {zone.clock(lossy.start_s, date=True)}")
    minutes = sum(verdicts.values())
    what = fmt.counted(minutes, "minute")
    if series.bucket_s > WINDOW_S:
        number = len(found)
        what += f" in {fmt.counted(number, _NAMES[series.bucket_s])}"
    return f"{what}: {'; '.join(parts)}"


def describe_consumer_lag(lag: ConsumerLag, zone: Zone) -> str:
    """Return the highest of any node, and the groups of which nothing is known."""
    found = [
        (bucket.offsets_max, of.node, bucket)
        for of, buckets in lag.series.items()
        for bucket in buckets
        if bucket.offsets_max is not None
    ]
    summary = ""
    if found:
        offsets, node, bucket = max(found, key=itemgetter(0))
        behind = f" ({fmt.duration(bucket.behind_max_ms)} behind)" if offsets else ""
        at = zone.clock(bucket.start_s, date=True)
        summary = f"; highest consumer lag {fmt.count(offsets)}{behind} of {node} at {at}"
    unknown = lag.watched.items() - {(of.node, of.group) for of in lag.series}
    if unknown:
        named = ", ".join(f"{group} ({node})" for node, group in lag.watched.items() if (node, group) in unknown)
        summary += f"; no consumer lag is known of {named}"
    return summary


def worst(series: Series, sla_periods: SlaPeriods) -> list[Bucket]:
    """Buckets with loss or lag beyond the target of their time, or without a verdict, the worst first."""

    def is_bad(bucket: Bucket) -> bool:
        return bool(bucket.verdicts.keys() & {"loss", "unknown"}) or sla_periods.is_late(bucket)

    def rank(bucket: Bucket) -> tuple[bool, tuple[float, float], float, int]:
        return "loss" in bucket.verdicts, _loss(bucket), sla_periods.lag_ms(bucket) or 0.0, bucket.start_s

    return sorted(filter(is_bad, series.buckets), key=rank, reverse=True)[:_WORST]


def reasons_box(total: Bucket | None) -> Part | None:
    """Return why messages of the span were filtered or dead; None where none was."""
    rows = [] if total is None else total.reason_rows[:_REASONS]
    if not rows:
        return None
    about = "of minutes whose beacons were read; those that tallies prove have no reasons"
    title = dmc.Title(REASONS, order=2, fz=16)
    return dmc.Paper(
        [title, dmc.Text(about, size="sm", className="faint", mb=4), reasons(rows)],
        p="sm",
        withBorder=True,
    )


def worst_table(panels: Panels, here: Address) -> Part:
    """Return the way to a bucket for those who do not click on figures."""
    series = panels.series
    what = _NAMES[series.bucket_s]
    title = dmc.Title(f"Worst {what}s", order=2, fz=16, mb=4)
    found = worst(series, panels.sla_periods)
    if not found:
        summary = f"No {what} of this span breached a target or lacks a verdict." if series.buckets else fmt.NOTHING
        return html.Div([title, dmc.Text(summary, size="sm", className="faint")])
    columns: list[Column | str] = [
        names(f"{what.capitalize()} ({here.zone.label(found[0].start_s)})"),
        "Verdict",
        number("Loss"),
        number(f"E2E {', '.join(panels.sla_periods.percentiles)}"),
    ]
    dated = series.span.length_s > PERIOD_S["day"]
    table = bare_table(
        columns,
        [_row(bucket, panels, here, dated) for bucket in found],
        striped=True,
        tabularNums=True,
        verticalSpacing=4,
        horizontalSpacing=6,
        fz="sm",
        className="unbroken",
    )
    return html.Div([title, dmc.TableScrollContainer(table, minWidth=300, type="native")])


def _row(bucket: Bucket, panels: Panels, here: Address, dated: bool) -> list[Part]:
    look, loss = VERDICTS[bucket.verdict], drawn_loss(bucket)
    href = pipeline_steps.of_bucket(here, panels.stored.name, bucket.start_s, bucket.length_s).href
    at = moment(here.zone.clock(bucket.start_s, date=dated), utc(bucket.start_s))
    interval = None if loss is None else LossRatio(*loss)
    of = f"{panels.sla_periods.percentile(bucket)} " if len(panels.sla_periods.percentiles) > 1 else ""
    return [
        dmc.Anchor(at, href=href, size="sm"),
        f"{look.icon} {look.word}",
        fmt.percent_interval(interval),
        f"{of}{fmt.duration(panels.sla_periods.lag_ms(bucket))}",
    ]


def _loss(bucket: Bucket) -> tuple[float, float]:
    return drawn_loss(bucket) or (0.0, 0.0)
